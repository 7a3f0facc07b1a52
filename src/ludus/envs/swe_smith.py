"""Repair repositories, in the format of SWE-smith and SWE-bench: an issue in words, and tests that must pass.

Three items in a small repository, written for Ludus, come with the package. A data set is read from a file
(`--env.path rows.jsonl`, Parquet too) or from the hub (`--env.path hub:NousResearch/SWE-smith-oracle`). A row has
`instance_id`, `repo`, `base_commit`, `problem_statement`, `FAIL_TO_PASS` and `PASS_TO_PASS` (lists, or lists as JSON
text), and may have `text`, `patch` (the fix; with `--env.patch_is bug`, as in SWE-smith itself, the bug) and
`test_patch`. Repositories are fetched from `repo_base_url`, which may be a folder of this host. `scripts/make-swe-bugs`
makes rows for a repository of your own.

The agent works in /workspace/<repository>, in a working tree whose only commit is the state to repair: no history, and
none of the test files in which a test has to change from failing to passing. Its `.venv` sees the packages of the slot.
A fresh slot is verified: test files, conftest files and settings of pytest are the original ones, whatever the agent
did to them, and all tests of both lists must pass. `soft` is the share that passes.

Without a network in slots (the default) the repository is put on Python's path, and its dependencies must be in the
slot's Python. With one (`--sandbox.network true`), or with wheels (`--env.wheels FOLDER`), pip installs it with its
dependencies, in the slot of the agent and again in that of `verify`. With a network an agent can fetch the repaired
release of the repository: prefer wheels.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from ludus.env import Env, EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_bundled, load_rows
from ludus.envs.repositories import (
    Start,
    StartFolders,
    list_comparing_classes,
    make_repository,
    make_start,
    read_tests,
)
from ludus.envs.repository_tests import run_repository_tests
from ludus.errors import SetupError
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.types import Positive, Rollout, Score, Task, Whole
from ludus.verify.pytest import place_pytest

BUNDLED_TRAIN = 2
WHEELS = "/wheels"


class SweItem(Struct, frozen=True):
    """A row of SWE-smith-oracle; other fields are ignored."""

    instance_id: str
    repo: str
    problem_statement: str
    fail_to_pass: list[str] | str = msgspec.field(name="FAIL_TO_PASS")
    pass_to_pass: list[str] | str = msgspec.field(name="PASS_TO_PASS")
    base_commit: str = ""
    text: str = ""
    patch: str = ""
    test_patch: str = ""


class SweAnswer(Struct, frozen=True):
    """The answer of a task."""

    start: Start
    ids: list[str]
    """The tests that must pass."""
    fix: str
    """The patch that solves the task; empty if the row has none."""
    reverse: bool
    """Whether `fix` has to be applied in reverse: it is the bug."""


class SweSmithOracle(Env, frozen=True):
    """Repair repositories so that their failing tests pass (SWE-smith's format)."""

    name: ClassVar[str] = "swe-smith-oracle"
    facts: ClassVar[EnvFacts] = EnvFacts(
        licence="MIT (written for Ludus); that of the repositories for others",
        runs="agent in a slot with a working tree; tests in a fresh one",
        scored="all tests of FAIL_TO_PASS and PASS_TO_PASS pass; soft: the share",
        extra="`hub` for paths with `hub:`",
        speed="1.3 s per task (bundled ones)",
    )
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec(memory_mb=2048, disk_mb=1024)
    toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")
    protected: ClassVar[tuple[str, ...]] = (
        *(
            "*/.venv",
            "*/sitecustomize.py",
            "*/usercustomize.py",
            "*/tests",
            "*/test_*.py",
            "*/*_test.py",
            "*/conftest.py",
        ),
        *("*/pytest.toml", "*/.pytest.toml", "*/pytest.ini", "*/.pytest.ini", "*/pyproject.toml", "*/tox.ini"),
        *("*/setup.cfg", "*.[eE][gG][gG]-[iI][nN][fF][oO]", "*.[dD][iI][sS][tT]-[iI][nN][fF][oO]"),
    )

    path: str = ""
    """A JSONL or Parquet file, or `hub:<dataset>`; empty: the bundled items."""
    max_items: Whole = 0
    """Use only this many tasks; 0: all."""
    shuffle: bool = True
    """Whether the order of the tasks is sampled from `seed`."""
    seed: int = 0
    """The seed of that order."""
    python_only: bool = True
    """Leave out rows whose PASS_TO_PASS has other tests than those of Python files."""
    score_include_fail_to_pass: bool = True
    """Whether the tests of FAIL_TO_PASS count. If not, an agent that calls no tool scores 0."""
    prompt_mode: Literal["problem_statement", "problem_statement+text"] = "problem_statement"
    """Whether the prompt has the row's `text` too, which shows files of the repository."""
    patch_is: Literal["fix", "bug"] = "fix"
    """What the row's `patch` is: the fix of `base_commit`, or a bug that is put into it first."""
    repo_base_url: str = "https://github.com"
    """Where repositories are: a URL, or a folder that has them as <owner>/<name>."""
    wheels: str = ""
    """A folder of wheels that pip installs from, instead of the network. Slots see it read-only."""
    cache: str = ""
    """Where repositories are kept; empty: /var/cache/ludus/repositories for root, else ~/.cache/ludus/repositories."""
    install_timeout_s: Positive = 600.0
    """Time for fetching a repository, and for installing it."""
    test_timeout_s: Positive = 600.0
    """Time for all tests of a task."""

    def tasks(self, split: str) -> Iterator[Task]:
        if self.path:
            rows = load_rows(self.path, SweItem, split)
        else:
            bundled = load_bundled("swe_smith.jsonl", SweItem)
            rows = {"train": bundled[:BUNDLED_TRAIN], "test": bundled[BUNDLED_TRAIN:]}.get(split, [])
        named = list(give_ids(rows, ["instance_id"]))
        if self.shuffle:
            random.Random(self.seed).shuffle(named)
        made = (task for id, row in named if (task := self._make_task(id, row, split)) is not None)
        for number, task in enumerate(made, 1):
            yield task
            if number == self.max_items:
                return

    async def prepare(self, task: Task) -> None:
        await self._make_start(task)

    def slot(self, task: Task, default: SandboxSpec) -> SandboxSpec:
        base = self._locate_start(_read_answer(task).start)
        wheels = ((str(Path(self.wheels).expanduser().absolute()), WHEELS),) if self.wheels else ()
        return msgspec.structs.replace(default, base=(str(base),), caches=(*default.caches, *wheels))

    async def setup(self, task: Task, box: Sandbox) -> None:
        name = _read_answer(task).start.name
        done = await box.exec(
            self._write_install(box.spec.network), cwd=f"{WORKSPACE}/{name}", timeout=self.install_timeout_s
        )
        if done.exit_code:
            what = f"not done within {self.install_timeout_s:g} s" if done.timed_out else f"exit code {done.exit_code}"
            raise SetupError(f"{name} cannot be installed: {what}: {done.text.strip()[-1000:]}")
        packages = done.stdout.decode().strip().rpartition("\n")[2]
        if packages.startswith("/"):
            await place_pytest(box, packages)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        if not self.score_include_fail_to_pass and not any(t.completion.message.calls for t in rollout.turns):
            return Score.of(0.0, "No tool was called.")
        answer = _read_answer(rollout.task)
        folders = await self._make_start(rollout.task)
        tests = await asyncio.to_thread(read_tests, folders.tests)
        folder = f"{WORKSPACE}/{answer.start.name}"
        python = box.resolve(f"{folder}/.venv/bin/python")
        known = await asyncio.to_thread(list_comparing_classes, folders.base)
        return await run_repository_tests(
            box, folder, answer.ids, tests, python=python, seconds=self.test_timeout_s, known=known
        )

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        assert box is not None
        answer = _read_answer(task)
        if not answer.fix.strip():
            raise ValueError(f"the row of '{task.id}' has no patch, so its solution is not known")
        words = "git apply --whitespace=nowarn" + (" -R" if answer.reverse else "")
        text = answer.fix if answer.fix.endswith("\n") else f"{answer.fix}\n"
        done = await box.exec(f"{words} -", stdin=text.encode(), cwd=f"{WORKSPACE}/{answer.start.name}")
        if done.exit_code:
            raise ValueError(f"patch: it does not apply: {done.text.strip()[-500:]}")
        return "Repaired."

    # ---- repositories ---------------------------------------------------------------------------------------------

    async def _make_start(self, task: Task) -> StartFolders:
        start, folder = _read_answer(task).start, self._find_cache()
        if not self.path:
            await asyncio.to_thread(make_repository, folder / "bundled" / start.repo, _load_bundled_repository())
        return await asyncio.to_thread(
            make_start, start, self._find_url(start.repo), folder, seconds=self.install_timeout_s
        )

    def _locate_start(self, start: Start) -> Path:
        return start.locate(self._find_cache()).base

    def _find_cache(self) -> Path:
        if self.cache:
            return Path(self.cache).expanduser().absolute()
        return (Path("/var/cache") if os.geteuid() == 0 else Path.home() / ".cache") / "ludus" / "repositories"

    def _find_url(self, repo: str) -> str:
        if not self.path:
            return str(self._find_cache() / "bundled" / repo)
        base = self.repo_base_url.rstrip("/")
        return f"{base}/{repo}" if "://" in base else str(Path(base).expanduser().absolute() / repo)

    def _write_install(self, network: bool) -> str:
        """The command that installs the repository in its `.venv`."""
        make = "python3 -m venv --without-pip --system-site-packages .venv"
        if not (network or self.wheels):
            return f"{make} && .venv/bin/python -c {quote(_ADD_PATH)}"
        options = f"--no-index --find-links {WHEELS}" if self.wheels else ""
        return f"{make} && python3 -m pip --python .venv/bin/python install -q {options} -e . pytest"

    # ---- tasks ----------------------------------------------------------------------------------------------------

    def _make_task(self, id: str, row: DataRow[SweItem], split: str) -> Task | None:
        item = row.item
        failing = _read_ids(row, "FAIL_TO_PASS", item.fail_to_pass)
        passing = _read_ids(row, "PASS_TO_PASS", item.pass_to_pass)
        if self.python_only and not all(".py::" in id for id in passing):
            return None
        if not failing and self.score_include_fail_to_pass:
            raise row.refuse("FAIL_TO_PASS: it is empty, so doing nothing would pass")
        for name in ("repo", "problem_statement"):
            if not getattr(item, name).strip():
                raise row.refuse(f"{name}: it is empty")
        if not item.base_commit.strip() and self.patch_is == "fix":
            raise row.refuse("base_commit: it is missing (rows of SWE-smith itself need env.patch_is bug)")
        if self.patch_is == "bug" and not item.patch.strip():
            raise row.refuse("patch: it is empty, but env.patch_is is bug")
        ids = sorted({*passing, *failing} if self.score_include_fail_to_pass else {*passing})
        start = Start(
            repo=item.repo,
            commit=item.base_commit or "HEAD",
            name=_name_folder(item.repo),
            patch=item.patch if self.patch_is == "bug" else "",
            test_patch=item.test_patch,
            hidden=tuple(sorted({id.partition("::")[0] for id in failing})),
            tests=tuple(sorted({id.partition("::")[0] for id in ids})),
        )
        answer = SweAnswer(start, ids, item.patch, self.patch_is == "bug")
        prompt = _write_prompt(item, start.name, self.prompt_mode == "problem_statement+text")
        return Task(id=id, prompt=prompt, split=split, kind=item.repo, answer=msgspec.to_builtins(answer))


_ADD_PATH = """
import importlib.util, os, sysconfig
folders = [os.getcwd(), *(p for p in [os.path.join(os.getcwd(), "src")] if os.path.isdir(p))]
packages = sysconfig.get_path("purelib")
with open(os.path.join(packages, "repository.pth"), "w") as file:
    file.write("\\n".join(folders) + "\\n")
print("" if importlib.util.find_spec("pytest") else packages)
"""
"""Puts the repository on the path of its environment. Prints where packages are if there is no pytest."""


def _read_ids(row: DataRow[SweItem], field: str, value: list[str] | str) -> list[str]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value or "[]", type=list[str])
        except msgspec.DecodeError as error:
            raise row.refuse(f"{field}: it should be a list of test ids: {error}") from None
    for id in value:
        path = id.partition("::")[0]
        if path.startswith("/") or ".." in path.split("/"):
            raise row.refuse(f"{field}: '{path}' is not a path in the repository")
    return value


def _read_answer(task: Task) -> SweAnswer:
    return msgspec.convert(task.answer, SweAnswer)


def _name_folder(repo: str) -> str:
    """The folder of a repository: `oauthlib` for `swesmith/oauthlib__oauthlib.1fd5253`."""
    name = repo.rstrip("/").rpartition("/")[2].removesuffix(".git")
    if "__" in name and "." in name:
        name = name.partition("__")[2].rpartition(".")[0]
    return name if name.strip(".") else "repository"


def _write_prompt(item: SweItem, name: str, with_text: bool) -> str:
    text = f"\n\n{item.text.strip()}" if with_text and item.text.strip() else ""
    return (
        f"The repository {item.repo} is in {WORKSPACE}/{name}. Change its code so that the issue below is solved. "
        "Tests that you do not see will judge it, together with the repository's own; changes to tests do not count. "
        f"`.venv/bin/python` in that folder runs the code. Every command gets no input.\n\n"
        f"{item.problem_statement.strip()}{text}"
    )


@cache
def _load_bundled_repository() -> dict[str, Any]:
    """The branches of the bundled repository: files by path, by branch."""
    return msgspec.json.decode(files("ludus.envs").joinpath("data/shelf.json").read_bytes(), type=dict[str, Any])
