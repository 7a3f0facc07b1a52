"""Hidden tests of functions, without the agent's code in their process.

    async def verify(self, rollout, box):
        tests = ["assert add(1, 2) == 3", "assert add(-1, 1) == 0"]
        return await check_functions(box, "solution", ("add",), tests)

Each test is some Python code. It runs as a test of its own with pytest (`ludus.verify.pytest`). The functions that it
calls are proxies: the agent's module is imported in another process, which gets the arguments of each call and sends
back a plain value (`call_host.py`). That process sees neither the tests nor the expected values, and it has no way to
report a result. So the limits of `run_tests` do not apply here. What remains: a function can recognize arguments that
it was shown before.

Functions that take or return functions, or objects of classes of their own, cannot be tested this way.
"""

import ast
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

from ludus.sandbox import WORKSPACE, Sandbox
from ludus.types import Score
from ludus.verify.pytest import run_tests

_HOST = Path(__file__).with_name("call_host.py")


async def check_functions(
    box: Sandbox,
    module: str,
    names: Sequence[str],
    tests: Sequence[str],
    *,
    preamble: str = "",
    call_seconds: float = 10.0,
    seconds: float = 120.0,
) -> Score:
    """Score 1 if every test passes; `soft` is the share that passes.

    `module`: the agent's, in /workspace. `names`: its functions that the tests call. `preamble`: code before the tests,
    such as imports and helpers; definitions of `names` in it are replaced.

    Raises:
        VerifierError: the tests are wrong, or pytest is neither in the slot nor installed beside Ludus.
    """
    text = make_test_file(module, names, tests, preamble, box.resolve(WORKSPACE), call_seconds)
    return await run_tests(box, {"test_functions.py": text}, seconds=seconds, separate=True)


def make_test_file(
    module: str, names: Sequence[str], tests: Sequence[str], preamble: str, workspace: str, call_seconds: float
) -> str:
    """The text of the hidden test file: the proxies, then one test function for each test."""
    host = _HOST.read_text(encoding="utf-8")
    lines = [
        drop_future_imports(preamble),
        "_ludus = {'__name__': 'call_host'}",  # a namespace of its own: tests may use any name
        f"exec({host!r}, _ludus)",
        f"_ludus.update(_HOST={host!r}, _WORKSPACE={workspace!r})",
        f"_ludus = _ludus['CallHost']({module!r}, {call_seconds!r})",
        *(f"{name} = _ludus.bind({name!r})" for name in names),
        *(f"def test_case_{number}():\n{indent(test, '    ')}" for number, test in enumerate(tests, 1)),
    ]
    return "\n\n".join(lines) + "\n"


def drop_future_imports(code: str) -> str:
    """The code without `from __future__` lines, which must be at the beginning of a file."""
    return "\n".join(line for line in code.splitlines() if not line.startswith("from __future__"))


def drop_calls(code: str, name: str) -> str:
    """The code without calls of a function at the top level, such as `check(add)`.

    Raises:
        SyntaxError: it is not Python.
    """
    tree = ast.parse(code)
    tree.body = [node for node in tree.body if not _is_call(node, name)]
    return ast.unparse(tree)


def _is_call(node: ast.stmt, name: str) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name


def split_check(code: str, name: str, function: str) -> list[str]:
    """The assertions of a function `name(candidate)`, each as a test of its own after the other statements before it.

    `function`: the name of what is passed as `candidate`. A statement that contains assertions, such as a loop, is one
    test. Returns an empty list if the code has no such function with an assertion.

    Raises:
        SyntaxError: it is not Python.
    """
    defined = [n for n in ast.parse(code).body if isinstance(n, ast.FunctionDef) and n.name == name]
    if not defined or len(defined[-1].args.args) != 1:
        return []
    parameter = defined[-1].args.args[0].arg
    before = [] if parameter == function else ast.parse(f"{parameter} = {function}").body
    found: list[str] = []
    for statement in defined[-1].body:
        asserts = [node for node in ast.walk(statement) if isinstance(node, ast.Assert)]
        if all(isinstance(node.test, ast.Constant) and node.test.value for node in asserts):
            before = [*before, statement]  # `assert True` tests nothing
        else:
            found.append("\n".join(ast.unparse(node) for node in [*before, statement]))
    return found
