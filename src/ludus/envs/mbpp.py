"""Write Python functions from a sentence, in MBPP's format: a description and a list of assertions.

Six items written for Ludus come with the package. The published set (974 tasks, CC BY 4.0) is read from a file
(`--env.path mbpp.jsonl`) or from the hub (`--env.path hub:google-research-datasets/mbpp`). A row has `task_id`, `text`
or `prompt`, `code` and `test_list`, and may have `challenge_test_list`, `test_setup_code` and `test_imports`.

The prompt names the functions with their parameters and shows the first test; the others are hidden. Each assertion is
a test of its own: `soft` is the share that passes. A row whose tests make objects of the solution's own classes cannot
be tested in a process of its own: it is left out (see `ludus.verify.function_tests`).
"""

import ast
from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct, field

from ludus.env import EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_bundled, load_rows
from ludus.envs.function_env import FunctionEnv, FunctionTests, check_python, list_functions, list_names, make_task
from ludus.types import Task, Whole

BUNDLED_TRAIN = 4


class MbppItem(Struct, frozen=True):
    """A row of MBPP, of the whole set or the sanitized one."""

    task_id: int | str
    code: str
    test_list: list[str]
    text: str = ""
    prompt: str = ""
    challenge_test_list: list[str] = field(default_factory=list[str])
    test_setup_code: str = ""
    test_imports: list[str] = field(default_factory=list[str])


class Mbpp(FunctionEnv, frozen=True):
    """Write Python functions from a sentence, with hidden tests (MBPP's format)."""

    name: ClassVar[str] = "mbpp"
    facts: ClassVar[EnvFacts] = EnvFacts(
        licence="MIT (written for Ludus); CC-BY-4.0 for the published set, with `env.path`",
        runs="agent in a slot; tests and solution in two processes of a fresh one",
        scored="all hidden tests pass; soft: the share",
        extra="`hub` for paths with `hub:`",
        speed="0.6 s per task",
    )

    path: str = ""
    """A JSONL or Parquet file in MBPP's format, or `hub:<dataset>`; empty: the bundled items."""
    shown_tests: Whole = 1
    """How many of a task's tests the prompt shows."""

    def tasks(self, split: str) -> Iterator[Task]:
        if self.path:
            rows = load_rows(self.path, MbppItem, split)
        else:
            bundled = load_bundled("mbpp.jsonl", MbppItem)
            rows = {"train": bundled[:BUNDLED_TRAIN], "test": bundled[BUNDLED_TRAIN:]}.get(split, [])
        for id, row in give_ids(rows, ["task_id"]):
            if (task := self._make_task(id, row, split)) is not None:
                yield task

    def _make_task(self, id: str, row: DataRow[MbppItem], split: str) -> Task | None:
        item, text = row.item, row.item.text or row.item.prompt
        if not text.strip():
            raise row.refuse("text: it is empty, and so is prompt")
        if problem := check_python(item.code, "code"):
            raise row.refuse(problem)
        tests = [*item.test_list, *item.challenge_test_list]
        if not item.test_list:
            raise row.refuse("test_list: it is empty")
        for test in tests:
            if problem := check_python(test, "test_list"):
                raise row.refuse(problem)
        defined = list_functions(item.code)
        used = set[str]().union(*map(list_names, tests))
        names = [name for name in defined if name in used]
        if not names:
            raise row.refuse("test_list: the tests call no function of the code")
        if _needs_objects(item, used):
            return None
        signatures = [f"def {name}({ast.unparse(defined[name].args)}):" for name in names]
        given = "\n\n\n".join(f"{line}\n    ..." for line in signatures) + "\n"
        answer = FunctionTests(
            names=names,
            tests=tests,
            solution=item.code,
            preamble="\n".join([*item.test_imports, item.test_setup_code]),
        )
        prompt = (
            f"{text.strip()}\n\nWrite it in solution.py, which has this so far:\n\n```python\n{given.rstrip()}\n```"
        )
        if shown := item.test_list[: self.shown_tests]:
            prompt += "\n\nFor example, this must hold:\n\n```python\n" + "\n".join(shown) + "\n```"
        return make_task(id, prompt, given, answer, split)


def _needs_objects(item: MbppItem, used: set[str]) -> bool:
    """Whether the tests or their setup use classes of the solution."""
    classes = {node.name for node in ast.parse(item.code).body if isinstance(node, ast.ClassDef)}
    return not classes.isdisjoint(used | list_names(item.test_setup_code))
