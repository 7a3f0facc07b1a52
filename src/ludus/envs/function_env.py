"""What the environments about single Python functions share: `humaneval`, `mbpp` and `repair`.

The slot has `solution.py`, which begins with what the task gives: a signature, or a program with a bug. The agent edits
it. An agent without tools answers with a code block instead: if `solution.py` was not changed, the last Python block of
the answer is added to it.

The tests call the functions in another process (`ludus.verify.function_tests`), so the agent's code sees neither tests
nor expected values.
"""

import ast
import re
from typing import Any, ClassVar

from msgspec import Struct, to_builtins

from ludus.env import Env
from ludus.sandbox import Sandbox
from ludus.types import Positive, Rollout, Score, Task
from ludus.verify.function_tests import check_functions

MODULE = "solution"
FILE = "solution.py"
_BLOCK = re.compile(r"^```(?:python|py|python3)?[ \t]*\n(.*?)^```", re.S | re.M)


class FunctionTests(Struct, frozen=True):
    """The answer of a task: the tests and a solution that passes them."""

    names: list[str]
    """The functions that the tests call."""
    tests: list[str]
    solution: str
    """The whole of `solution.py`."""
    preamble: str = ""


class FunctionEnv(Env, frozen=True):
    """Base class of environments about single functions. Derived classes make the tasks with `make_task`."""

    toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")

    test_seconds: Positive = 60.0
    """The time limit of all tests of a task together. One call may take a sixth of it."""

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        tests, given = rollout.task.answer, rollout.task.files[FILE]
        await _place_answer(rollout.answer, given, box)
        return await check_functions(
            box,
            MODULE,
            tests["names"],
            tests["tests"],
            preamble=tests["preamble"],
            call_seconds=self.test_seconds / 6,
            seconds=self.test_seconds,
        )

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        assert box is not None
        await box.write(FILE, task.answer["solution"].encode())
        return "Done."


def make_task(id: str, prompt: str, given: str, answer: FunctionTests, split: str, kind: str = "") -> Task:
    """A task. `given`: what `solution.py` begins with."""
    return Task(id=id, prompt=prompt, files={FILE: given}, split=split, kind=kind, answer=to_builtins(answer))


async def _place_answer(answer: str, given: str, box: Sandbox) -> None:
    """Add the code block of an answer to `solution.py`, if that is as it was."""
    blocks = _BLOCK.findall(answer)
    if not blocks:
        return
    try:
        found = (await box.read(FILE)).decode(errors="replace")
    except (OSError, ValueError):  # removed, a folder, or too large: the agent's doing
        return
    if found == given:
        await box.write(FILE, f"{given}\n\n{blocks[-1]}".encode())


def list_functions(code: str) -> dict[str, ast.FunctionDef]:
    """The functions of a module by name.

    Raises:
        SyntaxError: it is not Python.
    """
    return {node.name: node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}


def list_names(code: str) -> set[str]:
    """All names that a piece of code uses.

    Raises:
        SyntaxError: it is not Python.
    """
    return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}


def check_python(code: Any, field: str) -> str:
    """What is wrong with a field that should hold Python code; empty if nothing."""
    try:
        ast.parse(code)
    except (SyntaxError, ValueError) as error:
        return f"{field}: it is not Python: {error}"
    return ""
