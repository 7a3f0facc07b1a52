"""The thread of a tracker."""

import threading

import pytest

from ludus.trackers.background import BackgroundWork, TrackerLost


def test_work_is_done_in_order_before_it_closes():
    done: list[int] = []
    work = BackgroundWork("test")
    for number in range(50):
        work.do(lambda number=number: done.append(number))
    work.close()
    assert done == list(range(50))


def test_an_error_is_raised_by_a_later_call():
    work = BackgroundWork("test")
    ran = threading.Event()

    def fail() -> None:
        try:
            raise OSError("no server")
        finally:
            ran.set()

    work.do(fail)
    ran.wait()
    with pytest.raises(OSError, match="no server"):
        work.close()


def test_what_finds_no_place_is_counted():
    work, go, running = BackgroundWork("test", 2), threading.Event(), threading.Event()

    def wait() -> None:
        running.set()
        go.wait()

    work.do(wait)
    running.wait()
    for _ in range(5):
        work.do(lambda: None)
    assert work.dropped == 3
    go.set()
    with pytest.raises(TrackerLost, match="3 pieces were dropped"):
        work.close()
