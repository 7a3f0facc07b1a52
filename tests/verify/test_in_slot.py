"""The runner inside the slot: its report is behind a secret, and shows what foreign code did."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from ludus.verify import in_slot
from ludus.verify.pytest import list_arguments


def run(folder: Path, code: str) -> list[str]:
    """The lines that the runner prints for one hidden test file."""
    for name in ("hidden", "control", "workspace"):
        (folder / name).mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "secret").write_text("s3cret")
    (folder / "hidden" / "test_it.py").write_text(code)
    (folder / "control" / "test_control.py").write_text("def test_must_fail():\n    assert 1 == 2\n")
    (folder / "run.py").write_bytes(Path(in_slot.__file__).read_bytes())
    order = {"secret": str(folder / "secret"), "packages": "", "tests": str(folder)}
    order |= {"hidden": [str(folder / "hidden" / "test_it.py")], "workspace": str(folder / "workspace")}
    order |= {"arguments": list_arguments(str(folder), f"{folder}/control"), "controls": []}
    order |= {"wanted": None, "python": sys.executable}
    done = subprocess.run(
        [sys.executable, "-I", folder / "run.py"], input=json.dumps(order), capture_output=True, text=True, timeout=120
    )
    return [line for line in done.stdout.splitlines() if line]


def read_report(lines: list[str]) -> dict[str, Any]:
    ready, report = lines
    assert ready == "s3cret ready"
    secret, _, words = report.partition(" ")
    assert secret == "s3cret"
    return json.loads(words)


def test_the_report_follows_the_secret(tmp_path: Path):
    lines = run(tmp_path, "def test_one():\n    print('s3cret {}')\n\ndef test_two():\n    assert 0, 'why'\n")
    found = read_report(lines)
    assert found["outcomes"] == {
        "hidden/test_it.py::test_one": "passed",
        "hidden/test_it.py::test_two": "failed",
        "control/test_control.py::test_must_fail": "failed",
    }
    assert "why" in found["notes"]["hidden/test_it.py::test_two"]
    assert (found["ended"], found["tampering"]) == (True, "")


@pytest.mark.parametrize("code", [0, 1])
def test_code_that_ends_the_process_has_not_passed(tmp_path: Path, code: int):
    found = read_report(run(tmp_path, f"import os\n\ndef test_one():\n    os._exit({code})\n"))
    assert (found["ended"], found["exit_code"]) == (False, code)


def test_the_test_process_has_neither_the_secret_nor_the_tests_source(tmp_path: Path):
    look = """
import gc, inspect, os, sys

def test_source():
    assert open(__file__).read() == ""
    try:
        lines = inspect.getsource(sys._getframe())
    except OSError:
        lines = ""
    assert "marker" not in lines

def test_secret():
    word = "s3" + "cret"
    frame = sys._getframe(1)
    while frame:
        assert word not in repr(frame.f_locals)
        frame = frame.f_back
    assert not [d for d in gc.get_objects() if type(d) is dict and word in [v for v in d.values() if type(v) is str]]
    assert not os.path.exists(os.path.dirname(__file__) + "/../secret")
    assert 1 == 2, "shown"
"""
    found = read_report(run(tmp_path, look))
    assert found["outcomes"]["hidden/test_it.py::test_source"] == "passed"
    note = found["notes"]["hidden/test_it.py::test_secret"]
    assert '>       assert 1 == 2, "shown"' in note  # pytest itself can quote the test


def test_a_forged_report_is_tampering(tmp_path: Path):
    forge = """
import json, os

def test_one():
    for fd in range(3, 30):
        try:
            os.write(fd, b'["hidden/test_it.py::test_one", "call", "passed", ""]\\n')
        except OSError:
            pass
    assert 0
"""
    assert "second report" in read_report(run(tmp_path, forge))["tampering"]


def read_lines(*items: object, exit_code: int = 1) -> dict[str, Any]:
    reader = in_slot.ReportReader()
    for item in items:
        reader.add(json.dumps(item).encode())
    return reader.summarize(exit_code)


PASSED = (["a", "setup", "passed", ""], ["a", "call", "passed", ""], ["a", "teardown", "passed", ""])


def test_a_test_has_passed_if_all_its_phases_have():
    assert read_lines(*PASSED, ["end", 1]) == {
        "outcomes": {"a": "passed"},
        "notes": {},
        "tampering": "",
        "ended": True,
        "exit_code": 1,
    }
    assert read_lines(*PASSED[:2])["outcomes"] == {"a": "unfinished"}
    assert read_lines(*PASSED[:2], ["a", "teardown", "failed", "why"])["outcomes"] == {"a": "failed"}
    assert read_lines(["a", "setup", "odd", ""])["outcomes"] == {"a": "failed"}


@pytest.mark.parametrize("line", [PASSED[0], ["a"], {"a": 1}, 7, ["a", "call", "passed", 1]])
def test_lines_that_pytest_does_not_write_are_tampering(line: object):
    assert read_lines(*PASSED, line)["tampering"]


def test_an_end_that_does_not_fit_the_exit_code_is_none():
    assert not read_lines(*PASSED, ["end", 1], exit_code=0)["ended"]
    assert not read_lines(*PASSED)["ended"]
    assert read_lines(["end", 1], PASSED[0])["tampering"]


class Everything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


class EveryNumber(int):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)

    __hash__ = int.__hash__


def check(left: Any, right: Any) -> Any:
    return in_slot.check_pair(left, right, lambda kind: kind.__module__ == "unittest.mock")


@pytest.mark.parametrize(
    "value", [Everything(), EveryNumber(), [1, EveryNumber()], {"a": [Everything()]}, (Everything(),)]
)
def test_values_that_equal_everything_are_refused(value: Any):
    expected = [1, 2] if isinstance(value, list) else 3
    with pytest.raises(AssertionError, match="compares equal to every value"):
        check(value, expected)
    with pytest.raises(AssertionError, match="compares equal to every value"):
        check(expected, value)


class Remainder:
    """Honest: equal to many numbers, but not to all."""

    def __init__(self, value: int) -> None:
        self.value = value % 7

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other % 7 == self.value

    __hash__ = None  # pyright: ignore[reportAssignmentType]


@pytest.mark.parametrize(
    "value", [Remainder(3), ANY, pytest.approx(3), 3, [3], {3}, None, object(), {"a": {"b": (1,)}}]
)
def test_honest_values_are_compared_as_they_are(value: Any):
    expected: Any = 3
    assert check(value, expected) is expected


def test_a_line_without_end_is_tampering():
    reader = in_slot.ReportReader()
    inbox, outbox = os.pipe()
    os.set_blocking(inbox, False)
    is_open = True
    for _ in range(2**20 // 2**15):
        assert is_open
        os.write(outbox, b"[" * 2**15)
        is_open = reader.read_from(inbox)
    os.close(inbox)
    os.close(outbox)
    assert (is_open, reader.tampering) == (False, "too long a report")
