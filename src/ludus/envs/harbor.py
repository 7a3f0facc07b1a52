"""Folders of terminal tasks: Harbor, Terminal-Bench and endless-terminals (`ludus evaluate harbor --env.path DIR`).

The forms of the folders are in `task_folders.py`. The agent works in a slot whose root file system is the task's image
(`SandboxSpec.image`), as root and at absolute paths. The image is made by replaying the Dockerfile, by a container
engine for slots of this host, or by the backend. Tasks whose image cannot be made are skipped, with the reason.

A rollout is judged in a fresh slot of the same image, into which the agent's changes are copied: no processes, nothing
at /tests, /logs or /solution, no link that leads there, and nothing that the verifier's own programs would load
(`verifier_files.py`), unless the task needs it: what the reference solution changes is recorded when it is run, by
`ludus validate` or when it is first asked for, and arrives. Only then are the tests copied. The score of a Harbor task
is what its script writes to /logs/verifier; of the others, what pytest reports. An exit code never is one.

A score that pays is checked with controls (`harbor_controls.py`). What remains: the script runs the agent's programs as
the same user, if it runs them at all. A program that is written for these very tests can do what the script can.
"""

import asyncio
import importlib.util
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, Literal, Self

import msgspec

from ludus.env import Env, EnvFacts
from ludus.envs.harbor_controls import find_evidence
from ludus.envs.pytest_script import offer_pytest, run_script
from ludus.envs.rewards import read_reward
from ludus.envs.task_folders import TaskFolder, list_task_files, read_task_folder, read_task_folders
from ludus.envs.task_needs import read_facts, read_needs, write_needs
from ludus.envs.verifier_files import Needs, describe_loaded, find_loaded, list_guarded
from ludus.errors import ConfigError, VerifierError
from ludus.sandbox import WORKSPACE, ExecResult, ImageSpec, ImageSupport, Sandbox, SandboxSpec
from ludus.sandbox.agent_files import list_changes
from ludus.sandbox.archive import ArchiveEntry, make_archive
from ludus.sandbox.file_tree import CollectedFiles, Protection
from ludus.sandbox.limits import explain_exit
from ludus.sandbox.local.root_images import HOST, find_problem
from ludus.types import Rollout, Score, Task
from ludus.verify.control_tests import add_controls, make_failing
from ludus.verify.pytest import run_tests

LOGS = "/logs/verifier"
_STOPS_EARLY = re.compile(r"(?<!\S)(?:-\w*x\w*|--exitfirst|--maxfail\S*)(?!\S)")
"""Arguments with which pytest runs no test after one that fails, as controls do."""
_BINARIES = "/run/ludus/uv"
_OUTPUT_CHARS = 1500
_READ_BYTES = 65_536
_DISK_MB = 4096
_SOLVE_SECONDS = 900.0


