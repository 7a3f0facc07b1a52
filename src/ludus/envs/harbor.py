"""Folders of terminal tasks: Harbor, Terminal-Bench and endless-terminals (`ludus evaluate harbor --env.path DIR`).

The forms of the folders are in `task_folders.py`. The agent works in a slot whose root file system is the task's image
(`SandboxSpec.image`), as root and at absolute paths. The image is made by replaying the Dockerfile, by a container
engine for slots of this host, or by the backend. Tasks whose image cannot be made are skipped, with the reason.

A rollout is judged in a fresh slot of the same image, into which the agent's changes are copied: no processes, nothing
at /tests, /logs or /solution, no link that leads there, no file that a shell, Python, pip or uv reads when it starts,
and, unless `system_changes` is `keep`, no change of the folders with programs and libraries. So bash, pytest and uv are
the image's, whatever the agent did to them. Only then are the tests copied. The score of a Harbor task is what its
script writes to /logs/verifier; of the others, what pytest reports. An exit code never is one.

What remains: the script runs the agent's programs as the same user, if it runs them at all. A program that is written
for it can do what the script can. And with `keep`, the agent may have replaced any program.
"""

import importlib.util
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, Literal, Self

import msgspec

from ludus.env import Env, EnvFacts
from ludus.envs.task_folders import TaskFolder, read_task_folder, read_task_folders
from ludus.errors import ConfigError, VerifierError
from ludus.sandbox import WORKSPACE, ExecResult, ImageSpec, ImageSupport, Sandbox, SandboxSpec
from ludus.sandbox.local.root_images import HOST, find_problem
from ludus.types import Rollout, Score, Task
from ludus.verify.pytest import run_tests
from ludus.verify.pytest_script import offer_pytest, run_script
from ludus.verify.rewards import read_reward

LOGS = "/logs/verifier"
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "opt/ludus", "etc/ld.so.*", "etc/alternatives")
_STARTUP = (
    *("etc/profile", "etc/profile.d", "etc/bash.bashrc", "etc/environment", "etc/pip.conf", "etc/python*", "etc/uv"),
    *(".dockerenv", "pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "conftest.py"),  # of / itself
    *(f"{home}/{name}" for home in ("root", "home/*") for name in (
        ".bash*", ".profile", ".pydistutils.cfg", ".pip", ".config/pip", ".config/uv", ".cache/uv", ".local/bin",
        ".local/lib/python*", ".local/share/uv", ".cargo",
    )),
)  # fmt: skip
"""What a shell, Python, pip, uv or pytest reads when it starts, unless it is told not to."""
_MODULES = (
    *("*/sitecustomize.py", "*/usercustomize.py"),
    *(f"{folder}/{name}" for folder in ("app", "workspace", "root", "home/user") for name in ("pytest.py", "pytest")),
)
"""Modules that would be imported instead of Python's or pytest's own."""
_BINARIES = "/run/ludus/uv"
_OUTPUT_CHARS = 1500
_READ_BYTES = 65_536
_DISK_MB = 4096


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
    system_changes: Literal["drop", "keep"] = "drop"
    """Whether the verifier sees what the agent changed in folders of programs and libraries (/usr, /bin, /lib …).
    `keep` is for tasks that install software; then the agent can also replace the verifier's programs."""
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

    def slot(self, task: Task) -> SandboxSpec:
        folder, spec = self._find_folder(task), super().slot(task)
        default = Harbor.sandbox
        assert default is not None
        memory = folder.memory_mb if spec.memory_mb == default.memory_mb else None
        disk = folder.storage_mb if spec.disk_mb == default.disk_mb else None
        return msgspec.structs.replace(
            spec,
            image=self._make_image(folder),
            memory_mb=memory or spec.memory_mb,
            disk_mb=min(disk or spec.disk_mb, _DISK_MB),
            env=(*spec.env, *folder.env.items()),
            caches=(*spec.caches, *self._offer_uv()),
        )

    def use_images(self, support: ImageSupport) -> Self:
        if support in ("any", "named"):
            return msgspec.structs.replace(self, engine="backend" if support == "any" else "registry")
        if self.engine in ("backend", "registry"):
            raise ConfigError(f"env.engine '{self.engine}' is for backends that make images themselves: leave it empty")
        return self

    def list_protected(self) -> tuple[str, ...]:
        return (*_STARTUP, *_MODULES, *(_SYSTEM if self.system_changes == "drop" else ()))

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
        return f"The solution ended with exit code {done.exit_code}. {_show_end(done)}"

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
        return await _run_harbor(folder, box)
    if folder.script is None:
        tests = {path.relative_to(folder.tests).as_posix(): path.read_text() for path in folder.tests.rglob("*.py")}
        return await run_tests(box, tests, seconds=folder.test_seconds)
    await box.upload(folder.script, "/tests/run-tests.sh")
    sources = {path.name: path.read_text(encoding="utf-8") for path in folder.tests.glob("test_*.py")}
    return await run_script(
        box, "bash /tests/run-tests.sh", sources, env=dict(folder.test_env), seconds=folder.test_seconds
    )


async def _run_harbor(folder: TaskFolder, box: Sandbox) -> Score:
    variables = await offer_pytest(box) if _mentions_pytest(folder.tests) else {}
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
            return read_reward(text, _show_end(done))
    raise VerifierError(
        f"tests/test.sh wrote no {LOGS}/reward.txt (exit code {done.exit_code}). If it fetches something, allow the "
        f"network: --sandbox.network true. {_show_end(done)}"
    )


def _mentions_pytest(tests: Path) -> bool:
    return any(b"pytest" in path.read_bytes() for path in tests.rglob("*.sh"))


def _show_end(done: ExecResult) -> str:
    return done.text.strip()[-_OUTPUT_CHARS:]
