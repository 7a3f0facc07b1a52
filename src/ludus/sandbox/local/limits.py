"""What holds a slot within its bounds, and which of the bounds hold on this host.

Memory and the number of processes are limited by control groups (version 1 or 2) where this user may make some, else by
resource limits, which are weaker: memory is then counted per process and not per slot, and the number of files, which
take kernel memory, is not limited. Disk is limited by the size of the slot's own file systems, time and output by the
host's side of the shell, and need nothing here.

Files in a slot lie in memory, so the memory group of a slot has room for `memory_mb` and for its full disks: an agent
that fills its disk gets "no space left", not a killed shell.
"""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec

CONTROLLERS = ("memory", "pids")
SHM_MB = 64
"""What /dev/shm may hold."""
_OPEN_FILES = 4096


class Held(Struct, frozen=True):
    """One limit and what enforces it here, for people."""

    limit: str
    by: str
    strong: bool


class Cgroup:
    """The control groups of one slot: one folder per controller, or one for both in version 2."""

    def __init__(self, folders: Mapping[str, Path], version: int) -> None:
        self._folders = frozenset(folders.values())
        self._door = "tasks" if version == 1 else "cgroup.procs"

    @contextmanager
    def doors(self) -> Generator[tuple[int, ...], None, None]:
        """Open descriptors for a slot's first process: it enters the groups by writing 0 to each.

        The kernel checks who opened them, not who writes. Entering by itself spares the process, and the driver,
        the wait of up to some 10 ms that moving another process takes.
        """
        opened: list[int] = []
        try:
            for folder in self._folders:
                opened.append(os.open(folder / self._door, os.O_WRONLY | os.O_CLOEXEC))
            yield tuple(opened)
        except OSError as error:
            raise SandboxError(f"the slot's control group cannot be used: {error}") from error
        finally:
            for fd in opened:
                os.close(fd)

    def remove(self) -> None:
        for folder in self._folders:
            with suppress(OSError):  # a process is still ending: the pool's group is removed again when it closes
                folder.rmdir()


@dataclass(frozen=True)
class Cgroups:
    """Where slots' control groups are made: a parent folder per controller that may be used here."""

    parents: Mapping[str, Path]
    version: int

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self.parents.values()))

    def make(self, name: str, spec: SandboxSpec) -> Cgroup:
        """A group with the limits of `spec`."""
        folders = {controller: parent / name for controller, parent in self.parents.items()}
        try:
            for folder in dict.fromkeys(folders.values()):
                folder.mkdir()
            for controller, folder in folders.items():
                for file, value in _settings(controller, self.version, spec):
                    with suppress(FileNotFoundError):  # swap is not counted everywhere
                        _set(folder / file, value)
        except OSError as error:
            Cgroup(folders, self.version).remove()
            raise SandboxError(f"no control group for a slot: {error}") from error
        return Cgroup(folders, self.version)

    def remove(self) -> None:
        for parent in self.folders:
            with suppress(OSError):
                for slot in parent.iterdir():
                    if slot.is_dir():
                        slot.rmdir()
                parent.rmdir()


def _set(file: Path, value: int) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"%d" % value)
    finally:
        os.close(fd)


def _settings(controller: str, version: int, spec: SandboxSpec) -> list[tuple[str, int]]:
    """File and value pairs, in the order in which the kernel takes them."""
    if controller == "pids":
        return [("pids.max", spec.processes)]
    memory = (spec.memory_mb + 3 * spec.disk_mb + SHM_MB) * 2**20
    if version == 2:
        return [("memory.max", memory), ("memory.swap.max", 0)]
    return [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]


# ---- finding a place ----------------------------------------------------------------------------------------------


def find_cgroups(name: str, *, proc: Path = Path("/proc/self")) -> Cgroups:
    """Make the parent groups `name` wherever this process may; `parents` is empty if it may nowhere."""
    try:
        mounts = (proc / "mountinfo").read_text()
        own = (proc / "cgroup").read_text()
    except OSError:
        return Cgroups({}, 2)
    version_1 = _places_1(mounts, own)
    if version_1:
        made = {c: folder for c, place in version_1.items() if (folder := _make_parent(place, name))}
        return Cgroups(made, 1)
    for place in _places_2(mounts, own):
        if folder := _make_parent_2(place, name):
            return Cgroups(dict.fromkeys(CONTROLLERS, folder), 2)
    return Cgroups({}, 2)


