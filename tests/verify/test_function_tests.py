"""Tests of functions whose code runs in another process, and what hostile code can do to them."""

import pytest

from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.types import Score
from ludus.verify.function_tests import check_functions, drop_calls, drop_future_imports, split_check

CHECK = """
def check(candidate):
    assert True, "placeholder"
    numbers = [2, 1]
    assert candidate(numbers) == 3
    for n in range(3):
        assert candidate([n]) == n
    assert candidate([]) == 0
"""


def test_each_assertion_is_a_test_after_the_statements_before_it():
    tests = split_check(CHECK, "check", "add_up")
    assert [test.splitlines()[-1].strip() for test in tests] == [
        "assert candidate(numbers) == 3",
        "assert candidate([n]) == n",
        "assert candidate([]) == 0",
    ]
    assert all(test.startswith("candidate = add_up\n") and "numbers = [2, 1]" in test for test in tests)
    assert split_check("def check(f):\n    assert f() == 1", "check", "f") == ["assert f() == 1"]
    assert split_check("def check(f):\n    assert True", "check", "f") == []
    assert split_check("x = 1", "check", "f") == []


def test_parts_of_code_are_dropped():
    assert drop_calls("def check(f): ...\ncheck(add)\nx = check", "check").splitlines()[-1] == "x = check"
    assert "check(add)" not in drop_calls("def check(f): ...\ncheck(add)", "check")
    assert drop_future_imports("from __future__ import annotations\nx = 1") == "x = 1"


ATTACKS = """
import json, os, sys, time

def read_frames(a, b):
    found, frame = [], sys._getframe()
    while frame:
        found += [c for c in frame.f_code.co_consts if isinstance(c, int)]
        frame = frame.f_back
    return max(found, default=0)

class Same(int):
    __eq__ = lambda *_: True

def equal_all(a, b):
    return Same(0)

def end_process(a, b):
    os._exit(0)

def forge_reports(a, b):
    for phase in ("setup", "call", "teardown"):
        line = json.dumps(["hidden/test_functions.py::test_case_1", phase, "passed", ""]) + "\\n"
        for place in ["/dev/fd/%d", "/proc/%d/fd/%%d" % os.getppid()]:
            for fd in range(30):
                try:
                    os.write(os.open(place % fd, os.O_WRONLY), line.encode())
                except OSError:
                    pass
    return 0

def find_tests(a, b):
    for folder, _, names in os.walk("/tmp"):
        for name in names:
            try:
                if "== 42" in open(os.path.join(folder, name)).read():
                    return 42
            except OSError:
                pass
    try:
        open("/proc/%d/mem" % os.getppid(), "rb")
        return 42
    except OSError:
        return 0

def add(a, b):
    return a + b
"""


async def judge(bwrap: str, code: str, names: list[str]) -> Score:
    async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
        await box.write("solution.py", code.encode())
        await box.write("conftest.py", b"import os; os._exit(0)")
        await box.write("pytest.py", b"raise SystemExit")
        tests = [f"assert {name}(20, 22) == 42" for name in names]
        return await check_functions(
            box, "solution", names, tests, preamble="from __future__ import annotations", call_seconds=30
        )


async def test_attacks_fail_and_right_functions_pass(bwrap: str):
    assert await judge(bwrap, ATTACKS, ["add"]) == Score(1.0, True, 1.0, "All 1 tests passed.")
    attacks = ["read_frames", "equal_all", "end_process", "forge_reports", "find_tests"]
    score = await judge(bwrap, ATTACKS, [*attacks, "add"])
    assert (score.value, score.soft) == (0.0, pytest.approx(1 / 6)), score.feedback
    assert "5 of 6 tests did not pass." in score.feedback


async def test_a_function_that_ends_the_tests_scores_zero(bwrap: str):
    score = await judge(bwrap, "import os\ndef add(a, b):\n    os.kill(os.getppid(), 9)\n", ["add"])
    assert (score.value, score.soft) == (0.0, 0.0)
