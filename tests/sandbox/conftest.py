"""Shared by all sandbox tests: running in a slot, and the check that nothing is left behind."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import pytest

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.processes import find_children
from ludus.sandbox.profiles import open_pool

InBox = Callable[..., AbstractAsyncContextManager[Sandbox]]
SPEC = SandboxSpec(disk_mb=64)


@pytest.fixture
def in_box() -> InBox:
    """Opens one fresh slot."""
    return open_slot


@asynccontextmanager
async def open_slot(backend: str, spec: SandboxSpec = SPEC) -> AsyncGenerator[Sandbox]:
    async with asyncio.timeout(600), open_pool(backend) as pool, pool.lease(spec) as box:
        yield box


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
    # Scorers of other tests are kept warm, and a module may have a pool.
    opened, before, groups = _find_open_files(), find_children(os.getpid()), _find_groups()
    yield
    assert [pid for pid in find_children(os.getpid()) if pid not in before] == []
    assert _find_open_files() - opened == set()
    assert [group for group in _find_groups() if group not in groups] == []


def _find_groups() -> list[str]:
    """Find the control groups of this process. Not with `glob`, which fails if a group is removed meanwhile."""
    prefix = f"ludus-{os.getpid()}-"
    return [name for _, folders, _ in os.walk("/sys/fs/cgroup") for name in folders if name.startswith(prefix)]


def _find_open_files() -> set[tuple[str, str]]:
    """Find the numbers and the files of all descriptors. A file that another test left open may be closed meanwhile."""
    found: set[tuple[str, str]] = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add((each.name, str(each.readlink())))
    return found
