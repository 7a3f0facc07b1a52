"""The runner inside the slot: its report is behind a secret, and shows what foreign code did."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from ludus.verify import in_slot


def run(folder: Path, code: str) -> list[str]:
    """The lines that the runner prints for one hidden test file."""
    for name in ("hidden", "control", "workspace"):
        (folder / name).mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "hidden" / "test_it.py").write_text(code)
    (folder / "control" / "test_control.py").write_text("def test_must_fail():\n    assert 1 == 2\n")
    order = {"secret": "s3cret", "packages": "", "tests": str(folder), "workspace": str(folder / "workspace")}
    done = subprocess.run(
        [sys.executable, "-I", in_slot.__file__], input=json.dumps(order), capture_output=True, text=True, timeout=120
    )
    return [line for line in done.stdout.splitlines() if line]


def test_the_report_follows_the_secret(tmp_path: Path):
    ready, report = run(tmp_path, "def test_one():\n    print('s3cret {}')\n\ndef test_two():\n    assert 0, 'why'\n")
    assert ready == "s3cret ready"
    secret, _, words = report.partition(" ")
    assert secret == "s3cret"
    found = json.loads(words)
    assert found["outcomes"] == {
        "hidden/test_it.py::test_one": "passed",
        "hidden/test_it.py::test_two": "failed",
        "control/test_control.py::test_must_fail": "failed",
    }
    assert "why" in found["notes"]["hidden/test_it.py::test_two"]


def test_code_that_ends_the_process_leaves_no_report(tmp_path: Path):
    assert run(tmp_path, "import os\n\ndef test_one():\n    os._exit(0)\n") == ["s3cret ready"]


def test_the_worst_outcome_of_a_test_counts():
    recorder = in_slot.TestRecorder()
    for outcome in ("passed", "failed", "passed"):
        recorder.pytest_runtest_logreport(SimpleNamespace(nodeid="a", outcome=outcome, longrepr="why", failed=False))
    assert (recorder.outcomes, recorder.notes) == ({"a": "failed"}, {"a": "why"})
