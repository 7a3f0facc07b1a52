"""Tests of a repository: how ids are judged, and runs in a slot."""

import pytest

from ludus.envs.repository_tests import judge_ids, run_repository_tests
from ludus.errors import VerifierError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.types import Score
from ludus.verify.control_tests import Controls
from ludus.verify.pytest import TestReport

PLAIN = Controls(frozenset({"c.py::test_f", "c.py::test_r"}))
CONTROL = {"../c.py::test_f": "failed", "../c.py::test_r": "failed"}


def judge(outcomes: dict[str, str], ids: list[str], notes: dict[str, str] | None = None) -> Score:
    report = TestReport(outcomes=outcomes, notes=notes or {}, tampering="", ended=True, exit_code=1)
    return judge_ids(report, ids, PLAIN)


def test_every_id_must_have_passed():
    assert judge({**CONTROL, "a::x": "passed"}, ["a::x", "a::x"]).passed
    score = judge({**CONTROL, "a::x": "passed", "a::y": "skipped"}, ["a::x", "a::y", "a::z", "a::x"], {"a::y": "why"})
    assert (score.value, score.passed, score.soft) == (0.0, False, pytest.approx(1 / 3))
    assert score.feedback == "2 of 3 tests did not pass.\na::y: skipped\nwhy\na::z: missing"


def test_a_file_that_cannot_be_collected_is_in_the_feedback():
    score = judge({**CONTROL, "a.py": "failed"}, ["a.py::x"], {"a.py": "ImportError: b"})
    assert score.feedback == "1 of 1 tests did not pass.\na.py\nImportError: b\na.py::x: missing"


def test_control_tests_must_have_failed():
    for control in ({}, dict.fromkeys(CONTROL, "passed")):
        score = judge({**control, "a::x": "passed"}, ["a::x"])
        assert (score.value, score.suspect) == (0.0, ("tests that must fail did not",))


CONFTEST = "import pytest\n\n@pytest.fixture\ndef one():\n    return 1\n"
SHOWN = """
from code_under_test import add

def test_one(one):
    assert add(one, 1) == 2

def test_unwanted():
    assert 0
"""
HIDDEN = """
import os
from pathlib import Path
import pytest
from code_under_test import add

@pytest.mark.parametrize("n", [1, 2], ids=["a b/$(x)", "c::d[e]"])
def test_two(n):
    assert add(n, n) == 2 * n
    assert Path(__file__).read_text() == ""
"""
IDS = [
    "tests/test_shown.py::test_one",
    "tests/test_hidden.py::test_two[a b/$(x)]",
    "tests/test_hidden.py::test_two[c::d[e]]",
]


async def test_wanted_tests_run_with_the_fixtures_and_settings_of_the_repository(bwrap: str):
    async def run(code: str, settings: str, *, link: bool = False) -> Score:
        async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
            files = {"code_under_test.py": code, "tests/conftest.py": CONFTEST, "tests/test_shown.py": SHOWN}
            for path, text in {**files, "pytest.ini": settings}.items():
                await box.write(f"repo/{path}", text.encode())
            if link:
                await box.exec("mkdir repo/tests/test_hidden.py")
            return await run_repository_tests(
                box, "/workspace/repo", IDS, {"tests/test_hidden.py": HIDDEN}, python="python3", seconds=60
            )

    right = "def add(a, b): return a + b"
    settings = "[pytest]\naddopts = -ra\n"
    assert (await run(right, settings, link=True)).passed
    half = await run("def add(a, b): return 2", settings)
    assert (half.value, half.soft) == (0.0, pytest.approx(2 / 3))
    assert "test_two[c::d[e]]: failed" in half.feedback
    early = await run("import os; os._exit(1)", settings)
    assert early.soft == 0.0 and "ended before they were through" in early.feedback
    with pytest.raises(VerifierError, match="unrecognized arguments: --absent"):
        await run(right, "[pytest]\naddopts = --absent\n")


EQUAL_TO_ALL = """
class {0}(int):
    def __eq__(self, other): return True

def add(a, b): return {0}()
"""


async def test_a_value_that_equals_everything_fails_unless_the_repository_had_its_class(bwrap: str):
    async def run(code: str) -> Score:
        async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
            await box.write("repo/code_under_test.py", code.encode())
            test = "from code_under_test import add\n\ndef test_two():\n    assert add(1, 1) == 2\n"
            return await run_repository_tests(
                *(box, "/workspace/repo", ["tests/test_hidden.py::test_two"], {"tests/test_hidden.py": test}),
                python="python3",
                seconds=60,
                known={"Wildcard"},
            )

    forged = await run(EQUAL_TO_ALL.format("Forged"))
    assert not forged.passed and "compares equal to every value" in forged.feedback
    assert (await run(EQUAL_TO_ALL.format("Wildcard"))).passed


async def test_no_ids_cannot_be_judged(bwrap: str):
    with pytest.raises(VerifierError, match="no tests"):
        async with open_pool(bwrap) as pool, pool.lease(SandboxSpec()) as box:
            await run_repository_tests(box, "/workspace", [], {}, python="python3", seconds=60)
