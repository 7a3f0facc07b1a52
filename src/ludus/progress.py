"""When a line about progress is due in a log.

A line is due when a few seconds have passed and another per cent is done, or when a minute has passed without one. So a
log of any run has about a hundred lines, and one a minute while nothing ends.
"""

import time
from collections.abc import Callable

SECONDS = 5.0
"""The shortest time between two lines."""
LONGEST = 60.0
"""The longest time without a line."""


class ProgressPace:
    """Decides when the next line is due. It begins when it is made."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.began = self._last = now()
        self._share = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return self._now() - self.began

    def is_due(self, done: int, total: int | None) -> bool:
        """Whether to print a line now. `total` is None if it is not known: then each step counts as a per cent."""
        share = 100 * done / total if total else float(done)
        passed = self._now() - self._last
        if passed < SECONDS or (share < self._share + 1 and passed < LONGEST):
            return False
        self._last, self._share = self._now(), share
        return True
