"""Fixtures for the sandbox backends that this host supports, and a builder of pools."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ludus.errors import ConfigError
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.pool import Create, Pool, PoolSettings


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


def find_inner_pid(pid: int) -> int:
    """The pid of a process in its own innermost pid namespace."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
