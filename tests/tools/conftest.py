from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import Pool

InBox = Callable[[], AbstractAsyncContextManager[Sandbox]]
"""Opens a fresh slot."""


@pytest.fixture
def in_box(pool: Pool) -> InBox:
    """For tests that need a slot and not a particular one."""
    return lambda: pool.lease(SandboxSpec())


@pytest.fixture
def in_each_box(pools: dict[str, Pool], backend: str) -> InBox:
    """For what must be the same in every kind of slot."""
    return lambda: pools[backend].lease(SandboxSpec())
