"""A pytest plugin that writes what each test did to a file. It runs in slots; nothing else of Ludus is there.

It is loaded by `PYTEST_ADDOPTS`. When pytest starts, before it imports a test, the plugin takes the run's secret from a
file and removes the file. Each line of the report begins with the secret, so that a program which the tests start can
add nothing to it. Programs of the same user may not read this process: the plugin asks the kernel for that.
"""

from __future__ import annotations  # the slot may have an older Python

import json
import os
from typing import Any

_NOTE_CHARS = 1500


class ReportWriter:
    """Writes one line for each phase of each test."""

    def __init__(self, secret: str, path: str) -> None:
        self._secret = secret
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._write([report.nodeid, report.when, report.outcome, self._describe(report)])

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write([report.nodeid, "collect", report.outcome, self._describe(report)])

    def pytest_sessionfinish(self, session: Any, exitstatus: Any) -> None:
        self._write(["end", int(exitstatus)])

    def _describe(self, report: Any) -> str:
        return "" if report.outcome == "passed" else str(report.longrepr)[-_NOTE_CHARS:]

    def _write(self, item: object) -> None:
        os.write(self._file, f"{self._secret} {json.dumps(item)}\n".encode())


def pytest_configure(config: Any) -> None:
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - fewer imports
    try:
        with open(f"{folder}/secret", encoding="ascii") as file:  # noqa: PTH123
            secret = file.read()
        os.unlink(f"{folder}/secret")  # noqa: PTH108
    except OSError:
        return  # only the first run of pytest reports
    hide_memory()
    config.pluginmanager.register(ReportWriter(secret, f"{folder}/report"), "ludus-report")


def hide_memory() -> None:
    """Forbid other processes of the same user to read this one's memory. Linux only, else nothing."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    except (ImportError, OSError, AttributeError):
        pass
