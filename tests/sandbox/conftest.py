"""Shared by all sandbox tests: running in a slot, and the check that nothing is left behind."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.processes import find_children
from ludus.sandbox.profiles import open_pool

InBox = Callable[..., None]
SPEC = SandboxSpec(disk_mb=64)


@pytest.fixture
def in_box() -> InBox:
    """Run an async test in one fresh slot."""

    def run(backend: str, test: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec = SPEC) -> None:
        async def main() -> None:
            async with asyncio.timeout(600), open_pool(backend) as pool, pool.lease(spec) as box:
                await test(box)

        asyncio.run(main())

    return run


@pytest.fixture
def open_folder() -> Generator[Path]:
    """A folder that the slots' users can enter. They cannot enter pytest's own folders."""
    path = Path(tempfile.mkdtemp(prefix="lu-t-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left() -> Generator[None]:
    """No process, descriptor, folder or control group outlives a test."""
    fds, before = _count_open_files(), find_children(os.getpid())  # scorers of other tests are kept warm
    yield
    assert [pid for pid in find_children(os.getpid()) if pid not in before] == []
    assert _count_open_files() == fds
    assert _find_groups(f"ludus-{os.getpid()}-") == []


def _find_groups(prefix: str) -> list[str]:
    """Find control groups. Not with `glob`, which fails if a group is removed meanwhile."""
    return [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders if name.startswith(prefix)]


def _count_open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
