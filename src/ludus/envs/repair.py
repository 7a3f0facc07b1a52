"""Repair Python programs: the agent gets a program with a bug, and hidden tests judge what it leaves.

Six items written for Ludus come with the package. A data set of your own is a file (`--env.path repairs.jsonl`) with
one of two kinds of rows:

- `id`, `prompt`, `files` (the program with its bug: texts by path), `tests` (pytest files by name) and `solution` (the
  files that change). Prefer tests that start the program with `subprocess`: they never share a process with the agent's
  code (docs/sandboxes.md).
- HumanEvalPack's: `task_id`, `declaration`, `buggy_solution`, `canonical_solution`, `entry_point`, `test`, and
  optionally `import`, `bug_type`, `docstring`. The hub has it as `hub:bigcode/humanevalpack:python`, split `test` (164
  tasks, MIT licence). Its functions run in a process of their own (`ludus.verify.function_tests`).

All tests must pass; `soft` is the share that passes.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import ClassVar

from msgspec import Struct, field

from ludus.env import EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_bundled, load_rows
from ludus.envs.function_env import FunctionEnv, FunctionTests, check_python, list_functions, make_task
from ludus.errors import VerifierError
from ludus.sandbox import Sandbox
from ludus.types import Rollout, Score, Task
from ludus.verify.function_tests import drop_calls, split_check
from ludus.verify.pytest import count_cases, run_tests

BUNDLED_TRAIN = 4
_PACK_FIELDS = ("task_id", "declaration", "buggy_solution", "canonical_solution", "entry_point", "test")
_OWN_FIELDS = ("id", "prompt", "files", "tests", "solution")
_ASK = "The program has a bug. Find it and repair it in place."


class RepairItem(Struct, frozen=True, rename={"imports": "import"}):
    """A row of either kind. Fields that its kind needs are checked afterwards."""

    id: str = ""
    prompt: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    tests: Mapping[str, str] = field(default_factory=dict[str, str])
    solution: Mapping[str, str] = field(default_factory=dict[str, str])
    kind: str = ""
    task_id: str = ""
    imports: str = ""
    declaration: str = ""
    docstring: str = ""
    buggy_solution: str = ""
    canonical_solution: str = ""
    entry_point: str = ""
    test: str = ""
    bug_type: str = ""


class Repair(FunctionEnv, frozen=True):
    """Repair Python programs with a bug; hidden tests judge them."""

    name: ClassVar[str] = "repair"
    facts: ClassVar[EnvFacts] = EnvFacts(
        licence="MIT (written for Ludus); that of the data for others",
        runs="agent in a slot; tests and program in two processes of a fresh one",
        scored="all hidden tests pass; soft: the share",
        extra="`hub` for paths with `hub:`",
        speed="0.7 s per task",
    )

    path: str = ""
    """A JSONL or Parquet file with one of the two kinds of rows, or `hub:<dataset>`; empty: the bundled items."""

    def tasks(self, split: str) -> Iterator[Task]:
        if self.path:
            rows = load_rows(self.path, RepairItem, split)
        else:
            bundled = load_bundled("repair.jsonl", RepairItem)
            rows = {"train": bundled[:BUNDLED_TRAIN], "test": bundled[BUNDLED_TRAIN:]}.get(split, [])
        for id, row in give_ids(rows, ["task_id", "id"]):
            make = _make_function_task if row.item.buggy_solution else _make_program_task
            yield make(id, row, split)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        answer = rollout.task.answer
        if "names" in answer:
            return await super().verify(rollout, box)
        assert box is not None
        return await run_tests(box, answer["tests"], seconds=self.test_seconds, separate=answer["separate"])

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        if "names" in task.answer:
            return await super().solve(task, box)
        assert box is not None
        for path, text in task.answer["solution"].items():
            await box.write(path, text.encode())
        return "Repaired."


def _make_program_task(id: str, row: DataRow[RepairItem], split: str) -> Task:
    item = row.item
    _require(row, _OWN_FIELDS)
    for path in (*item.files, *item.solution):
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise row.refuse(f"files: '{path}' is not a path below the workspace")
    try:
        count_cases(item.tests)
    except VerifierError as error:
        raise row.refuse(f"tests: {error}") from None
    own = {PurePosixPath(path).parts[0].removesuffix(".py") for path in item.files}
    separate = own.isdisjoint(name for text in item.tests.values() for name in _list_imports(text))
    answer = {"tests": dict(item.tests), "solution": dict(item.solution), "separate": separate}
    prompt = f"{_ASK}\n\n{item.prompt.strip()}\n\nIts files: {', '.join(item.files)}."
    return Task(id=id, prompt=prompt, files=item.files, split=split, kind=item.kind, answer=answer)


def _make_function_task(id: str, row: DataRow[RepairItem], split: str) -> Task:
    item = row.item
    _require(row, _PACK_FIELDS)
    head = f"{item.imports}\n{item.declaration}"
    for name, code in (("buggy_solution", head + item.buggy_solution), ("test", item.test)):
        if problem := check_python(code, name):
            raise row.refuse(problem)
    if item.entry_point not in list_functions(head + item.buggy_solution):
        raise row.refuse(f"entry_point: the code defines no function '{item.entry_point}'")
    tests = split_check(item.test, "check", item.entry_point)
    if not tests:
        raise row.refuse("test: it has no function check(…) with assertions")
    answer = FunctionTests(
        names=[item.entry_point],
        tests=tests,
        solution=head + item.canonical_solution,
        preamble=f"{head}{item.canonical_solution}\n{drop_calls(item.test, 'check')}",
    )
    what = f"\n\nWhat {item.entry_point} should do:\n\n{item.docstring.strip()}" if item.docstring.strip() else ""
    prompt = f"{_ASK} It is in solution.py; keep the name and parameters of {item.entry_point}.{what}"
    return make_task(id, prompt, head + item.buggy_solution, answer, split, item.bug_type)


def _require(row: DataRow[RepairItem], names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(row.item, name)
        if not (value.strip() if isinstance(value, str) else value):
            raise row.refuse(f"{name}: it is missing or empty (a row has {', '.join(names)})")


def _list_imports(code: str) -> Iterator[str]:
    """The top-level names of the modules that some code imports."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
