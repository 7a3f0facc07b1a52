"""Runs hidden tests with pytest inside a slot. `ludus.verify.pytest` starts it there and does not import it.

The order is read from stdin before any foreign code runs. The report is written to a descriptor that is not stdout,
after a secret. So a program that prints a report, or ends the process early, has reported nothing.
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

    os.write(channel, f"{order['secret']} ready\n".encode())  # no code of the agent has run so far
    sys.path.append(order["workspace"])  # last: nothing there can replace the library or pytest
    tests, recorder = order["tests"], TestRecorder()
    pytest.main(
        [
            *("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "-c", f"{tests}/pytest.ini"),
            "--continue-on-collection-errors",  # a solution that cannot be imported is wrong, not tampering
            *(f"--rootdir={tests}", f"--confcutdir={tests}", f"{tests}/hidden", f"{tests}/control"),
        ],
        plugins=[recorder],
    )
    report = json.dumps({"outcomes": recorder.outcomes, "notes": recorder.notes})
    os.write(channel, f"\n{order['secret']} {report}\n".encode())


if __name__ == "__main__":
    main()
