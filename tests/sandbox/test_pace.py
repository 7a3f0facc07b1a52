"""When a pool may start the next slot."""

import pytest

from ludus.sandbox.pace import (
    LONGEST_PAUSE,
    Pace,
    compute_pause,
    compute_wait,
    record_failure,
    record_start,
    record_success,
)


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0), (2, 0), (3, 0.25), (4, 0.5), (5, 1), (100, LONGEST_PAUSE)])
def test_the_pause_grows_with_failures_in_a_row(failures: int, seconds: float):
    assert compute_pause(failures) == seconds


def test_when_the_next_slot_may_be_started():
    pace = Pace()
    assert compute_wait(pace, 100.0, None) == 0
    assert compute_wait(record_start(pace, 100.0), 100.0, 10) == pytest.approx(0.1)
    for moment in range(10):  # begun together
        pace = record_failure(pace, 99.0, 99.1 + moment / 10)
    assert pace.failures == 3 and compute_wait(pace, pace.last_failure, None) == 0.25
    assert compute_wait(pace, 101.0, None) == 0
    trial = record_start(pace, 101.0)
    assert compute_wait(trial, 101.0, None) == 0.25
    assert compute_wait(record_failure(trial, 101.0, 102.0), 102.0, None) == 0.5
    assert compute_wait(record_success(trial), 101.0, None) == 0
