"""Backports for the Pythons that containers have."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.slotd_kit import call, open_boxes, start_slotd

from ludus.sandbox import shell
from ludus.sandbox.slotd.py38 import _Timeout, _zip, fill_gaps


def find_older_pythons() -> list[str]:
    """The Pythons before 3.11 that this host has, by minor version."""
    roots = [Path(folder) for folder in os.environ.get("PATH", "").split(":") if folder]
    roots += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.*/bin"))
    found: dict[int, str] = {}
    for minor in (8, 9, 10):
        for path in (root / f"python3.{minor}" for root in roots):
            if minor not in found and path.exists():
                done = subprocess.run([path, "-c", "import ctypes, fcntl"], capture_output=True)
                if done.returncode == 0:
                    found[minor] = str(path)
    return list(found.values())


def test_the_timeout_raises_after_its_time_and_not_before():
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with _Timeout(0.01):
                await asyncio.Event().wait()
        async with _Timeout(60):
            await asyncio.sleep(0)
        with pytest.raises(KeyError):
            async with _Timeout(60):
                raise KeyError

    asyncio.run(main())


def test_a_cancellation_from_outside_is_no_timeout():
    async def wait() -> None:
        async with _Timeout(60):
            await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_zip_takes_the_argument_that_older_pythons_lack():
    assert list(_zip("ab", "cd", strict=True)) == [("a", "c"), ("b", "d")]


def test_a_python_that_lacks_nothing_is_left_as_it_is():
    before = asyncio.timeout
    fill_gaps()
    assert asyncio.timeout is before
    assert not hasattr(shell, "zip")
    assert sys.version_info >= (3, 11)


@pytest.mark.parametrize("python", find_older_pythons() or [None])
def test_slotd_runs_under_older_pythons(python):
    if python is None:
        pytest.skip("no Python before 3.11 here")

    async def main() -> None:
        async with start_slotd(python=python) as (link, info):
            assert info.python.startswith(python.rpartition("python")[2])
            (box,) = await open_boxes(link, info)
            assert (await box.exec("echo on; echo err >&2; exit 3")).exit_code == 3
            assert (await box.exec("sleep 60", timeout=0.2)).timed_out
            await box.write("file", bytes(1 << 20))
            assert len(await box.read("file")) == 1 << 20
            await box.settle()
            await box.reset()
            with pytest.raises(FileNotFoundError):
                await box.read("file")
            assert (await call(link, {"op": "hello"})).head["slots"] == 1

    asyncio.run(main())
