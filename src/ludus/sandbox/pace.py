"""How fast a pool makes slots: a limit on the rate, and a pause after failures in a row. Pure functions.

A backend that is down is not asked again at once for every waiting request. From the third failure in a row on there is
a pause, which doubles up to one minute. After the pause one slot is tried; a success ends it. When many slots start
together and fail together, only as many failures count as it takes to pause.
"""

from dataclasses import dataclass, replace

FORGIVEN = 2
"""This many failures in a row cause no pause."""
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 60.0


@dataclass(frozen=True)
class Pace:
    """Recent starts and failures, by the event loop's clock."""

    failures: int = 0
    """Failures in a row."""
    resume: float = 0.0
    """No slot is started before this time."""
    last_failure: float = float("-inf")
    last_start: float = float("-inf")


def record_start(pace: Pace, now: float) -> Pace:
    if pace.failures > FORGIVEN:  # a trial: the next start waits for its result
        return replace(pace, last_start=now, resume=now + compute_pause(pace.failures))
    return replace(pace, last_start=now)


def record_success(pace: Pace) -> Pace:
    return replace(pace, failures=0, resume=0.0)


def record_failure(pace: Pace, began: float, now: float) -> Pace:
    """The start of a slot, made at `began`, has failed at `now`."""
    if pace.failures > FORGIVEN and began < pace.last_failure:
        return pace  # it started before the last failure was known, and says nothing new
    failures = pace.failures + 1
    return replace(pace, failures=failures, resume=now + compute_pause(failures), last_failure=now)


def compute_pause(failures: int) -> float:
    """The pause after this many failures in a row."""
    if failures <= FORGIVEN:
        return 0.0
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - FORGIVEN - 1, 20))


def compute_wait(pace: Pace, now: float, starts_per_second: float | None) -> float:
    """Seconds until the next slot may be started; 0 for at once."""
    wait = pace.resume - now
    if starts_per_second is not None:
        wait = max(wait, pace.last_start + 1.0 / starts_per_second - now)
    return max(0.0, wait)
