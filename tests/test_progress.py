"""When a line about progress is due."""

import pytest

from ludus.progress import ProgressPace


def make_pace() -> tuple[ProgressPace, list[float]]:
    clock = [100.0]
    return ProgressPace(lambda: clock[0]), clock


@pytest.mark.parametrize(
    ("seconds", "done", "total", "due"),
    [
        (4.9, 50, 100, False),
        (5.0, 50, 100, True),
        (5.0, 0, 100, False),
        (59.0, 1, 200, False),
        (60.0, 1, 200, True),
        (60.0, 0, None, True),
        (5.0, 1, None, True),
        (5.0, 0, 0, False),
    ],
)
def test_a_line_is_due_after_some_seconds_and_a_per_cent_or_after_a_minute(
    seconds: float, done: int, total: int | None, due: bool
):
    pace, clock = make_pace()
    clock[0] += seconds
    assert pace.is_due(done, total) is due and pace.elapsed == pytest.approx(seconds)


def test_a_long_run_has_about_a_hundred_lines():
    pace, clock = make_pace()
    lines = 0
    for done in range(20_000):
        clock[0] += 0.5
        lines += pace.is_due(done, 20_000)
    assert 90 <= lines <= 170