class Harbor(Env, frozen=True):
    """Terminal tasks in folders: Harbor, Terminal-Bench, endless-terminals."""

    name: ClassVar[str] = "harbor"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="6 bundled; with `env.path`, one per task folder",
        licence="MIT (written for Ludus); with `env.path`, that of the folder",
        runs="agent and tests in slots (bwrap) or containers (docker, podman, modal, nomad) of the task's own image",
        scored="the reward that the task's script writes; pytest's report",
        speed="0.9 s per task (bundled ones)",
    )
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec(memory_mb=2048, disk_mb=1024, processes=1024, image=ImageSpec())
    hidden: ClassVar[tuple[str, ...]] = ("tests", "logs", "solution", "oracle")
    toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")

    path: str = ""
    """A folder of task folders, or one task folder; empty: the tasks that come with Ludus. If it has a folder with the
    name of the split, that is used."""
    bases: tuple[str, ...] = ()
    """What names after FROM mean: `ubuntu:24.04=/roots/noble` (a folder with a root file system), or
    `python=host` (the programs of this machine, read-only). Debian and Python images need no entry where debootstrap
    is installed and the driver is root."""
    engine: Literal["", "docker", "podman", "backend", "registry"] = ""
    """For slots of `bwrap`: build or pull the images with this container engine, any Dockerfile and any base. Empty:
    Dockerfiles are replayed, without an engine. Other backends make the images themselves: leave it empty, and it
    becomes `backend` (they build and pull) or `registry` (they only pull by name)."""
    system_changes: Literal["drop", "suspect", "keep"] = "drop"
    """What becomes of changes that the verifier's own programs would load, beyond those of the task's reference
    solution (`ludus validate` records them): programs, libraries, modules and settings. `drop`: the verifier does not
    see them. `suspect`: it does, and a rollout that is paid is recorded as suspect. `keep`: it sees changes in folders
    of programs and libraries (/usr, /bin, /lib …), for tasks that install software and have no reference solution;
    then the agent can also replace the verifier's programs."""
    controls: bool = True
    """Verify what is paid once more, with tests that must fail and with a script whose reward is known."""
    cache: str = ""
    """The folder for images that are made without an engine; empty: /var/cache/ludus/images for root, else
    ~/.cache/ludus/images."""

    def tasks(self, split: str) -> Iterator[Task]:
        folders, skipped = self._read_folders(split), self.skipped(split)
        if len(skipped) == len(folders):
            shown = "; ".join(f"{id}: {reason}" for id, reason in list(skipped.items())[:3])
            raise ConfigError(f"env.path: none of the {len(folders)} tasks can be run here: {shown}")
        for task in folders:
            if task.id not in skipped:
                answer = {"folder": self._name_folder(task), "files": task.hash_files()}
                yield Task(id=task.id, prompt=task.instruction, split=split, kind=task.kind, answer=answer)

    def skipped(self, split: str) -> Mapping[str, str]:
        found = {task.id: task.skip or self._find_obstacle(task) for task in self._read_folders(split)}
        return {id: reason for id, reason in found.items() if reason}

    def slot(self, task: Task, default: SandboxSpec) -> SandboxSpec:
        folder, own = self._find_folder(task), self.sandbox
        memory = folder.memory_mb if own and default.memory_mb == own.memory_mb else None
        disk = folder.storage_mb if own and default.disk_mb == own.disk_mb else None
        return msgspec.structs.replace(
            default,
            image=self._make_image(folder),
            memory_mb=memory or default.memory_mb,
            disk_mb=min(disk or default.disk_mb, _DISK_MB),
            env=(*default.env, *folder.env.items()),
            caches=(*default.caches, *self._offer_uv()),
        )

    def use_images(self, support: ImageSupport) -> Self:
        if support in ("any", "named"):
            return msgspec.structs.replace(self, engine="backend" if support == "any" else "registry")
        if self.engine in ("backend", "registry"):
            raise ConfigError(f"env.engine '{self.engine}' is for backends that make images themselves: leave it empty")
        return self

    async def protect(self, task: Task, files: CollectedFiles, box: Sandbox) -> Protection:
        folder = self._find_folder(task)
        facts = await read_facts(box, files.entries, folder.tests)
        find = partial(find_loaded, system=self.system_changes != "keep")
        needs = read_needs(self.cache, folder)
        found = find(files.entries, facts, needs, folder.instruction)
        if found and not needs.is_known and folder.solution is not None:
            needs = await self._learn_needs(task, folder, box)
            found = find(files.entries, facts, needs, folder.instruction)
        if self.system_changes == "suspect":
            return Protection(suspect=describe_loaded(found))
        return Protection(dropped=frozenset(found), folders=list_guarded(facts))

    async def _learn_needs(self, task: Task, folder: TaskFolder, box: Sandbox) -> Needs:
        """Run the reference solution in a slot that no agent has touched, and make the slot as it was. Its changes are
        recorded, so this is done once for a task."""
        try:
            async with asyncio.timeout(_SOLVE_SECONDS):
                await self.solve(task, box)
        except TimeoutError:
            write_needs(self.cache, folder, ())
        await box.reset()
        await self.setup(task, box)
        return read_needs(self.cache, folder)

    async def find_forgery(self, rollout: Rollout, box: Sandbox) -> tuple[str, ...]:
        folder = self._find_folder(rollout.task)
        if not self.controls or folder.form != "harbor" or rollout.score is None:
            return ()
        is_changed = await _fail_own_tests(box)
        run = partial(_run_control, folder, box)
        return await find_evidence(folder, rollout.score.value, run, is_changed=is_changed)

    async def setup(self, task: Task, box: Sandbox) -> None:
        """The image has everything. The folders are made so that an agent's link in their place is not copied."""
        await _prepare_folders(box)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        folder = self._find_folder(rollout.task)
        await _prepare_folders(box)
        await _link_uv(box)
        score = await _score(folder, box)
        if score.passed or not rollout.left_out:
            return score
        note = f"\nNot seen by the tests: {'; '.join(rollout.left_out[:3])}"
        return msgspec.structs.replace(score, feedback=score.feedback + note)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        assert box is not None
        folder = self._find_folder(task)
        if folder.solution is None:
            raise ConfigError(f"env.path: {folder.folder} has no reference solution (solution/solve.sh, solution.sh)")
        target = "/solution" if folder.form == "harbor" else "/oracle"
        source = folder.solution
        await box.upload(source, target if source.is_dir() else f"{target}/{source.name}")
        script = f"{target}/{'solve.sh' if source.is_dir() else source.name}"
        done = await box.exec(f"bash {script}", env=dict(folder.solution_env), cwd=WORKSPACE, timeout=3600, stdin=b"")
        await box.exec(f"rm -rf {target}")
        write_needs(self.cache, folder, await list_changes(box))
        return f"The solution ended with {explain_exit(done.exit_code, box.spec)}. {_show_end(done)}"

    # ---- folders --------------------------------------------------------------------------------------------------

    def _get_root(self) -> Path:
        if self.path:
            return Path(self.path).expanduser()
        return Path(str(files("ludus.envs").joinpath("data/harbor")))

    def _read_folders(self, split: str) -> list[TaskFolder]:
        root = self._get_root()
        return read_task_folders(root / split if (root / split).is_dir() else root)

    def _name_folder(self, task: TaskFolder) -> str:
        return task.folder.relative_to(self._get_root()).as_posix()

    def _find_folder(self, task: Task) -> TaskFolder:
        answer: Any = task.answer
        return read_task_folder(self._get_root() / answer["folder"])

    # ---- images ---------------------------------------------------------------------------------------------------

    def _make_image(self, folder: TaskFolder) -> ImageSpec:
        return ImageSpec(
            name=folder.image,
            folder=str(folder.build.absolute()) if folder.build and not (self.engine and folder.image) else "",
            engine=self.engine if self.engine in ("docker", "podman") else "",
            bases=self._read_bases(),
            cache=self.cache,
            seconds=folder.build_seconds,
        )

    def _read_bases(self) -> tuple[tuple[str, str], ...]:
        bases = () if self.path else (("python", HOST),)
        for entry in self.bases:
            name, _, folder = entry.partition("=")
            if not name or not folder:
                raise ConfigError(f"env.bases: '{entry}' is not NAME=FOLDER, such as ubuntu:24.04=/roots/noble")
            bases += ((name.strip(), folder.strip()),)
        return bases

    def _find_obstacle(self, folder: TaskFolder) -> str:
        if self.engine and folder.image:
            return ""
        if self.engine == "registry":
            return "it names no image (environment.docker_image), and the backend only pulls images by name"
        if self.engine:
            has_image = folder.build and (folder.build / "Dockerfile").is_file()
            return "" if has_image else "it has no Dockerfile, which a container engine needs: replay it on bwrap"
        if folder.build is None:
            return f"it has no Dockerfile, only the image {folder.image}: pull it with --env.engine docker"
        return find_problem(self._make_image(folder))

    def _offer_uv(self) -> tuple[tuple[str, str], ...]:
        """The programs of the package `uv`, for slots; none if it is not installed or slots may not read it."""
        found = _find_uv()
        if found is None:
            return ()
        programs = (found, found.with_name("uvx"))
        return tuple((str(path), f"{_BINARIES}/{path.name}") for path in programs if path.is_file())


