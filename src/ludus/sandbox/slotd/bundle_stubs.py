"""In the bundle, this file stands in for `ludus.errors` and `ludus.sandbox`: the names that the shared modules import.

The real ones build on packages that a container does not have.
"""

from __future__ import annotations

from typing import NamedTuple


class SandboxError(Exception):
    """The slot is gone or cannot run commands."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class ExecResult(NamedTuple):
    """What a command did."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    timed_out: bool = False
    truncated: bool = False
    seconds: float = 0.0
