"""The private folder of a pool of slots on the host, which is always removed at the end.

It holds the slots' scripts, a copy of bash, one folder per slot, and a file that names the owner. A small janitor
process reads from a pipe of the driver. When the driver closes it or dies, even by kill -9, the janitor removes what
remains of the folder and of the slots' control groups. If the janitor dies too (the machine loses power), the owner
file is how the folder is found later: see `find_host_resources`.
"""

import contextlib
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
from ludus.sandbox.owner import OwnedResource, make_owner_mark

SCRIPTS = Path(__file__).parent.parent / "slot_scripts"


_PREFIX = "ludus-"
_OWNER_FILE = "owner.json"


class _OwnerFile(Struct, frozen=True):
    owner: str
    cgroups: tuple[str, ...]


class HostDir:
    """The folder, which other users may pass through but not list, and its janitor. `lib` is its folder of scripts."""

    def __init__(self, cgroups: Sequence[Path] = (), *, lib: str = "lib") -> None:
        try:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
            write_file(
                self.path / _OWNER_FILE,
                msgspec.json.encode(_OwnerFile(make_owner_mark(), tuple(map(str, cgroups)))),
                0o600,
            )
            self.path.chmod(0o711)
            self.lib = self.path / lib
            make_open_folder(self.lib)
            for script in SCRIPTS.glob("*.sh"):
                write_file(self.lib / script.name, script.read_bytes(), 0o444)
            inner = (SCRIPTS / "inner.sh").read_text()
            make_open_folder(self.lib / "bin")
            write_file(self.lib / "bin" / "python", (SCRIPTS / "python.sh").read_bytes(), 0o555)
            write_file(self.lib / "inner.line", join_lines(inner).encode(), 0o444)
            write_file(self.lib / "bash", Path(find_bash()).read_bytes(), 0o111)  # see bwrap.py for the mode
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
            raise SandboxError(f"the folder for slots cannot be made on the host: {error}") from error
        self._slots = 0

    def make_slot_folder(self, owner: int | None = None) -> Path:
        """Make the folder of one slot. Only its owner may enter it."""
        self._slots += 1
        path = self.path / f"slot-{self._slots}"
        try:
            path.mkdir(mode=0o700)
            if owner is not None:
                os.chown(path, owner, owner)
        except OSError as error:
            raise SandboxError(f"the folder of a slot cannot be made on the host: {error}") from error
        return path

    def close(self) -> None:
        """Remove the folder and end the janitor."""
        remove_tree(self.path)
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait()


def find_host_resources() -> list[OwnedResource]:
    """Find the folders of this user's drivers on this host. Those of other users are ignored: they may be forged."""
    found: list[OwnedResource] = []
    for owner_file in Path(tempfile.gettempdir()).resolve().glob(f"{_PREFIX}*/{_OWNER_FILE}"):
        with suppress(OSError, msgspec.DecodeError):
            status = owner_file.parent.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            owner = msgspec.json.decode(owner_file.read_bytes(), type=_OwnerFile).owner
            found.append(OwnedResource("this host", "folder", str(owner_file.parent), owner))
    return found


def remove_host_resource(resource: OwnedResource) -> None:
    """Remove a folder and its control groups. Raises OSError if something cannot be removed."""
    folder = Path(resource.name)
    owner = msgspec.json.decode((folder / _OWNER_FILE).read_bytes(), type=_OwnerFile)
    for group in map(Path, owner.cgroups):
        for each in (*(group.iterdir() if group.is_dir() else ()), group):
            if each.is_dir():
                each.rmdir()
    remove_tree(folder)
    if folder.exists():
        raise OSError(f"{folder} cannot be removed")


def write_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file with exactly this mode, independent of the umask."""
    path.write_bytes(data)
    path.chmod(mode)


def make_open_folder(path: Path) -> None:
    """Make a folder and its missing parents, readable for every user, independent of the umask."""
    if path.is_dir():
        return
    make_open_folder(path.parent)
    with contextlib.suppress(FileExistsError):  # another rollout or process may make it at the same time
        path.mkdir()
        path.chmod(0o755)


def join_lines(script: str) -> str:
    """Join a script into a single line, without comments, so that line numbers in a command's errors are correct."""
    return " ".join(line.strip() for line in script.splitlines() if not line.startswith("#"))


def find_bash() -> str:
    found = shutil.which("bash", path="/bin:/usr/bin:/usr/local/bin:" + os.defpath)
    if found is None:
        raise SandboxError("bash is not installed: slots run their commands in it", retryable=False)
    return found


def remove_tree(path: Path) -> None:
    """Remove a folder that may hold folders without permissions. What cannot be removed is left to the janitor."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        for folder, _, _ in os.walk(path):
            with suppress(OSError):
                Path(folder).chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
