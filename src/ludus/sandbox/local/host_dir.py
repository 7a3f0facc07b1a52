"""What a pool of slots keeps on the host: one private folder, removed at the end, come what may.

It holds the slots' scripts, a copy of bash, one folder per slot, and a note that says whose it is. A small janitor
process holds the other end of a pipe: when the driver closes it, or dies by kill -9, the janitor removes whatever is
left of the folder and of the slots' control groups. What outlives the janitor too (the machine lost power) is found by
the note: `host_holdings`.
"""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from ludus.errors import SandboxError
from ludus.sandbox.owner import Holding, own_mark

SCRIPTS = Path(__file__).parent.parent / "slot_scripts"


_PREFIX = "ludus-"
_NOTE = "owner.json"


class _Note(Struct, frozen=True):
    owner: str
    cgroups: tuple[str, ...]


class HostDir:
    """A folder that others may pass through but not list, and its janitor. `lib` is where in it the scripts lie."""

    def __init__(self, cgroups: Sequence[Path] = (), *, lib: str = "lib") -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
            lay(self.path / _NOTE, msgspec.json.encode(_Note(own_mark(), tuple(map(str, cgroups)))), 0o600)
            self.path.chmod(0o711)
            self.lib = self.path / lib
            open_folder(self.lib)
            for script in SCRIPTS.glob("*.sh"):
                lay(self.lib / script.name, script.read_bytes(), 0o444)
            inner = (SCRIPTS / "inner.sh").read_text()
            lay(self.lib / "inner.line", one_line(inner).encode(), 0o444)
            lay(self.lib / "bash", Path(find_bash()).read_bytes(), 0o111)  # see bwrap.py for the mode
            self._janitor = subprocess.Popen(
                [find_bash(), str(self.lib / "janitor.sh"), str(self.path), *map(str, cgroups)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                env={"PATH": os.defpath},
            )
        except OSError as error:
            raise SandboxError(f"no folder for slots on the host: {error}") from error
        self._slots = 0

    def slot(self, owner: int | None = None) -> Path:
        """A new folder for one slot, of one user alone."""
        self._slots += 1
        path = self.path / f"slot-{self._slots}"
        try:
            path.mkdir(mode=0o700)
            if owner is not None:
                os.chown(path, owner, owner)
        except OSError as error:
            raise SandboxError(f"no folder for a slot on the host: {error}") from error
        return path

    def close(self) -> None:
        """Remove the folder and dismiss the janitor."""
        remove_tree(self.path)
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait()


def host_holdings() -> list[Holding]:
    """The folders of this user's drivers on this host. What another user has put there may be made to mislead us."""
    found: list[Holding] = []
    for note in Path(tempfile.gettempdir()).resolve().glob(f"{_PREFIX}*/{_NOTE}"):
        with suppress(OSError, msgspec.DecodeError):
            status = note.parent.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            owner = msgspec.json.decode(note.read_bytes(), type=_Note).owner
            found.append(Holding("this host", "folder", str(note.parent), owner))
    return found


def drop_from_host(holding: Holding) -> None:
    """Remove a folder and the control groups that go with it. Raises OSError if something stays."""
    folder = Path(holding.name)
    note = msgspec.json.decode((folder / _NOTE).read_bytes(), type=_Note)
    for group in map(Path, note.cgroups):
        for each in (*(group.iterdir() if group.is_dir() else ()), group):
            if each.is_dir():
                each.rmdir()
    remove_tree(folder)
    if folder.exists():
        raise OSError(f"{folder} cannot be removed")


def lay(path: Path, data: bytes, mode: int) -> None:
    """Write a file with just this mode, whatever the umask is."""
    path.write_bytes(data)
    path.chmod(mode)


def open_folder(path: Path) -> None:
    """Make a folder that every user may look into, whatever the umask is, and those above it that are missing."""
    if not path.is_dir():
        open_folder(path.parent)
        path.mkdir()
        path.chmod(0o755)


def one_line(script: str) -> str:
    """A script without its comments on a single line, so that the line numbers in a command's errors are its own."""
    return " ".join(line.strip() for line in script.splitlines() if not line.startswith("#"))


def find_bash() -> str:
    found = shutil.which("bash", path="/bin:/usr/bin:/usr/local/bin:" + os.defpath)
    if found is None:
        raise SandboxError("bash is not installed; slots run their commands in it", retryable=False)
    return found


def remove_tree(path: Path) -> None:
    """Remove a folder that may hold locked folders. What resists is left to the janitor."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for folder, _, _ in os.walk(path):
            with suppress(OSError):
                Path(folder).chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
