"""Hidden tests: which there are, how a report is judged, and a whole run in a slot."""

import asyncio

import pytest

from ludus.errors import VerifierError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.types import Score
from ludus.verify.pytest import judge_outcomes, list_tests, run_tests

HIDDEN = """
from add import add

def test_one():
    assert add(1, 2) == 3

def test_two():
    add(0, 0)
"""
CONTROL = {"control/test_x.py::test_x_must_fail": "failed", "control/test_x.py::test_x_must_raise": "failed"}
EXPECTED = frozenset({"hidden/test_a.py::test_one", "hidden/test_a.py::test_two"})


def test_tests_are_listed_without_running_them():
    code = "def test_one(): ...\nclass TestMore:\n    async def test_two(self): ...\ndef helper(): ...\n"
    assert list_tests({"test_a.py": code, "helper.py": "def test_no(): ...", "b_test.py": "def test_b(): ..."}) == {
        "hidden/test_a.py::test_one",
        "hidden/test_a.py::TestMore::test_two",
        "hidden/b_test.py::test_b",
    }


@pytest.mark.parametrize(
    ("tests", "message"),
    [({"test_a.py": "def ("}, "is not Python"), ({"helper.py": "x = 1"}, "hold no test"), ({}, "hold no test")],
)
def test_wrong_tests_are_the_verifier_s_failure(tests: dict[str, str], message: str):
    with pytest.raises(VerifierError, match=message):
        list_tests(tests)


@pytest.mark.parametrize(
    ("outcomes", "passed", "soft", "feedback"),
    [
        ({"test_one": "passed", "test_two": "passed"}, True, 1.0, "All 2 tests passed."),
        ({"test_one": "passed", "test_two": "failed"}, False, 0.5, "1 of 2 tests did not pass."),
        ({"test_one": "passed"}, False, 0.5, "test_two: missing"),
        ({"test_one": "passed", "test_two": "skipped"}, False, 0.5, "test_two: skipped"),
        ({"test_one[1]": "passed", "test_one[2]": "failed", "test_two": "passed"}, False, 2 / 3, "test_one[2]: failed"),
    ],
)
def test_every_test_must_be_in_the_report(outcomes: dict[str, str], passed: bool, soft: float, feedback: str):
    found = judge_outcomes({f"hidden/test_a.py::{n}": o for n, o in outcomes.items()} | CONTROL, {}, EXPECTED)
    assert (found.passed, found.value, found.soft) == (passed, float(passed), pytest.approx(soft))
    assert feedback in found.feedback


@pytest.mark.parametrize("control", [{}, dict.fromkeys(CONTROL, "passed")])
def test_control_tests_that_do_not_fail_show_tampering(control: dict[str, str]):
    found = judge_outcomes(dict.fromkeys(EXPECTED, "passed") | control, {}, EXPECTED)
    assert (found.value, found.soft) == (0.0, 0.0) and "tampered with" in found.feedback


def test_hidden_tests_judge_the_files_of_a_slot(bwrap: str):
    async def judge(body: str) -> Score:
        async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
            await box.write("add.py", f"def add(a, b):\n    {body}\n".encode())
            await box.write("conftest.py", b"raise SystemExit('not read')")
            tests = (
                "from add import add\n\ndef test_one():\n    assert add(1, 2) == 3\n\ndef test_two():\n    add(0, 0)\n"
            )
            return await run_tests(box, {"test_add.py": tests})

    assert asyncio.run(judge("return a + b")).passed
    half = asyncio.run(judge("return a - b"))
    assert (half.passed, half.soft) == (False, 0.5) and "assert -1 == 3" in half.feedback
    assert "ended before they were through" in asyncio.run(judge("import os; os._exit(0)")).feedback
