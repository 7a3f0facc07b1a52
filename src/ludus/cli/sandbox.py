"""`ludus sandbox`: what slots can be had here, one to try things in, and what dead drivers have left.

    ludus sandbox status                 every backend: whether it works, which limits hold, who has what
    ludus sandbox exec 'make test'       one command in a fresh slot; its output and exit code are the command's
    ludus sandbox shell                  line after line in one fresh slot, as an agent has it: no terminal, no input
    ludus sandbox prune                  remove what dead drivers of this host have left, and nothing else

All take the settings of the `sandbox` section, so `--sandbox.backend docker --sandbox.docker.image …` tries Docker.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ludus.cli import Arguments
from ludus.config import Config, load
from ludus.config.build_sandboxes import changed_spec, open_slots, sandbox_profiles
from ludus.config.secrets import read_secret
from ludus.errors import ConfigError, LudusError
from ludus.sandbox import ExecResult, Sandbox, SandboxSpec
from ludus.sandbox.local.host_dir import drop_from_host, host_holdings
from ludus.sandbox.owner import Holding
from ludus.sandbox.profiles import make_backend
from ludus.sandbox.remote.fleet import Backend
from ludus.sandbox.settings import BwrapSettings, LocalSettings, backend_of
from ludus.sandbox.survey import Finding, survey
from ludus.types import to_json

_LINE_BYTES = 2**16


def run(arguments: Arguments) -> int:
    if arguments.words and arguments.action != "exec":
        raise ConfigError(f"what is '{arguments.words[0]}'? ludus sandbox {arguments.action} takes options only")
    config = load([Path(path) for path in arguments.config], arguments.flags)
    match arguments.action:
        case "status":
            return asyncio.run(_status(config, as_json=arguments.json))
        case "exec":
            if not arguments.words:
                raise ConfigError("which command? For example: ludus sandbox exec 'python3 --version'")
            return asyncio.run(_exec(config, " ".join(arguments.words), as_json=arguments.json))
        case "shell":
            return asyncio.run(_shell(config))
        case _:
            return asyncio.run(_prune(config, as_json=arguments.json))


# ---- status -------------------------------------------------------------------------------------------------------


async def _status(config: Config, *, as_json: bool) -> int:
    findings = await survey(sandbox_profiles(config.sandbox), read_secret)
    held, unseen = await _everything_held(config)
    if as_json:
        print(to_json({"backends": findings, "held": [_plain(each) for each in held], "unseen": unseen}).decode())
    else:
        print("\n".join([*_finding_lines(findings), "", *_holding_lines(held), *unseen]))
    return 0


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.state:<7} {finding.backend}: {finding.message}")
        lines += [f"        {held.limit}: {held.by}" for held in finding.limits]
        lines += [f"        → {finding.remedy}"] if finding.remedy else []
    return lines


def _holding_lines(held: Sequence[Holding]) -> list[str]:
    if not held:
        return ["no driver has anything here"]
    lines = [
        f"{each.kind} {each.name} ({each.backend}): {each.driver}{', which is dead' if each.orphaned else ''}"
        for each in held
    ]
    dead = sum(each.orphaned for each in held)
    return [*lines, *([f"{dead} left by dead drivers: ludus sandbox prune"] if dead else [])]


def _plain(holding: Holding) -> dict[str, object]:
    return {
        "backend": holding.backend,
        "kind": holding.kind,
        "name": holding.name,
        "driver": holding.driver,
        "dead": holding.orphaned,
    }


async def _everything_held(config: Config) -> tuple[list[Holding], list[str]]:
    """What drivers have here and in the backends of the settings, and what could not be asked."""
    held, unseen = host_holdings(), list[str]()
    async with _backends(config) as backends:
        for name, backend in backends.items():
            try:
                held += await backend.holdings()
            except LudusError as error:
                unseen.append(f"{name} could not be asked: {error}")
    return held, unseen


@asynccontextmanager
async def _backends(config: Config) -> AsyncGenerator[dict[str, Backend], None]:
    """The backends of the settings, by name. One that cannot even be made is left out: `status` says why."""
    made: dict[str, Backend] = {}
    try:
        for name, profile in sandbox_profiles(config.sandbox).items():
            if not isinstance(profile, BwrapSettings | LocalSettings):
                with suppress(ConfigError):
                    made[name or backend_of(profile)] = make_backend(profile, read_secret)
        yield made
    finally:
        for backend in made.values():
            await backend.close()


# ---- prune --------------------------------------------------------------------------------------------------------


async def _prune(config: Config, *, as_json: bool) -> int:
    gone: list[Holding] = []
    problems: list[str] = []
    for holding in host_holdings():
        if holding.orphaned:
            try:
                drop_from_host(holding)
                gone.append(holding)
            except OSError as error:
                problems.append(f"{holding.name}: {error}")
    async with _backends(config) as backends:
        for name, backend in backends.items():
            try:
                for holding in await backend.holdings():
                    if holding.orphaned:
                        await backend.drop(holding)
                        gone.append(holding)
            except LudusError as error:
                problems.append(f"{name}: {error}")
    if as_json:
        print(to_json({"removed": [_plain(each) for each in gone], "problems": problems}).decode())
    else:
        lines = [f"removed {each.kind} {each.name} ({each.backend}) of {each.driver}" for each in gone]
        print("\n".join([*lines, *problems] or ["nothing is left of dead drivers"]))
    return 1 if problems else 0


# ---- exec and shell -----------------------------------------------------------------------------------------------


@asynccontextmanager
async def _slot(config: Config) -> AsyncGenerator[Sandbox, None]:
    spec = changed_spec(SandboxSpec(), config.sandbox)
    async with open_slots(config, spec) as pool, pool.lease(spec) as box:
        yield box


async def _exec(config: Config, command: str, *, as_json: bool) -> int:
    async with _slot(config) as box:
        done = await box.exec(command)
    if as_json:
        told = {"stdout": done.stdout.decode(errors="replace"), "stderr": done.stderr.decode(errors="replace")}
        rest = {"exit_code": done.exit_code, "timed_out": done.timed_out, "truncated": done.truncated}
        print(to_json({**told, **rest, "seconds": done.seconds}).decode())
        return 0
    _show(done)
    return done.exit_code


async def _shell(config: Config) -> int:
    person = sys.stdin.isatty()
    code = 0
    async with _slot(config) as box:
        if person:
            print("one command per line, in a fresh slot; it ends with Ctrl-D", file=sys.stderr)
        async for line in _lines("slot$ " if person else ""):
            done = await box.exec(line)
            _show(done)
            code = done.exit_code
    return code


def _show(done: ExecResult) -> None:
    for stream, data in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
        stream.buffer.write(data)
        stream.flush()
    notes = {"not ended in time, killed": done.timed_out, "a part of the output is missing": done.truncated}
    for note in (note for note, holds in notes.items() if holds):
        print(f"ludus: {note}", file=sys.stderr)


async def _lines(prompt: str) -> AsyncIterator[str]:
    """Lines of standard input. The event loop runs while we wait: slots far away want to hear from us."""
    left = b""
    while True:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        while b"\n" not in left:
            await _readable(0)
            data = os.read(0, _LINE_BYTES)
            if not data:
                if left.strip():
                    yield left.decode(errors="replace")
                return
            left += data
        line, _, left = left.partition(b"\n")
        if line.strip():
            yield line.decode(errors="replace")


async def _readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except PermissionError:  # a plain file, which never makes anyone wait
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
