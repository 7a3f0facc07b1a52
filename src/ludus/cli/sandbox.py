"""`ludus sandbox`: list the backends, try a slot, and remove what dead processes have left.

    ludus sandbox status                 every backend: whether it works, its limits, and what processes hold in it
    ludus sandbox exec 'make test'       run one command in a fresh slot, with its output and exit code
    ludus sandbox shell                  run lines of stdin in one fresh slot, without a terminal, as an agent does
    ludus sandbox prune                  remove what dead processes of this host have left, and nothing else

All take the settings of the `sandbox` section: `--sandbox.backend docker --sandbox.docker.image …` tries Docker. A
driver is a process that uses sandboxes.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from ludus.arguments import Arguments, make_argument
from ludus.command import CONFIG, JSON, Command
from ludus.command.terminal import print_notice
from ludus.config import Config, load
from ludus.config.build_sandboxes import change_spec, list_sections, make_profiles, open_slots
from ludus.config.secrets import read_secret
from ludus.encoding import to_json
from ludus.errors import ConfigError, LudusError, describe_error
from ludus.sandbox import ExecResult, Sandbox, SandboxSpec
from ludus.sandbox.backend import Backend, BackendFinding
from ludus.sandbox.backends import get_backend_class, make_backend
from ludus.sandbox.local.host_dir import find_host_resources, remove_host_resource
from ludus.sandbox.owner import OwnedResource
from ludus.sandbox.survey import survey

_LINE_BYTES = 2**16


class SandboxArguments(Arguments):
    action: Literal["status", "exec", "shell", "prune"]
    words: list[str]


def run(arguments: SandboxArguments) -> int:
    if arguments.words and arguments.action != "exec":
        raise ConfigError(f"what is '{arguments.words[0]}'? ludus sandbox {arguments.action} takes only options")
    config = load([Path(path) for path in arguments.config], arguments.flags)
    match arguments.action:
        case "status":
            return asyncio.run(_print_status(config, as_json=arguments.json))
        case "exec":
            if not arguments.words:
                raise ConfigError("which command? For example: ludus sandbox exec 'python3 --version'")
            return asyncio.run(_run_command(config, " ".join(arguments.words), as_json=arguments.json))
        case "shell":
            return asyncio.run(_run_lines(config))
        case _:
            return asyncio.run(_prune(config, as_json=arguments.json))


# ---- status -------------------------------------------------------------------------------------------------------


async def _print_status(config: Config, *, as_json: bool) -> int:
    findings = await survey(make_profiles(config.sandbox), read_secret, list_sections(config.sandbox))
    held, unseen = await _find_resources(config)
    if as_json:
        print(to_json({"backends": findings, "held": [_to_fields(each) for each in held], "unseen": unseen}).decode())
    else:
        print("\n".join([*_format_findings(findings), "", *_format_resources(held), *unseen]))
    return 0


def _format_findings(findings: Sequence[BackendFinding]) -> list[str]:
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.state:<7} {finding.backend}: {finding.message}")
        lines += [f"        {held.limit}: {held.by}" for held in finding.limits]
        lines += [f"        → {finding.remedy}"] if finding.remedy else []
    return lines


def _format_resources(held: Sequence[OwnedResource]) -> list[str]:
    if not held:
        return ["no process holds anything here"]
    lines = [
        f"{each.kind} {each.name} ({each.backend}): {each.driver}{', which is dead' if each.orphaned else ''}"
        for each in held
    ]
    dead = sum(each.orphaned for each in held)
    return [*lines, *([f"{dead} left by dead processes; remove them with: ludus sandbox prune"] if dead else [])]


def _to_fields(resource: OwnedResource) -> dict[str, object]:
    return {
        "backend": resource.backend,
        "kind": resource.kind,
        "name": resource.name,
        "driver": resource.driver,
        "dead": resource.orphaned,
    }


async def _find_resources(config: Config) -> tuple[list[OwnedResource], list[str]]:
    """What drivers hold on this host and in the backends of the settings, and errors of those backends."""
    held, unseen = find_host_resources(), list[str]()
    async with _open_backends(config) as backends:
        for name, backend in backends.items():
            try:
                held += await backend.list_resources()
            except Exception as error:  # a backend of the user's own may raise anything
                words = str(error) if isinstance(error, LudusError) else describe_error(error)
                unseen.append(f"{name} did not answer: {words}")
    return held, unseen


@asynccontextmanager
async def _open_backends(config: Config) -> AsyncGenerator[dict[str, Backend[Any]], None]:
    """The backends of the settings, by name. One that cannot be made is left out: `status` says why."""
    made: dict[str, Backend[Any]] = {}
    try:
        for name, profile in make_profiles(config.sandbox).items():
            with suppress(ConfigError):
                made[name or get_backend_class(profile).name] = make_backend(profile, read_secret)
        yield made
    finally:
        for backend in made.values():
            with suppress(Exception):  # `status` shows it
                await backend.close()


# ---- prune --------------------------------------------------------------------------------------------------------


async def _prune(config: Config, *, as_json: bool) -> int:
    gone: list[OwnedResource] = []
    problems: list[str] = []
    for resource in find_host_resources():
        if resource.orphaned:
            try:
                remove_host_resource(resource)
                gone.append(resource)
            except OSError as error:
                problems.append(f"{resource.name}: {error}")
    async with _open_backends(config) as backends:
        for name, backend in backends.items():
            try:
                for resource in await backend.list_resources():
                    if resource.orphaned:
                        await backend.remove_resource(resource)
                        gone.append(resource)
            except LudusError as error:
                problems.append(f"{name}: {error}")
    if as_json:
        print(to_json({"removed": [_to_fields(each) for each in gone], "problems": problems}).decode())
    else:
        lines = [f"removed {each.kind} {each.name} ({each.backend}) of {each.driver}" for each in gone]
        print("\n".join([*lines, *problems] or ["dead processes have left nothing"]))
    return 1 if problems else 0


# ---- exec and shell -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _lease_slot(config: Config) -> AsyncGenerator[Sandbox, None]:
    spec = change_spec(SandboxSpec(), config.sandbox)
    async with open_slots(config, spec) as pool, pool.lease(spec) as box:
        yield box


async def _run_command(config: Config, command: str, *, as_json: bool) -> int:
    async with _lease_slot(config) as box:
        done = await box.exec(command)
    if as_json:
        output = {"stdout": done.stdout.decode(errors="replace"), "stderr": done.stderr.decode(errors="replace")}
        rest = {"exit_code": done.exit_code, "timed_out": done.timed_out, "truncated": done.truncated}
        print(to_json({**output, **rest, "seconds": done.seconds}).decode())
        return 0
    _print_result(done)
    return done.exit_code


async def _run_lines(config: Config) -> int:
    interactive = sys.stdin.isatty()
    code = 0
    async with _lease_slot(config) as box:
        if interactive:
            print("one command per line, in a fresh slot; Ctrl-D ends it", file=sys.stderr)
        async for line in _read_lines("slot$ " if interactive else ""):
            done = await box.exec(line)
            _print_result(done)
            code = done.exit_code
    return code


def _print_result(done: ExecResult) -> None:
    for stream, data in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
        stream.buffer.write(data)
        stream.flush()
    notes = {"the command took too long and was killed": done.timed_out, "the output was cut": done.truncated}
    for note in (note for note, applies in notes.items() if applies):
        print_notice(note)


async def _read_lines(prompt: str) -> AsyncIterator[str]:
    """The lines of stdin. The event loop keeps running meanwhile: the connections of remote slots need it."""
    left = b""
    while True:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        while b"\n" not in left:
            await _wait_readable(0)
            data = os.read(0, _LINE_BYTES)
            if not data:
                if left.strip():
                    yield left.decode(errors="replace")
                return
            left += data
        line, _, left = left.partition(b"\n")
        if line.strip():
            yield line.decode(errors="replace")


async def _wait_readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:  # a regular file is always readable
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)


COMMAND = Command(
    run,
    "ludus sandbox status\n"
    "ludus sandbox exec 'python3 --version'\n"
    "ludus sandbox shell --sandbox.backend docker --sandbox.docker.image python:3.11\n"
    "ludus sandbox prune",
    (
        make_argument("action", choices=("status", "exec", "shell", "prune"), help="what to do"),
        make_argument("words", metavar="COMMAND", nargs="*", help="for exec: the command, best in quotes"),
        CONFIG,
        JSON,
    ),
    SandboxArguments,
    uses=frozenset({"sandbox"}),
)
