"""The folder that slotd keeps on disk: the slots' scripts, a copy of bash, and one folder per slot."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

from ludus.errors import SandboxError
from ludus.sandbox.slotd import mount_view

_PARENTS = ("/var/lib", "/run/ludus", "/var/tmp", "/tmp", "/dev/shm")
"""Where to make the folder, best first. A disk is better than memory, since the input of commands is stored there."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SlotdDir(NamedTuple):
    """The folder of one slotd, and the paths in it."""

    path: str
    lib: str
    bash: str

    def make_slot_folder(self, name: str) -> str:
        """Make the folder of one slot. Other users may pass through it but not list it."""
        folder = os.path.join(self.path, name)
        os.mkdir(folder, 0o711)
        os.chmod(folder, 0o711)
        for part, mode in (("io", 0o755), ("etc", 0o755), ("root", 0o755)):
            os.mkdir(os.path.join(folder, part))
            os.chmod(os.path.join(folder, part), mode)
        return folder

    def remove(self) -> None:
        remove_tree(self.path)


def make_slotd_dir() -> SlotdDir:
    """Make the folder in the first parent that allows it and from which programs may run."""
    bash = shutil.which("bash", path=_PATH) or shutil.which("bash")
    if bash is None:
        raise SandboxError("there is no bash here; slots run their commands in it", retryable=False)
    problems: list[str] = []
    for parent in _PARENTS:
        try:
            path = os.path.realpath(tempfile.mkdtemp(prefix="ludus-", dir=parent))
        except OSError as error:
            problems.append(str(error))
            continue
        slotd_dir = SlotdDir(path, path + "/lib", path + "/lib/bash")
        _remove_orphans(parent)
        try:
            _fill_dir(slotd_dir, bash)
            subprocess.run([slotd_dir.bash, "-c", ":"], check=True, env={})
        except (OSError, subprocess.CalledProcessError) as error:
            problems.append(f"{parent}: {error}")
            slotd_dir.remove()
            continue
        return slotd_dir
    raise SandboxError(f"no folder to keep slots in: {'; '.join(problems)}", retryable=False)


def _remove_orphans(parent: str) -> None:
    """Remove the folders of slotds that were killed. A living slotd holds the lock in its folder."""
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if not name.startswith("ludus-") or os.lstat(path).st_uid != os.geteuid():
            continue
        with contextlib.suppress(OSError), open(f"{path}/lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path)


def _fill_dir(slotd_dir: SlotdDir, bash: str) -> None:
    os.chmod(slotd_dir.path, 0o711)
    lock = os.open(slotd_dir.path + "/lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # for as long as this process lives
    os.mkdir(slotd_dir.lib)
    os.chmod(slotd_dir.lib, 0o755)
    for name in ("supervisor.sh", "inner.line", "ops.sh"):
        data = pkgutil.get_data("ludus.sandbox", f"slot_scripts/{name}")
        assert data is not None
        write_file(f"{slotd_dir.lib}/{name}", data, 0o444)
    with open(bash, "rb") as file:
        # Executable but not readable: the kernel then hides the memory and the descriptors of the slots' shells from
        # the slot's other processes.
        write_file(slotd_dir.bash, file.read(), 0o111)


def write_file(path: str, data: bytes, mode: int) -> None:
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def write_user_files(folder: str, user: int) -> None:
    """Write a passwd and a group file in which the slot's user has a name."""
    entries = {"passwd": f"agent:x:{user}:{user}:agent:{mount_view.HOME}:/bin/bash\n", "group": f"agent:x:{user}:\n"}
    for file, line in entries.items():
        try:
            with open(f"/etc/{file}", encoding="utf-8", errors="surrogateescape") as known:
                others = [entry for entry in known if not entry.startswith("agent:")]
        except OSError:
            others = []
        write_file(f"{folder}/{file}", (line + "".join(others)).encode(errors="surrogateescape"), 0o644)


def write_demotion(path: str, user: int, bash: str) -> None:
    """Write a program that switches to the slot's user and then runs bash.

    A supervisor that runs as root starts the slot's shells with it.
    """
    text = (
        f"#!{sys.executable} -IS\n"
        "import os, sys\n"
        f"os.setgroups([]); os.setresgid({user}, {user}, {user}); os.setresuid({user}, {user}, {user})\n"
        f"os.execv({bash!r}, ['bash', *sys.argv[1:]])\n"
    )
    write_file(path, text.encode(), 0o755)


def remove_tree(path: str) -> None:
    """Remove a folder that may hold folders without permissions. Links are not followed."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        for folder, _, _ in os.walk(path):
            try:
                os.chmod(folder, 0o700)
            except OSError:
                continue
        shutil.rmtree(path, ignore_errors=True)


def empty_folder(path: str) -> None:
    """Remove the content of a folder, but not the folder."""
    try:
        names = os.listdir(path)
    except OSError:
        return
    for name in names:
        entry = os.path.join(path, name)
        if os.path.isdir(entry) and not os.path.islink(entry):
            remove_tree(entry)
        else:
            with contextlib.suppress(OSError):
                os.unlink(entry)


def remove_user_files(user: int) -> None:
    """Remove a user's files from the folders that everyone may write to."""
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            entry = os.path.join(folder, name)
            try:
                if os.lstat(entry).st_uid != user:
                    continue
                if os.path.isdir(entry) and not os.path.islink(entry):
                    remove_tree(entry)
                else:
                    os.unlink(entry)
            except OSError:
                continue
