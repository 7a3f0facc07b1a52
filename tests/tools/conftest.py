import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.profiles import open_pool

InBox = Callable[..., Any]
"""Runs an async function on a fresh slot."""


def _runner(backend: str) -> InBox:
    def run(body: Callable[[Sandbox], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with open_pool(backend) as pool, pool.lease(SandboxSpec()) as box:
                return await body(box)

        return asyncio.run(main())

    return run


@pytest.fixture
def in_box() -> InBox:
    """For tests that need a slot and not a particular one."""
    return _runner("bwrap")


@pytest.fixture(params=["bwrap", "local"])
def in_each_box(request: pytest.FixtureRequest) -> InBox:
    """For what must be the same in every kind of slot."""
    return _runner(request.param)