def _places_1(mounts: str, own: str) -> dict[str, Path]:
    """This process's own group per controller, in version 1."""
    paths = {c: path for _, controllers, path in _own_groups(own) for c in controllers.split(",")}
    places: dict[str, Path] = {}
    for root, point, kind, options in _mounts(mounts):
        for controller in CONTROLLERS:
            if kind == "cgroup" and controller in options and controller in paths:
                places[controller] = _below(point, root, paths[controller])
    return places


def _places_2(mounts: str, own: str) -> list[Path]:
    """This process's own group and those above it, in version 2, nearest first."""
    path = next((path for number, _, path in _own_groups(own) if number == "0"), "/")
    for root, point, kind, _ in _mounts(mounts):
        if kind == "cgroup2":
            here, top = _below(point, root, path), Path(point)
            return [here, *(p for p in here.parents if p.is_relative_to(top))]
    return []


def _own_groups(text: str) -> list[tuple[str, str, str]]:
    """Lines "number:controllers:path"."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return [(parts[0], parts[1], parts[2]) for parts in lines if len(parts) == 3]


def _mounts(text: str) -> list[tuple[str, str, str, list[str]]]:
    """Root within the file system, mount point, kind and options of each mount."""
    found: list[tuple[str, str, str, list[str]]] = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) > 4 and len(kind) > 2:
            found.append((fields[3], fields[4], kind[0], kind[2].split(",")))
    return found


def _below(point: str, root: str, path: str) -> Path:
    """Where a group lies, given that `root` of the hierarchy is what is mounted at `point`."""
    inside = path.removeprefix(root.rstrip("/")) if root != "/" else path
    return Path(point) / inside.lstrip("/")


def _make_parent(place: Path, name: str) -> Path | None:
    folder = place / name
    try:
        folder.mkdir()
    except OSError:
        return None
    if os.access(folder / "cgroup.procs", os.W_OK):
        return folder
    folder.rmdir()
    return None


def _make_parent_2(place: Path, name: str) -> Path | None:
    """A parent whose children have both controllers; the kernel allows it only where no process lives."""
    folder = _make_parent(place, name)
    if folder is None:
        return None
    wanted = " ".join(f"+{c}" for c in CONTROLLERS)
    try:
        if not set(CONTROLLERS) <= set((place / "cgroup.subtree_control").read_text().split()):
            (place / "cgroup.subtree_control").write_text(wanted)
        (folder / "cgroup.subtree_control").write_text(wanted)
        if os.access(place / "cgroup.procs", os.W_OK):  # else processes may not be moved here
            return folder
    except OSError:
        pass
    folder.rmdir()
    return None


# ---- resource limits ----------------------------------------------------------------------------------------------


def ulimits(spec: SandboxSpec, controllers: Mapping[str, Path]) -> tuple[str, ...]:
    """Arguments of bash's `ulimit` for what the control groups do not limit."""
    arguments = ["-c", "0", "-n", str(_OPEN_FILES)]
    if "pids" not in controllers:
        arguments += ["-u", str(spec.processes)]
    if "memory" not in controllers:
        arguments += ["-v", str(spec.memory_mb * 1024)]
    return tuple(arguments)


def describe(cgroups: Cgroups) -> tuple[Held, ...]:
    """Which limits hold, and through what."""
    groups = f"control group, version {cgroups.version}"
    memory = Held("memory", groups, True)
    processes = Held("processes", groups, True)
    if "memory" not in cgroups.parents:
        memory = Held("memory", "resource limit: per process, not per slot", False)
    if "pids" not in cgroups.parents:
        processes = Held("processes", "resource limit: per user of the slot", False)
    disk = Held("disk", "size of the slot's own file systems", True)
    shell = Held("time and output", "the driver", True)
    return memory, processes, disk, shell
