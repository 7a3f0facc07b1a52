"""The start of slotd."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.slotd_kit import PYTHON, HttpSlotd, call, needs_python, open_boxes, start_slotd

from ludus.errors import SandboxError
from ludus.sandbox.remote.bundle import build_bundle
from ludus.sandbox.slotd import frames
from ludus.sandbox.slotd.main import _parse_settings
from ludus.sandbox.slotd.slots import SlotdSettings

pytestmark = needs_python


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "slotd.zip"
    path.write_bytes(build_bundle())
    return path


async def test_a_driver_of_another_version_is_refused(monkeypatch):
    build_bundle()  # before the version changes
    monkeypatch.setattr(frames, "VERSION", 99)
    with pytest.raises(SandboxError, match="speaks version 99"):
        async with start_slotd():
            pass


def test_wrong_arguments_print_the_usage(program):
    done = subprocess.run([PYTHON, program, "elsewhere"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("slotd: usage: The start of slotd.")


def test_a_driver_that_sends_no_hello_is_reported(program):
    done = subprocess.run([PYTHON, program, "stdio"], input=b"", capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"before its hello" in done.stderr


def test_slotd_ends_when_the_driver_closes_its_stdin(program):
    hello = frames.pack(frames.Frame({"op": "hello", "id": 1, "version": frames.VERSION, "view": "system"}))
    done = subprocess.run([PYTHON, program, "stdio"], input=hello, capture_output=True, timeout=120)
    assert done.returncode == 0
    reply = frames.unpack(done.stdout)
    assert (reply.head["id"], reply.head["version"], reply.head["slots"]) == (1, frames.VERSION, 0)
    assert b"closing all slots" in done.stderr


def test_the_log_of_a_listening_slotd_names_port_and_isolation(tmp_path):
    slotd = HttpSlotd(tmp_path)
    slotd.daemon.stop()
    log = (tmp_path / "log").read_text()
    assert f"slotd: listens on port {slotd.port}; isolation: " in log
    assert "closing all slots" in log


def test_settings_have_the_types_of_their_defaults():
    assert _parse_settings({"lapse": 5, "op": "hello"}) == SlotdSettings(lapse=5.0)
    settings = _parse_settings({"view": "system", "as_root": 1, "exclusive": True})
    assert settings == SlotdSettings("system", True, True)
    assert isinstance(settings.lapse, float)


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


@pytest.mark.parametrize("python", find_older_pythons() or [None])
async def test_slotd_runs_under_older_pythons(python):
    if python is None:
        pytest.skip("no Python before 3.11 here")

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
