"""How fast a pool makes slots: a limit on the rate, and a pause after failures in a row. Pure decisions.

A backend that is down is not asked again at once by everyone who waits: from the third failure in a row on there is
a pause, which doubles up to a minute; after it, one slot is tried, and a success ends it. Of many slots that were begun
together and fail together, no more count than it takes to pause.
"""

from dataclasses import dataclass, replace

FORGIVEN = 2
"""So many failures in a row mean nothing yet."""
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class Pace:
    """What has happened lately, by the event loop's clock."""

    failures: int = 0
    """In a row."""
    resume: float = 0.0
    """Not before this moment, after failures."""
    last_failure: float = float("-inf")
    last_start: float = float("-inf")


def record_start(pace: Pace, now: float) -> Pace:
    if pace.failures > FORGIVEN:  # a trial: the next one waits for how it goes
        return replace(pace, last_start=now, resume=now + compute_pause(pace.failures))
    return replace(pace, last_start=now)


def record_success(pace: Pace) -> Pace:
    return replace(pace, failures=0, resume=0.0)


def record_failure(pace: Pace, began: float, now: float) -> Pace:
    """A slot that was begun at one moment has failed at another."""
    if pace.failures > FORGIVEN and began < pace.last_failure:
        return pace  # it says nothing new
    failures = pace.failures + 1
    return replace(pace, failures=failures, resume=now + compute_pause(failures), last_failure=now)


def compute_pause(failures: int) -> float:
    """The pause after so many failures in a row."""
    if failures <= FORGIVEN:
        return 0.0
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - FORGIVEN - 1, 20))


def compute_wait(pace: Pace, now: float, starts_per_second: float | None) -> float:
    """Seconds until the next slot may be made; 0 for at once."""
    wait = pace.resume - now
    if starts_per_second is not None:
        wait = max(wait, pace.last_start + 1.0 / starts_per_second - now)
    return max(0.0, wait)
