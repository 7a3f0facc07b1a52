"""The folder of a pool on the host, and its janitor."""

import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ludus.sandbox.local.host_dir import (
    SCRIPTS,
    HostDir,
    find_host_resources,
    join_lines,
    make_open_folder,
    remove_host_resource,
    remove_tree,
    write_file,
)
from ludus.sandbox.owner import make_owner_mark
from ludus.sandbox.processes import find_descendants


@pytest.fixture
def temp_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_holds_scripts_and_a_bash_that_cannot_be_read(temp_folder):
    host = HostDir()
    try:
        assert get_mode(host.path) == 0o711
        assert {path.name for path in host.lib.iterdir()} == {
            *(script.name for script in SCRIPTS.glob("*.sh")),
            "inner.line",
            "bash",
            "bin",
        }
        assert get_mode(host.lib / "bash") == 0o111
        one, two = host.make_slot_folder(), host.make_slot_folder()
        assert one != two
        assert get_mode(one) == 0o700
    finally:
        host.close()
    assert list(temp_folder.iterdir()) == []


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_found_by_its_owner_file_and_removed_with_its_groups(temp_folder):
    groups = temp_folder / "groups"
    (groups / "slot-1").mkdir(parents=True)
    host = HostDir((groups,))
    (resource,) = find_host_resources()
    assert (resource.name, resource.owner) == (str(host.path), make_owner_mark())
    remove_host_resource(resource)
    assert find_host_resources() == []
    assert list(temp_folder.iterdir()) == []
    host.close()


def test_modes_do_not_depend_on_the_umask(tmp_path):
    old = os.umask(0o077)
    try:
        make_open_folder(tmp_path / "a" / "b")
        write_file(tmp_path / "a" / "file", b"data", 0o644)
    finally:
        os.umask(old)
    modes = [get_mode(tmp_path / name) for name in ("a", "a/b", "a/file")]
    assert modes == [0o755, 0o755, 0o644]


def test_a_script_becomes_one_line_that_bash_accepts():
    line = join_lines((SCRIPTS / "inner.sh").read_text())
    assert "\n" not in line
    assert "#!" not in line
    subprocess.run(["bash", "-n", "-c", line], check=True)
    assert join_lines("# comment\n  a;\nb") == "a; b"


def test_locked_folders_are_removed_too(tmp_path):
    locked = tmp_path / "tree" / "locked"
    locked.mkdir(parents=True)
    (locked / "file").touch()
    locked.chmod(0)
    remove_tree(tmp_path / "tree")
    remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []


DRIVER = """
import asyncio, sys
from ludus.sandbox import SandboxSpec
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import open_pool

async def main():
    async with open_pool(sys.argv[1]) as pool:
        based = SandboxSpec(disk_mb=16, base=(sys.argv[2],))
        async with pool.lease(SandboxSpec(disk_mb=16)) as a, pool.lease(based) as b:
            await a.exec("(setsid sleep 400.125 >/dev/null 2>&1 &)")
            await b.start("sleep 400.25")
            print("ready", flush=True)
            await b.exec("sleep 400.5")

asyncio.run(main())
"""


def test_a_killed_driver_leaves_nothing(backend, tmp_path, open_folder):
    environment = {**os.environ, "TMPDIR": make_temp_folder(tmp_path)}
    command = [sys.executable, "-c", DRIVER, backend, str(open_folder)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert driver.stdout is not None
    with driver.stdout:
        assert driver.stdout.readline() == b"ready\n"
        while len(tree := find_descendants([driver.pid])) <= 4:
            assert driver.poll() is None
            time.sleep(0.01)
        driver.kill()
        driver.wait()
    limit = time.monotonic() + 60
    while True:
        left = [p for p in tree if Path(f"/proc/{p}").exists()]
        files = list(Path(environment["TMPDIR"]).iterdir())
        groups = [d for _, ds, _ in os.walk("/sys/fs/cgroup") for d in ds if d.startswith(f"ludus-{driver.pid}-")]
        if time.monotonic() > limit or not (left or files or groups):
            break
        time.sleep(0.02)
    assert (left, files, groups) == ([], [], [])
    shutil.rmtree(environment["TMPDIR"])


def make_temp_folder(tmp_path: Path) -> str:
    """Make a folder that other users may pass through. They may not pass through pytest's own folders."""
    folder = Path("/tmp") / f"ludus-driver-test-{os.getpid()}-{tmp_path.name}"
    folder.mkdir()
    folder.chmod(0o711)
    return str(folder)