def _find_uv() -> Path | None:
    spec = importlib.util.find_spec("uv")
    if spec is not None:
        from uv import find_uv_bin  # pyright: ignore  # the user's choice

        path = Path(str(find_uv_bin())).resolve()  # pyright: ignore
    else:
        binary = shutil.which("uv")
        path = Path(binary).resolve() if binary else None
    if path is None or not path.is_file():
        return None
    is_open = all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))
    return path if is_open or os.geteuid() != 0 else None


# ---- verifying ----------------------------------------------------------------------------------------------------


async def _prepare_folders(box: Sandbox) -> None:
    """Make the verifier's folders, empty."""
    folders = f"/tests {LOGS} /logs/agent /logs/artifacts"
    done = await box.exec(
        f"for f in /logs /tests; do [ ! -L $f ] || rm -f $f; done; rm -rf {folders} && mkdir -p {folders}",
        cwd="/",
    )
    if done.exit_code != 0:
        raise VerifierError(f"the folders {folders} cannot be made: {done.text.strip()[-300:]}")


async def _link_uv(box: Sandbox) -> None:
    """Put links to uv, and the file that sets the PATH, where uv's installer puts them."""
    await box.exec(
        f'[ -x {_BINARIES}/uv ] && mkdir -p "$HOME/.local/bin" && cd "$HOME/.local/bin" && '
        f"ln -sf {_BINARIES}/* . && printf '%s\\n' 'export PATH=\"$HOME/.local/bin:$PATH\"' >env",
        cwd="/",
    )


