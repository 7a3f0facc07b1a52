"""The folder that slotd keeps on disk."""

import asyncio
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from tests.slotd_kit import needs_python, open_boxes, start_slotd, wait_gone

from ludus.errors import SandboxError
from ludus.sandbox.processes import find_children
from ludus.sandbox.slotd.slot_dirs import (
    SlotdDir,
    empty_folder,
    remove_tree,
    remove_user_files,
    write_demotion,
    write_user_files,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")


@needs_python
def test_a_killed_slotd_ends_its_slots_and_the_next_removes_its_folder():
    async def main() -> None:
        before = set(Path("/var/lib").glob("ludus-*"))  # noqa: ASYNC240
        async with start_slotd() as (link, info):
            (box,) = await open_boxes(link, info)
            (first,) = find_children(link._channel.pid)
            os.kill(link._channel.pid, signal.SIGKILL)
            with pytest.raises(SandboxError):
                await box.exec("true")
            await wait_gone(first)
        async with start_slotd():
            pass
        assert set(Path("/var/lib").glob("ludus-*")) <= before  # noqa: ASYNC240

    asyncio.run(main())


def test_a_slots_folder_can_be_passed_through_but_not_listed(tmp_path):
    old = os.umask(0o077)
    try:
        folder = Path(SlotdDir(str(tmp_path), "", "").make_slot_folder("a"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == dict.fromkeys(
        ("io", "etc", "root"), 0o755
    )


def test_the_slots_user_has_a_name_before_all_others(tmp_path):
    write_user_files(str(tmp_path), 4711)
    passwd = (tmp_path / "passwd").read_text().splitlines()
    assert passwd[0] == "agent:x:4711:4711:agent:/home/agent:/bin/bash"
    assert [line for line in passwd if line.startswith("agent:")] == passwd[:1]
    assert passwd[1:] == [
        line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("agent:")
    ]
    assert (tmp_path / "group").read_text().startswith("agent:x:4711:\n")


@needs_root
def test_the_demotion_program_runs_bash_as_the_slots_user(open_folder):
    program = open_folder / "demote"
    write_demotion(str(program), 54321, "/bin/bash")
    try:
        done = subprocess.run([program, "-c", "id -u; id -g; echo $0 $1", "name", "x"], capture_output=True, text=True)
    except PermissionError:
        pytest.skip("no programs may run from the temporary folder")
    if "Permission denied" in done.stderr:
        pytest.skip("another user cannot run this Python")
    assert done.stdout.split() == ["54321", "54321", "name", "x"]


def test_removing_a_tree_does_not_follow_links(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").touch()
    locked = tmp_path / "tree" / "locked"
    locked.mkdir(parents=True)
    (locked / "file").touch()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    locked.chmod(0)
    remove_tree(str(tmp_path / "tree"))
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (tmp_path / "outside" / "file").exists()


def test_an_emptied_folder_stays(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link").symlink_to("/")
    empty_folder(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    empty_folder(str(tmp_path / "missing"))


@needs_root
def test_only_the_files_of_that_user_are_removed():
    user = 0x6FFF_0000 + os.getpid()
    mine, theirs = Path(f"/tmp/ludus-test-{user}-mine"), Path(f"/tmp/ludus-test-{user}-theirs")
    mine.touch()
    (theirs / "folder").mkdir(parents=True)
    os.chown(theirs, user, user)
    try:
        remove_user_files(user)
        assert (mine.exists(), theirs.exists()) == (True, False)
    finally:
        mine.unlink()
