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
