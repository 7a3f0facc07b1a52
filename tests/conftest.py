"""What holds for all tests."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from tests.http_kit import kit
from tests.sandbox_kit import backend, bwrap, bwrap_problem

from ludus.cli import main

__all__ = ["backend", "bwrap", "bwrap_problem", "kit", "ludus", "pass_time"]

# Machines are noisy: how long an example takes says nothing about it. And what is tried is the same every time, so that
# a change is judged by what it changes.
settings.register_profile("ludus", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("ludus")


class Result(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def ludus(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs a command as if it had been typed."""

    def run(*words: str) -> Result:
        capsys.readouterr()
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 2
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def pass_time() -> Callable[[float], None]:
    """Has the running loop believe that so many seconds have passed, so that its deadlines come when a test says so
    and not when a machine is slow."""

    def passed(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time
        loop.time = lambda: now() + seconds

    return passed
