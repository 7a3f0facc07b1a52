"""Fixtures for the sandbox backends that this host supports, and a builder of pools."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ludus.errors import ConfigError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.pool import Create, Pool, PoolSettings
from ludus.sandbox.profiles import open_pool

OURS = f"{os.getpid():07}"
"""The last digits of every `sleep` that a test looks for on the host. Other tests run at the same time."""


def make_pool(create: Create, **options: Any) -> Pool:
    """A pool with settings and options given by name."""
    settings = {name: options.pop(name) for name in PoolSettings.__struct_fields__ if name in options}
    return Pool(create, PoolSettings(**settings), **options)


@pytest.fixture(scope="session")
def bwrap_problem() -> str:
    async def check() -> str:
        bwrap = Bwrap()
        try:
            await bwrap.check()
        except ConfigError as error:
            return str(error)
        finally:
            await bwrap.close()
        return ""

    return asyncio.run(check())


@pytest.fixture(params=["bwrap", "local"])
def backend(request: pytest.FixtureRequest, bwrap_problem: str) -> str:
    if request.param == "bwrap" and bwrap_problem:
        pytest.skip(bwrap_problem)
    return request.param


@pytest.fixture
def bwrap(bwrap_problem: str) -> str:
    """For tests of isolation, which `local` does not have."""
    if bwrap_problem:
        pytest.skip(bwrap_problem)
    return "bwrap"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_pools(bwrap_problem: str) -> AsyncGenerator[dict[str, Pool]]:
    async with AsyncExitStack() as stack:
        pools: dict[str, Pool] = {}
        for backend in ["local"] if bwrap_problem else ["local", "bwrap"]:
            pools[backend] = await stack.enter_async_context(open_pool(backend, PoolSettings(max_slots=8)))
            async with pools[backend].lease(SandboxSpec()):
                pass  # what all slots share is there from now on
        yield pools


@pytest_asyncio.fixture(loop_scope="module")
async def pools(module_pools: dict[str, Pool]) -> AsyncGenerator[dict[str, Pool]]:
    """A pool of each local backend, opened once per module. No slot outlives a test. `tests/conftest.py` gives the test
    the loop of its module, in which the pools are."""
    yield module_pools
    async with asyncio.timeout(60):
        while any(pool.metrics().live for pool in module_pools.values()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
def pool(pools: dict[str, Pool], bwrap: str) -> Pool:
    """For tests that need slots and not pools of their own."""
    return pools[bwrap]


def find_inner_pid(pid: int) -> int:
    """The pid of a process in its own innermost pid namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
