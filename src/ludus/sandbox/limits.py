"""What all backends say about the limits of a slot, and how much memory a container needs for its slots."""

from msgspec import Struct

from ludus.sandbox import SandboxSpec

SHM_MB = 64
"""What /dev/shm may hold."""
SLOTD_MB = 96
"""Memory for slotd."""


def compute_container_mb(spec: SandboxSpec, slots: int) -> int:
    """Memory for the processes of slots, for their full disks, which are in memory, and for slotd. A slot with an image
    is alone in its container, and has one disk."""
    if spec.image is not None:
        return spec.memory_mb + spec.disk_mb + SHM_MB + SLOTD_MB
    return slots * (spec.memory_mb + 3 * spec.disk_mb + SHM_MB) + SLOTD_MB


class LimitStatus(Struct, frozen=True):
    """One limit and what enforces it here, for people to read."""

    limit: str
    by: str
    strong: bool


_KILLED = (137, -9)
"""How a program ends that was killed by signal 9, as a shell and as a parent process say it."""


def explain_exit(code: int, spec: SandboxSpec) -> str:
    """An exit code in words: `exit code 137, killed: …`. A program that is killed leaves no message of its own."""
    if code not in _KILLED:
        return f"exit code {code}"
    return (
        f"exit code {code}, killed: most likely it used more memory than the slot has, {spec.memory_mb} MB "
        "(sandbox.memory_mb, or the task's own limit)"
    )
