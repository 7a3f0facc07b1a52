"""Settings and fixtures of all tests."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from tests.http_kit import kit
from tests.sandbox_kit import backend, bwrap, bwrap_problem

from ludus.cli import main

__all__ = ["backend", "bwrap", "bwrap_problem", "kit", "ludus", "pass_time"]

# No deadline: the time of an example depends on the load of the machine. Examples are the same in every run, so that a
# failure is always caused by a change of the code.
settings.register_profile("ludus", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("ludus")


class Result(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def ludus(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs a command of Ludus in this process."""

    def run(*words: str) -> Result:
        capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as exit:
            code = exit.code if isinstance(exit.code, int) else 2
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def pass_time() -> Callable[[float], None]:
    """Moves the clock of the running loop forward, so that a test triggers its deadlines without waiting."""

    def move_clock(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + seconds

    return move_clock
