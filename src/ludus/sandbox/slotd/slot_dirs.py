"""The folder that slotd keeps on disk: the slots' scripts, a copy of bash, and one folder per slot."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pkgutil
import secrets
import shutil
import stat
import subprocess
from typing import NamedTuple

from ludus.errors import SandboxError
from ludus.sandbox.slotd import mount_view

_PARENTS = ("/var/lib", "/run/ludus", "/var/tmp", "/tmp", "/dev/shm")
"""Where to make the folder, best first. A disk is better than memory, since the input of commands is stored there."""
_NAME_BYTES = 16
_MOVED = ".ludus-removed-"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class SlotdDir(NamedTuple):
    """The folder of one slotd, and the paths in it."""

    path: str
    lib: str
    bash: str

    def make_slot_folder(self, user: int) -> str:
        """Make the folder of one slot, with a name that cannot be guessed. Only slotd can change it, and only the
        slot's own user can read it."""
        folder = os.path.join(self.path, secrets.token_hex(_NAME_BYTES))
        for path in (folder, *(f"{folder}/{name}" for name in ("io", "etc", "root", "changes"))):
            os.mkdir(path, 0o700)
            if user != os.geteuid():
                os.chown(path, -1, user)
                os.chmod(path, 0o750)
        return folder

    def remove(self) -> None:
        remove_tree(self.path)

    def remove_orphans(self) -> None:
        """Remove the folders of slotds that were killed. A living slotd holds the lock in its folder."""
        parent = os.path.dirname(self.path)
        for name in os.listdir(parent):
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                if not name.startswith("ludus-") or os.lstat(path).st_uid != os.geteuid():
                    continue
                with open(f"{path}/lock", "rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(path)


def make_slotd_dir(bash_owner: int | None = None) -> SlotdDir:
    """Make the folder in the first parent that allows it and from which programs may run. `bash_owner`: the user who
    owns the copy of bash; None for this one."""
    bash = shutil.which("bash", path=_PATH) or shutil.which("bash")
    if bash is None:
        raise SandboxError("there is no bash here; slots run their commands in it", retryable=False)
    problems: list[str] = []
    for parent in _PARENTS:
        try:
            path = os.path.join(os.path.realpath(parent), f"ludus-{secrets.token_hex(_NAME_BYTES)}")
            os.mkdir(path, 0o700)
        except OSError as error:
            problems.append(str(error))
            continue
        slotd_dir = SlotdDir(path, path + "/lib", path + "/lib/bash")
        try:
            _fill_dir(slotd_dir, bash, bash_owner)
            subprocess.run([slotd_dir.bash, "-c", ":"], check=True, env={})
        except (OSError, subprocess.CalledProcessError) as error:
            problems.append(f"{parent}: {error}")
            slotd_dir.remove()
            continue
        return slotd_dir
    raise SandboxError(f"no folder to keep slots in: {'; '.join(problems)}", retryable=False)


def _fill_dir(slotd_dir: SlotdDir, bash: str, bash_owner: int | None) -> None:
    os.chmod(slotd_dir.path, 0o711)
    lock = os.open(slotd_dir.path + "/lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # for as long as this process lives
    os.mkdir(slotd_dir.lib)
    os.chmod(slotd_dir.lib, 0o755)
    write_file(f"{slotd_dir.lib}/ops.sh", read_script("ops.sh"), 0o444)
    os.mkdir(f"{slotd_dir.lib}/bin")
    os.chmod(f"{slotd_dir.lib}/bin", 0o755)
    write_file(f"{slotd_dir.lib}/bin/python", read_script("python.sh"), 0o555)
    with open(bash, "rb") as file:
        # Executable but not readable: the kernel then hides the memory and the descriptors of the slots' shells from
        # the slot's other processes.
        write_file(slotd_dir.bash, file.read(), 0o111)
    if bash_owner is not None:
        os.chown(slotd_dir.bash, bash_owner, bash_owner)


def read_script(name: str) -> bytes:
    data = pkgutil.get_data("ludus.sandbox", f"slot_scripts/{name}")
    assert data is not None
    return data


def write_file(path: str, data: bytes, mode: int) -> None:
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def find_home(user: str) -> str:
    """The home of a user, by name or number, in this container's list; /root if it has no such user."""
    with contextlib.suppress(OSError), open("/etc/passwd", encoding="utf-8", errors="replace") as file:
        for fields in (line.rstrip("\n").split(":") for line in file):
            if len(fields) > 5 and user in (fields[0], fields[2]):
                return fields[5]
    return "/root"


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


def remove_tree(path: str) -> None:
    """Remove a folder with everything in it, if it exists. Links are not followed."""
    empty_folder(path)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def empty_folder(path: str) -> None:
    """Remove the content of a folder, but not the folder.

    Folders in it are moved to the top before they are emptied. So folders that are nested thousands deep take neither
    a long path nor a deep recursion, and no more than two descriptors.
    """
    try:
        top = _open_folder(path)
    except OSError:
        return
    try:
        _empty_by_moving(top)
    finally:
        os.close(top)


def _empty_by_moving(top: int) -> None:
    while True:
        names = _remove_files(top)
        if not names:
            return
        removed = 0
        for name in names:
            try:
                folder = _open_folder(name, top)
            except OSError:
                continue
            try:
                for inner in _remove_files(folder):
                    with contextlib.suppress(OSError):
                        os.rename(inner, f"{_MOVED}{secrets.token_hex(_NAME_BYTES)}", src_dir_fd=folder, dst_dir_fd=top)
            finally:
                os.close(folder)
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=top)
                removed += 1
        if not removed:  # what is left cannot be removed, such as a mount point
            return


def _open_folder(path: str, parent: int | None = None) -> int:
    """Open a folder, whatever its mode. A link is not followed."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = os.stat(path, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.chmod(path, 0o700, dir_fd=parent)
    return os.open(path, flags, dir_fd=parent)


def _remove_files(folder: int) -> list[str]:
    """Remove everything in a folder but its folders. Returns the names of those."""
    folders: list[str] = []
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.EPERM):  # POSIX names EPERM for a folder, Linux EISDIR
                folders.append(name)
    return folders


def remove_user_files(user: int) -> None:
    """Remove a user's files from the folders that everyone may write to."""
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            entry = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                mine = os.lstat(entry)
                if mine.st_uid != user:
                    continue
                if stat.S_ISDIR(mine.st_mode):
                    remove_tree(entry)
                else:
                    os.unlink(entry)