async def _score(folder: TaskFolder, box: Sandbox) -> Score:
    if folder.form == "endless":
        tests = {folder.tests.name: folder.tests.read_text(encoding="utf-8")}
        score = await run_tests(box, tests, seconds=folder.test_seconds)
        return msgspec.structs.replace(score, value=score.soft)
    if folder.tests.is_dir():
        await box.upload(folder.tests, "/tests")
    if folder.form == "harbor":
        return read_reward(*await _run_harbor(folder, box))
    if folder.script is None:
        tests = {path.relative_to(folder.tests).as_posix(): path.read_text() for path in folder.tests.rglob("*.py")}
        return await run_tests(box, tests, seconds=folder.test_seconds)
    await box.upload(folder.script, "/tests/run-tests.sh")
    script = folder.script.read_text(errors="replace")
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.tests.glob("test_*.py")}
    tests, added = add_controls({} if _STOPS_EARLY.search(script) else sources)
    for name, text in tests.items():
        await box.write(f"/tests/{name}", text.encode())
    return await run_script(
        box,
        "bash /tests/run-tests.sh",
        sources,
        env=dict(folder.test_env),
        seconds=folder.test_seconds,
        script=script,
        controls=added,
    )


async def _fail_own_tests(box: Sandbox) -> bool:
    """Change the tests that the image has in its working folder, where a script may run them, so that they must fail.
    False if there are none."""
    find = "find tests test -type f '(' -name 'test_*.py' -o -name '*_test.py' ')' -size -256k 2>/dev/null | head -100"
    paths = (await box.exec(find, cwd=WORKSPACE)).stdout.decode(errors="replace").splitlines()
    is_changed = False
    for path in paths:
        try:
            text = make_failing((await box.read(f"{WORKSPACE}/{path}")).decode())
        except (OSError, ValueError, SyntaxError):
            continue
        if text:
            await box.write(f"{WORKSPACE}/{path}", text.encode())
            is_changed = True
    return is_changed


async def _run_control(folder: TaskFolder, box: Sandbox, tests: Mapping[str, bytes]) -> str:
    """The reward that the script writes with other tests in place of the task's; empty if it writes none."""
    await _prepare_folders(box)
    await _link_uv(box)
    await box.unpack(make_archive(ArchiveEntry(path, 0o755, data=data) for path, data in tests.items()), "/tests")
    try:
        return (await _run_harbor(folder, box))[0]
    except VerifierError:
        return ""


async def _run_harbor(folder: TaskFolder, box: Sandbox) -> tuple[str, str]:
    """Run the script. Returns the reward that it has written, and the end of its output."""
    script = _read_scripts(folder.tests)
    variables = await offer_pytest(box, script) if "pytest" in script else {}
    done = await box.exec(
        "bash /tests/test.sh",
        env={"PYTHONNOUSERSITE": "1", **variables, **folder.test_env},
        cwd=WORKSPACE,
        timeout=folder.test_seconds,
        stdin=b"",
    )
    await box.settle()  # what the script has left running writes no reward
    if done.timed_out:
        raise VerifierError(f"tests/test.sh did not end within {folder.test_seconds:g} s (verifier.timeout_sec)")
    for name in ("reward.json", "reward.txt"):
        path = f"{LOGS}/{name}"
        if (await box.exec(f"[ -f {quote(path)} ] && [ ! -L {quote(path)} ]")).exit_code == 0:
            text = (await box.read(path, max_bytes=_READ_BYTES)).decode(errors="replace")
            return text, _show_end(done)
    raise VerifierError(
        f"tests/test.sh wrote no {LOGS}/reward.txt ({explain_exit(done.exit_code, box.spec)}). If it fetches "
        f"something, allow the network: --sandbox.network true. {_show_end(done)}"
    )


def _read_scripts(tests: Path) -> str:
    """What the tests have of scripts, and of lists of packages."""
    return "\n".join(
        path.read_text(errors="replace") for path in list_task_files(tests) if path.suffix in (".sh", ".txt")
    )


def _show_end(done: ExecResult) -> str:
    return done.text.strip()[-_OUTPUT_CHARS:]
