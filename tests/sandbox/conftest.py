"""What every sandbox test shares: a way to run in a slot, and the check that nothing is left behind."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import open_pool
from ludus.sandbox.processes import children

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
    """A folder that slots can be below: pytest's own are closed to their users."""
    path = Path(tempfile.mkdtemp(prefix="lu-t-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def nothing_left() -> Generator[None]:
    """No process, descriptor, folder or control group outlives a test."""
    fds = _open_files()
    yield
    assert children(os.getpid()) == []
    assert _open_files() == fds
    assert _groups(f"ludus-{os.getpid()}-") == []


def _groups(prefix: str) -> list[str]:
    """Not with `glob`, which trips over a group that someone else removes meanwhile."""
    return [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders if name.startswith(prefix)]


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
