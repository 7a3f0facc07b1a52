"""Time limits with SIGALRM in threads other than the main one.

Files and the packages they use (`math_verify`) limit the time of a function like this:

    signal.signal(signal.SIGALRM, handler); signal.alarm(5); …; signal.alarm(0)

Python allows that in the main thread alone, and a file has a thread of its own (`file_host`). While a file is loaded,
these functions of the module `signal` also work in other threads: after the time, the handler is called, and what it
raises is raised in the thread that set the alarm. Handlers of other signals that such a thread sets have no effect: the
run itself is ended by Ctrl-C. In the main thread nothing changes.
"""

import ctypes
import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_ORIGINAL: dict[str, Callable[..., Any]] = {
    name: getattr(signal, name) for name in ("signal", "getsignal", "alarm", "setitimer")
}


@dataclass
class ThreadAlarm:
    """The handlers and the alarm of one thread."""

    handlers: dict[int, Any] = field(default_factory=dict[int, Any])
    timer: threading.Timer | None = None
    due: float = 0.0
    """When the alarm rings, on the clock of `time.monotonic`."""


class _Alarms(threading.local):
    def __init__(self) -> None:
        self.own = ThreadAlarm()


class _Users:
    """How many files are loaded."""

    count = 0
    lock = threading.Lock()


_alarms = _Alarms()


@contextmanager
def allow_thread_alarms() -> Generator[None]:
    """Let threads set alarms inside the block."""
    replaced = {"signal": _set_handler, "getsignal": _get_handler, "alarm": _alarm, "setitimer": _set_timer}
    with _Users.lock:
        _Users.count += 1
        _replace(replaced)
    try:
        yield
    finally:
        with _Users.lock:
            _Users.count -= 1
            if not _Users.count:
                _replace(_ORIGINAL)


def _replace(functions: Mapping[str, Callable[..., Any]]) -> None:
    for name, function in functions.items():
        setattr(signal, name, function)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _set_handler(signalnum: int, handler: Any) -> Any:
    if _is_main():
        return _ORIGINAL["signal"](signalnum, handler)
    before = _alarms.own.handlers.get(signalnum, signal.SIG_DFL)
    _alarms.own.handlers[signalnum] = handler
    return before


def _get_handler(signalnum: int) -> Any:
    if _is_main() or signalnum not in _alarms.own.handlers:
        return _ORIGINAL["getsignal"](signalnum)
    return _alarms.own.handlers[signalnum]


def _alarm(seconds: int) -> int:
    return _ORIGINAL["alarm"](seconds) if _is_main() else math.ceil(_start(float(seconds)))


def _set_timer(which: int, seconds: float, interval: float = 0.0) -> tuple[float, float]:
    if _is_main():
        return _ORIGINAL["setitimer"](which, seconds, interval)
    if which != signal.ITIMER_REAL:
        raise ValueError("outside of the main thread, timers measure real time: use signal.ITIMER_REAL")
    return _start(float(seconds)), 0.0


def _start(seconds: float) -> float:
    """Set the alarm of this thread, or end it with 0. Returns the seconds that were left."""
    own, now = _alarms.own, time.monotonic()
    left = max(0.0, own.due - now) if own.timer is not None else 0.0
    if own.timer is not None:
        own.timer.cancel()
        own.timer = None
        _raise_in(threading.get_ident(), None)
    if seconds > 0:
        own.due = now + seconds
        own.timer = threading.Timer(seconds, _ring, (own.handlers, threading.get_ident()))
        own.timer.daemon = True
        own.timer.start()
    return left


def _ring(handlers: Mapping[int, Any], thread: int) -> None:
    handler = handlers.get(signal.SIGALRM)
    if not callable(handler):
        return
    try:
        handler(signal.SIGALRM, None)
    except BaseException as error:
        _raise_in(thread, _make_class(error))


def _make_class(error: BaseException) -> type[BaseException]:
    """A class whose instances are like the error: an exception for another thread is given as a class."""

    def copy(self: BaseException) -> None:
        self.args = error.args
        self.__dict__.update(error.__dict__)

    return type(type(error).__name__, (type(error),), {"__init__": copy, "__module__": type(error).__module__})


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise an exception in a thread, or take one back that it has not seen yet."""
    given = ctypes.py_object(kind) if kind is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), given)
