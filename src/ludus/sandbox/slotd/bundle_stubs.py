"""Stands in for `ludus.errors` and `ludus.sandbox` in the bundle, with the names that the shared modules import.

The real modules need packages that a container does not have.
"""

from __future__ import annotations

from typing import NamedTuple


class _SlotEvidence(NamedTuple):
    """What is known about the end of a slot."""

    inside: str = ""
    outside: str = ""


class _SandboxError(Exception):
    """The slot is gone or cannot run commands."""

    def __init__(self, message: str, *, retryable: bool = True, evidence: _SlotEvidence = _SlotEvidence()) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.evidence = evidence


class _ExecResult(NamedTuple):
    """The result of a command."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    timed_out: bool = False
    truncated: bool = False
    seconds: float = 0.0


SlotEvidence = _SlotEvidence
SandboxError = _SandboxError
ExecResult = _ExecResult
