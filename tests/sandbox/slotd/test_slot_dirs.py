"""The folder that slotd keeps on disk."""

import os
import pwd
import signal
import stat
from pathlib import Path

import pytest
from tests.slotd_kit import find_folder, needs_python, open_boxes, start_slotd, wait_gone

from ludus.errors import SandboxError
from ludus.sandbox.processes import find_children
from ludus.sandbox.slotd.slot_dirs import (
    SlotdDir,
    empty_folder,
    find_home,
    remove_tree,
    remove_user_files,
    write_user_files,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="the tests do not run as root")


@needs_python
async def test_a_killed_slotd_ends_its_slots_and_the_next_removes_its_folder():
    async with start_slotd() as (link, info):
        folder = find_folder(link)
        (box,) = await open_boxes(link, info)
        processes = find_children(link._channel.pid)
        os.kill(link._channel.pid, signal.SIGKILL)
        with pytest.raises(SandboxError):
            await box.exec("true")
        for pid in processes:
            await wait_gone(pid)
    # The folder is left behind, but another slotd of this machine may have removed it already.
    async with start_slotd() as (link, _):
        assert not folder.exists()
        folder = find_folder(link)
    assert not folder.exists()


def test_a_slots_folder_has_a_long_random_name_and_is_for_its_own_user(tmp_path):
    slotd_dir = SlotdDir(str(tmp_path), "", "")
    folders = [Path(slotd_dir.make_slot_folder(os.geteuid())) for _ in range(2)]
    assert len(folders[0].name) == 32
    assert folders[0].name != folders[1].name
    for path in (folders[0], *folders[0].iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {path.name for path in folders[0].iterdir()} == {"io", "etc", "root", "changes"}


def test_the_home_of_a_user_by_name_and_number():
    own = pwd.getpwuid(0)
    assert find_home(own.pw_name) == find_home("0") == own.pw_dir
    assert find_home("nobody-at-all") == "/root"


@needs_root
def test_another_user_can_read_only_the_folder_of_its_own_slot(tmp_path):
    folder = Path(SlotdDir(str(tmp_path), "", "").make_slot_folder(54321))
    for path in (folder, *folder.iterdir()):
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 54321, 0o750)


def test_folders_nested_thousands_deep_are_removed(tmp_path):
    top = os.open(tmp_path, os.O_RDONLY)
    folder = os.dup(top)
    for _ in range(3000):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=below))
        os.close(folder)
        folder = below
    os.fchmod(folder, 0)
    os.close(folder)
    os.close(top)
    empty_folder(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_slots_user_has_a_name_before_all_others(tmp_path):
    write_user_files(str(tmp_path), 4711)
    passwd = (tmp_path / "passwd").read_text().splitlines()
    assert passwd[0] == "agent:x:4711:4711:agent:/home/agent:/bin/bash"
    assert [line for line in passwd if line.startswith("agent:")] == passwd[:1]
    assert passwd[1:] == [
        line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("agent:")
    ]
    assert (tmp_path / "group").read_text().startswith("agent:x:4711:\n")


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
