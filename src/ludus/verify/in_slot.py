"""Runs hidden tests with pytest, inside a slot. Started by `ludus.verify.pytest`, never imported by it.

The order comes on stdin and is gone before any foreign code runs; the report goes to a descriptor that is not stdout,
behind a secret, so that a program that prints a report, or ends the process early, has reported nothing.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

_NOTE_CHARS = 1500
_RANK = {"passed": 0, "skipped": 1, "failed": 2}


class TestRecorder:
    """A pytest plugin that keeps the worst outcome of each test's set-up, call and tear-down."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.notes: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._keep(report.nodeid, report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._keep(report.nodeid, report)

    def _keep(self, name: str, report: Any) -> None:
        worst = max(self.outcomes.get(name, "passed"), report.outcome, key=lambda o: _RANK.get(o, 2))
        self.outcomes[name] = worst
        if report.outcome != "passed":
            self.notes[name] = str(report.longrepr)[-_NOTE_CHARS:]


def main() -> None:
    order: Mapping[str, str] = json.loads(sys.stdin.buffer.read())
    channel = os.dup(1)
    os.dup2(2, 1)
    if order["packages"]:
        sys.path.insert(0, order["packages"])
    import pytest

    os.write(channel, f"{order['secret']} ready\n".encode())  # until here, nothing of the agent has run
    sys.path.append(order["workspace"])  # last: nothing there can stand in for the library or for pytest
    tests, recorder = order["tests"], TestRecorder()
    pytest.main(
        [
            *("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", f"{tests}/pytest.ini"),
            "--continue-on-collection-errors",  # a solution that cannot be imported is wrong, not a cheat
            *(f"--rootdir={tests}", f"--confcutdir={tests}", f"{tests}/hidden", f"{tests}/control"),
        ],
        plugins=[recorder],
    )
    report = json.dumps({"outcomes": recorder.outcomes, "notes": recorder.notes})
    os.write(channel, f"\n{order['secret']} {report}\n".encode())


if __name__ == "__main__":
    main()
