"""What holds for all tests."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings

from ludus.cli import main

# Machines are noisy: how long an example takes says nothing about it.
settings.register_profile("ludus", deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
