"""Hidden tests: which there are, how a report is judged, and a whole run in a slot."""

import asyncio

import pytest

from ludus.errors import VerifierError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.types import Score
from ludus.verify.control_tests import Controls
from ludus.verify.pytest import count_cases, judge_outcomes, run_tests

HIDDEN = """
from add import add

def test_one():
    assert add(1, 2) == 3

def test_two():
    add(0, 0)
"""
PLAIN = Controls(frozenset({"test_x.py::test_f", "test_x.py::test_r"}))
CONTROL = {"any/test_x.py::test_f": "failed", "any/test_x.py::test_r": "failed"}
EXPECTED = {"hidden/test_a.py::test_one": 1, "hidden/test_a.py::test_two": 1}


def test_tests_are_listed_without_running_them():
    code = "def test_one(): ...\nclass TestMore:\n    async def test_two(self): ...\ndef helper(): ...\n"
    assert count_cases({"test_a.py": code, "helper.py": "def test_no(): ...", "b_test.py": "def test_b(): ..."}) == {
        "hidden/test_a.py::test_one": 1,
        "hidden/test_a.py::TestMore::test_two": 1,
        "hidden/b_test.py::test_b": 1,
    }


@pytest.mark.parametrize(
    ("tests", "message"),
    [({"test_a.py": "def ("}, "is not Python"), ({"helper.py": "x = 1"}, "hold no test"), ({}, "hold no test")],
)
def test_wrong_tests_are_the_verifier_s_failure(tests: dict[str, str], message: str):
    with pytest.raises(VerifierError, match=message):
        count_cases(tests)


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
    found = judge_outcomes(
        {f"hidden/test_a.py::{n}": o for n, o in outcomes.items()} | CONTROL, {}, EXPECTED, plain=PLAIN
    )
    assert (found.passed, found.value, found.soft) == (passed, float(passed), pytest.approx(soft))
    assert feedback in found.feedback


def test_every_case_must_be_in_the_report():
    outcomes = {"hidden/test_a.py::test_one[1]": "passed", "hidden/test_a.py::test_two": "passed"}
    found = judge_outcomes(outcomes | CONTROL, {}, {**EXPECTED, "hidden/test_a.py::test_one": 3}, plain=PLAIN)
    assert (found.value, found.soft) == (0.0, 0.5)
    assert found.feedback.startswith("2 of 4 tests did not pass.")
    assert "test_one (case 2 of 3): missing" in found.feedback


def test_a_pass_names_what_it_rests_on():
    found = judge_outcomes(dict.fromkeys(EXPECTED, "passed") | CONTROL, {}, EXPECTED, plain=PLAIN)
    assert found.feedback == "All 2 tests passed. They ran in one process with the agent's code."


@pytest.mark.parametrize("control", [{}, dict.fromkeys(CONTROL, "passed")])
def test_control_tests_that_do_not_fail_show_tampering(control: dict[str, str]):
    found = judge_outcomes(dict.fromkeys(EXPECTED, "passed") | control, {}, EXPECTED, plain=PLAIN)
    assert (found.value, found.soft) == (0.0, 0.0) and found.suspect == ("tests that must fail did not",)


async def test_hidden_tests_judge_the_files_of_a_slot(bwrap: str):
    async def judge(body: str) -> Score:
        async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
            await box.write("add.py", f"def add(a, b):\n    {body}\n".encode())
            await box.write("conftest.py", b"raise SystemExit('not read')")
            tests = (
                "from add import add\n\ndef test_one():\n    assert add(1, 2) == 3\n\ndef test_two():\n    add(0, 0)\n"
            )
            return await run_tests(box, {"test_add.py": tests})

    assert (await judge("return a + b")).passed
    half = await judge("return a - b")
    assert (half.passed, half.soft) == (False, 0.5) and "assert -1 == 3" in half.feedback
    assert "ended before they were through" in (await judge("import os; os._exit(0)")).feedback


def run_hidden(bwrap: str, code: str, solution: str = "") -> Score:
    async def judge() -> Score:
        async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
            await box.write("solution.py", solution.encode())
            return await run_tests(box, {"test_it.py": code})

    return asyncio.run(judge())


def test_feedback_is_the_same_each_time(bwrap: str):
    code = "import solution\n\ndef test_one():\n    assert solution.Odd() == 3, {'address': 0x7fdeadbeef12}\n"
    first, second = (run_hidden(bwrap, code, "class Odd:\n    pass\n") for _ in range(2))
    assert "solution.Odd object at 0x…" in first.feedback
    assert first == second


def test_neither_tests_nor_programs_they_start_can_read_the_runner(bwrap: str):
    code = """
import os, subprocess, sys
import pytest

LOOK = "import os; p = '/proc/%d/' % os.getppid(); "

def test_runner():
    for name in ("mem", "environ", "fd/1"):
        with pytest.raises(OSError):
            open(f"/proc/{os.getppid()}/{name}", "rb").read(1)

@pytest.mark.parametrize("look", ["open(p + 'mem', 'rb')", "os.listdir(p + 'fd')", "open(p + 'environ').read()"])
def test_programs(look):
    assert subprocess.run([sys.executable, "-c", LOOK + look], stderr=subprocess.DEVNULL).returncode == 1
    assert subprocess.run([sys.executable, "-c", LOOK]).returncode == 0
"""
    score = run_hidden(bwrap, code)
    assert score.passed, score.feedback


def test_hidden_tests_run_without_isolation_too():
    code = "import solution\n\ndef test_one():\n    assert solution.x == 3\n"
    assert run_hidden("local", code, "x = 3").passed
    assert "assert 4 == 3" in run_hidden("local", code, "x = 4").feedback
