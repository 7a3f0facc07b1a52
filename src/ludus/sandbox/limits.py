"""What all backends say about the limits of a slot."""

from msgspec import Struct

SHM_MB = 64
"""What /dev/shm may hold."""


class LimitStatus(Struct, frozen=True):
    """One limit and what enforces it here, for people to read."""

    limit: str
    by: str
    strong: bool
