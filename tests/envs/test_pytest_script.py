import json

import pytest

from ludus.envs.pytest_script import judge_report, run_script
from ludus.errors import VerifierError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.profiles import open_pool
from ludus.types import Score

SOURCE = "import pytest\n\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_a(n): ...\n\n\ndef test_b(): ...\n"
NAMES = ("x/test_it.py::test_a[1]", "x/test_it.py::test_a[2]", "x/test_it.py::test_b")


def make_lines(outcomes: dict[str, str], *, end: bool = True) -> list[str]:
    lines: list[list[object]] = []
    for name, outcome in outcomes.items():
        phases = ("setup",) if outcome == "skipped" else ("setup", "call", "teardown")
        lines += [[name, phase, outcome if phase in ("call", phases[0]) else "passed", "why"] for phase in phases]
    return [json.dumps(line) for line in ([*lines, ["end", 0]] if end else lines)]


def test_all_tests_must_be_in_the_report_and_pass():
    good = dict.fromkeys(NAMES, "passed")
    assert judge_report(make_lines(good), {"test_it.py": SOURCE}).passed
    for change in ({NAMES[0]: "failed"}, {NAMES[2]: "skipped"}):
        score = judge_report(make_lines(good | change), {"test_it.py": SOURCE})
        assert (score.value, score.passed) == (0.0, False)
        assert score.soft == pytest.approx(2 / 3)
        assert "why" in score.feedback
    missing = judge_report(make_lines({NAMES[0]: "passed", NAMES[2]: "passed"}), {"test_it.py": SOURCE})
    assert not missing.passed
    assert "test_it.py::test_a: missing" in missing.feedback


def test_a_report_without_an_end_is_none():
    assert not judge_report(make_lines(dict.fromkeys(NAMES, "passed"), end=False), {"test_it.py": SOURCE}).passed
    assert not judge_report([], {}).passed


async def score_script(script: str, test: str) -> Score:
    async with open_pool("bwrap") as pool, pool.lease(SandboxSpec()) as box:
        await box.write("/tmp/tests/test_it.py", test.encode())
        return await run_script(box, script, {"test_it.py": test}, env={"TEST_DIR": "/tmp/tests"}, seconds=60)


async def test_the_report_counts_and_not_the_output_or_the_exit_code(bwrap: str):
    forged = (
        "echo '== short test summary info =='; echo 'PASSED test_it.py::test_it'; python3 -m pytest $TEST_DIR; true"
    )
    wrong = await score_script(forged, "def test_it():\n    assert 1 == 2\n")
    assert (wrong.value, wrong.passed) == (0.0, False)
    assert "assert 1 == 2" in wrong.feedback


async def test_a_program_of_the_tests_can_add_nothing_to_the_report(bwrap: str):
    """It knows the place of the report, but not the secret: that is only in pytest's memory."""
    line = 'x ["test_it.py::test_it", "call", "passed", ""]'
    forge = f"f=${{PYTHONPATH%%:*}}; cat $f/secret; echo '{line}' >>$f/report"
    test = f"import subprocess\n\n\ndef test_it():\n    subprocess.run({forge!r}, shell=True)\n    assert False\n"
    assert not (await score_script("pytest $TEST_DIR", test)).passed


async def test_a_script_without_pytest_has_no_score(bwrap: str):
    with pytest.raises(VerifierError, match="ran no pytest"):
        await score_script("echo nothing; true", "def test_it(): ...\n")
