"""Alarms in threads: what they raise arrives in the thread that set them."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ludus.compat.atropos_env.thread_alarms import allow_thread_alarms


class TooLong(Exception):
    def __init__(self, what: str, seconds: int) -> None:
        super().__init__(what, seconds)
        self.seconds = seconds


def ring(number: int, frame: object) -> None:
    raise TooLong("work", number)


def run_in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(60)
    return found[0]


def wait_for_alarm() -> None:
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    while True:
        sum(range(100))


def test_what_the_handler_raises_is_raised_in_the_thread():
    with allow_thread_alarms():
        error = run_in_thread(wait_for_alarm)
    assert isinstance(error, TooLong) and error.args == ("work", signal.SIGALRM) and error.seconds == signal.SIGALRM


def test_threads_have_alarms_of_their_own():
    with allow_thread_alarms():

        def work() -> tuple[Any, int, int]:
            before = signal.signal(signal.SIGALRM, ring)
            signal.alarm(1000)
            other = run_in_thread(lambda: (signal.getsignal(signal.SIGALRM), signal.alarm(0)))
            assert other == (signal.SIG_DFL, 0)
            assert signal.getsignal(signal.SIGALRM) is ring
            return before, signal.alarm(0), signal.alarm(0)

        assert run_in_thread(work) == (signal.SIG_DFL, 1000, 0)


def test_a_handler_of_another_signal_has_no_effect_on_the_run():
    before = signal.getsignal(signal.SIGTERM)
    with allow_thread_alarms():
        run_in_thread(lambda: signal.signal(signal.SIGTERM, ring))
        assert signal.getsignal(signal.SIGTERM) is before


def test_the_main_thread_and_the_time_after_are_as_python_has_them():
    with allow_thread_alarms(), allow_thread_alarms():
        before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
        signal.signal(signal.SIGUSR1, before)
    error = run_in_thread(lambda: signal.signal(signal.SIGALRM, ring))
    assert isinstance(error, ValueError)


def test_only_real_time_is_measured():
    with allow_thread_alarms():
        error = run_in_thread(lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 1.0))
    assert isinstance(error, ValueError) and "ITIMER_REAL" in str(error)


def test_a_file_can_use_math_verify():
    pytest.importorskip("math_verify")

    def work() -> bool:
        from math_verify import parse, verify

        return verify(parse("\\boxed{7}"), parse("The answer is $7$"))

    with allow_thread_alarms():
        assert run_in_thread(work) is True
