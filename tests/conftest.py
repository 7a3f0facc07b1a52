"""Settings and fixtures of all tests."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from tests.http_kit import kit
from tests.parallel import pytest_xdist_make_scheduler, rank_test
from tests.sandbox_kit import backend, bwrap, bwrap_problem, module_pools, pool, pools

from ludus.cli import main

__all__ = [
    "backend",
    "bwrap",
    "bwrap_problem",
    "kit",
    "ludus",
    "module_pools",
    "pass_time",
    "pool",
    "pools",
    "pytest_xdist_make_scheduler",
]

# No deadline: the time of an example depends on the load of the machine. Examples are the same in every run, so that a
# failure is always caused by a change of the code. They would not be with the constants that Hypothesis takes from the
# modules that are loaded: these differ with the tests that ran before in this process.
providers._get_local_constants = lambda: providers._local_constants  # pyright: ignore[reportPrivateUsage]
settings.register_profile("ludus", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("ludus")

SLOW = (
    "tests/sandbox/remote/",
    "tests/sandbox/slotd/",
    "tests/sandbox/test_conformance.py",
    "tests/sandbox/test_hostile_shell.py",
    "tests/sandbox/test_agent_files.py",
    "tests/sandbox/test_faults.py",
    "tests/sandbox/test_escape.py",
    "tests/engines/test_ray_engine.py",
    "tests/envs/test_harbor.py",
    "tests/envs/test_swe_smith.py",
    "tests/envs/test_exercism.py",
    "tests/harness/",
    "tests/bench/",
    "tests/models/test_embedded.py",
    "tests/tokens/engines/test_embedded_engine.py",
    "tests/docs/test_examples.py",
    "tests/docs/test_tutorial",
    "tests/test_base_install.py",
    "tests/test_adversary.py",
    "tests/test_hostile_agents.py",
    "tests/verify/test_in_slot.py",
    "tests/tools/test_browser.py",
    "tests/view/browser/",
    "tests/parsers/test_stream.py",
)
"""Modules that take most of the time: slots by the hundred, processes that are killed, models, wheels."""

ASYNC_SECONDS = 600
"""A test that waits for what never comes fails after this time, with the place where it waited."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=rank_test)
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        if isinstance(item, pytest.Function) and item.get_closest_marker("asyncio"):
            if inspect.iscoroutinefunction(item.obj):  # not if it has examples
                item.obj = limit_time(item.obj)
            if "module_pools" in item.fixturenames:
                item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


def limit_time(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def run(*arguments: Any, **named: Any) -> None:
        async with asyncio.timeout(ASYNC_SECONDS):
            await test(*arguments, **named)

    return run


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
