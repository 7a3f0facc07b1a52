"""What slotd keeps on disk: a private folder with the slots' scripts, a copy of bash, and one folder per slot."""

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
from ludus.sandbox.slotd import mount_view as view

_PLACES = ("/var/lib", "/run/ludus", "/var/tmp", "/tmp", "/dev/shm")
"""Where to keep it: rather on a disk, for input of commands lies there."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Base(NamedTuple):
    """The folder, and the bash that slots run."""

    path: str
    lib: str
    bash: str

    def slot(self, name: str) -> str:
        """A new folder for one slot: others may pass through, but not list it."""
        folder = os.path.join(self.path, name)
        os.mkdir(folder, 0o711)
        os.chmod(folder, 0o711)
        for part, mode in (("io", 0o755), ("etc", 0o755), ("root", 0o755)):
            os.mkdir(os.path.join(folder, part))
            os.chmod(os.path.join(folder, part), mode)
        return folder

    def remove(self) -> None:
        remove_tree(self.path)


def make_base() -> Base:
    """Lay down the scripts, in the first place where programs may be run from."""
    bash = shutil.which("bash", path=_PATH) or shutil.which("bash")
    if bash is None:
        raise SandboxError("there is no bash here; slots run their commands in it", retryable=False)
    problems: list[str] = []
    for place in _PLACES:
        try:
            path = os.path.realpath(tempfile.mkdtemp(prefix="ludus-", dir=place))
        except OSError as error:
            problems.append(str(error))
            continue
        base = Base(path, path + "/lib", path + "/lib/bash")
        _remove_orphans(place)
        try:
            _fill(base, bash)
            subprocess.run([base.bash, "-c", ":"], check=True, env={})
        except (OSError, subprocess.CalledProcessError) as error:
            problems.append(f"{place}: {error}")
            base.remove()
            continue
        return base
    raise SandboxError(f"no folder to keep slots in: {'; '.join(problems)}", retryable=False)


def _remove_orphans(place: str) -> None:
    """Remove what a slotd left that was killed. A folder belongs to one as long as it holds its lock."""
    for name in os.listdir(place):
        path = os.path.join(place, name)
        if not name.startswith("ludus-") or os.lstat(path).st_uid != os.geteuid():
            continue
        with contextlib.suppress(OSError), open(f"{path}/lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path)


def _fill(base: Base, bash: str) -> None:
    os.chmod(base.path, 0o711)
    lock = os.open(base.path + "/lock", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # for as long as this process lives
    os.mkdir(base.lib)
    os.chmod(base.lib, 0o755)
    for name in ("supervisor.sh", "inner.line", "ops.sh"):
        data = pkgutil.get_data("ludus.sandbox", f"slot_scripts/{name}")
        assert data is not None
        lay(f"{base.lib}/{name}", data, 0o444)
    with open(bash, "rb") as file:
        # May be run but not read: the kernel then keeps the memory and the descriptors of the slots' shells from
        # every other process of the slot.
        lay(base.bash, file.read(), 0o111)


def lay(path: str, data: bytes, mode: int) -> None:
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def name_user(folder: str, user: int) -> None:
    """Lay down a passwd and a group file in which the slot's user has a name."""
    entries = {"passwd": f"agent:x:{user}:{user}:agent:{view.HOME}:/bin/bash\n", "group": f"agent:x:{user}:\n"}
    for file, line in entries.items():
        try:
            with open(f"/etc/{file}", encoding="utf-8", errors="surrogateescape") as known:
                others = [entry for entry in known if not entry.startswith("agent:")]
        except OSError:
            others = []
        lay(f"{folder}/{file}", (line + "".join(others)).encode(errors="surrogateescape"), 0o644)


def lay_demotion(path: str, user: int, bash: str) -> None:
    """A program that becomes the slot's user and then bash: root's supervisor starts the slot's shells with it."""
    text = (
        f"#!{sys.executable} -IS\n"
        "import os, sys\n"
        f"os.setgroups([]); os.setresgid({user}, {user}, {user}); os.setresuid({user}, {user}, {user})\n"
        f"os.execv({bash!r}, ['bash', *sys.argv[1:]])\n"
    )
    lay(path, text.encode(), 0o755)


def remove_tree(path: str) -> None:
    """Remove a folder that may hold locked folders. Links are not followed."""
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        for folder, _, _ in os.walk(path):
            try:
                os.chmod(folder, 0o700)
            except OSError:
                continue
        shutil.rmtree(path, ignore_errors=True)


def empty(path: str) -> None:
    """Remove what is in a folder, and leave the folder."""
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


def remove_files_of(user: int) -> None:
    """Remove what a user has left in the folders that everyone may write to."""
    for place in ("/tmp", "/var/tmp", "/dev/shm"):
        try:
            names = os.listdir(place)
        except OSError:
            continue
        for name in names:
            entry = os.path.join(place, name)
            try:
                if os.lstat(entry).st_uid != user:
                    continue
                if os.path.isdir(entry) and not os.path.islink(entry):
                    remove_tree(entry)
                else:
                    os.unlink(entry)
            except OSError:
                continue
