"""Control groups for slots on this host, and which limits they enforce.

Memory and the number of processes are limited by control groups (version 1 or 2) if this user may make them. Otherwise
resource limits are used, which are weaker: memory then counts per process and not per slot. Disk and the number of
files are limited by the slot's own file systems. Time and output are limited by the host's side of the shell.

Files in a slot are stored in memory. So the memory group of a slot has room for `memory_mb` and for its full disks: an
agent that fills its disk gets "no space left", not a killed shell.
"""

import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.limits import SHM_MB, LimitStatus

CONTROLLERS = ("memory", "pids")
_OPEN_FILES = 4096


class Cgroup:
    """The control groups of one slot: one folder per controller, or one for both in version 2."""

    def __init__(self, folders: Mapping[str, Path], version: int) -> None:
        self._folders = frozenset(folders.values())
        self._procs_file = "tasks" if version == 1 else "cgroup.procs"

    @contextmanager
    def open_procs_files(self) -> Generator[tuple[int, ...], None, None]:
        """Open descriptors through which a slot's first process enters the groups, by writing 0 to each.

        The kernel checks who opened them, not who writes. Moving another process into a group can take 10 ms; a process
        that enters by itself does not wait, and neither does the driver.
        """
        opened: list[int] = []
        try:
            for folder in self._folders:
                opened.append(os.open(folder / self._procs_file, os.O_WRONLY | os.O_CLOEXEC))
            yield tuple(opened)
        except OSError as error:
            raise SandboxError(f"the slot's control group cannot be used: {error}") from error
        finally:
            for fd in opened:
                os.close(fd)

    def remove(self) -> None:
        for folder in self._folders:
            with suppress(OSError):  # a process is still exiting: the pool removes the group when it closes
                folder.rmdir()


@dataclass(frozen=True)
class Cgroups:
    """The parent folders of slots' control groups, by controller. Only controllers that may be used here are listed."""

    parents: Mapping[str, Path]
    version: int

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self.parents.values()))

    def make(self, name: str, spec: SandboxSpec) -> Cgroup:
        """Make the groups of one slot, with the limits of `spec`."""
        folders = {controller: parent / name for controller, parent in self.parents.items()}
        try:
            for folder in dict.fromkeys(folders.values()):
                folder.mkdir()
            for controller, folder in folders.items():
                for file, value in _list_settings(controller, self.version, spec):
                    with suppress(FileNotFoundError):  # not every kernel counts swap
                        _write_value(folder / file, value)
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


def _write_value(file: Path, value: int) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, b"%d" % value)
    finally:
        os.close(fd)


def _list_settings(controller: str, version: int, spec: SandboxSpec) -> list[tuple[str, int]]:
    """List pairs of file and value, in the order in which the kernel accepts them."""
    if controller == "pids":
        return [("pids.max", spec.processes)]
    memory = (spec.memory_mb + 3 * spec.disk_mb + SHM_MB) * 2**20
    if version == 2:
        return [("memory.max", memory), ("memory.swap.max", 0)]
    return [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]


# ---- finding the parent groups ------------------------------------------------------------------------------------


def find_cgroups(name: str, *, proc: Path = Path("/proc/self")) -> Cgroups:
    """Make the parent groups `name` where this process may. `parents` is empty if it may make none."""
    try:
        mounts = (proc / "mountinfo").read_text()
        own = (proc / "cgroup").read_text()
    except OSError:
        return Cgroups({}, 2)
    groups_v1 = _find_groups_v1(mounts, own)
    if groups_v1:
        made = {c: folder for c, group in groups_v1.items() if (folder := _make_parent(group, name))}
        return Cgroups(made, 1)
    for group in _find_groups_v2(mounts, own):
        if folder := _make_parent_v2(group, name):
            return Cgroups(dict.fromkeys(CONTROLLERS, folder), 2)
    return Cgroups({}, 2)


def _find_groups_v1(mounts: str, own: str) -> dict[str, Path]:
    """Find this process's own group per controller, in version 1."""
    paths = {c: path for _, controllers, path in _parse_own_groups(own) for c in controllers.split(",")}
    groups: dict[str, Path] = {}
    for root, point, kind, options in _parse_mounts(mounts):
        for controller in CONTROLLERS:
            if kind == "cgroup" and controller in options and controller in paths:
                groups[controller] = _locate_group(point, root, paths[controller])
    return groups


def _find_groups_v2(mounts: str, own: str) -> list[Path]:
    """Find this process's own group and those above it, in version 2, nearest first."""
    path = next((path for number, _, path in _parse_own_groups(own) if number == "0"), "/")
    for root, point, kind, _ in _parse_mounts(mounts):
        if kind == "cgroup2":
            here, top = _locate_group(point, root, path), Path(point)
            return [here, *(p for p in here.parents if p.is_relative_to(top))]
    return []


def _parse_own_groups(text: str) -> list[tuple[str, str, str]]:
    """Parse lines of the form "number:controllers:path"."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return [(parts[0], parts[1], parts[2]) for parts in lines if len(parts) == 3]


def _parse_mounts(text: str) -> list[tuple[str, str, str, list[str]]]:
    """Parse the root within the file system, the mount point, the kind and the options of each mount."""
    found: list[tuple[str, str, str, list[str]]] = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) > 4 and len(kind) > 2:
            found.append((fields[3], fields[4], kind[0], kind[2].split(",")))
    return found


def _locate_group(point: str, root: str, path: str) -> Path:
    """Return the folder of a group, given that `root` of the hierarchy is mounted at `point`."""
    inside = path.removeprefix(root.rstrip("/")) if root != "/" else path
    return Path(point) / inside.lstrip("/")


def _make_parent(group: Path, name: str) -> Path | None:
    folder = group / name
    try:
        folder.mkdir()
    except OSError:
        return None
    if os.access(folder / "cgroup.procs", os.W_OK):
        return folder
    folder.rmdir()
    return None


def _make_parent_v2(group: Path, name: str) -> Path | None:
    """Make a parent whose children have both controllers. The kernel allows that only in a group without processes."""
    folder = _make_parent(group, name)
    if folder is None:
        return None
    wanted = " ".join(f"+{c}" for c in CONTROLLERS)
    try:
        if not set(CONTROLLERS) <= set((group / "cgroup.subtree_control").read_text().split()):
            (group / "cgroup.subtree_control").write_text(wanted)
        (folder / "cgroup.subtree_control").write_text(wanted)
        if os.access(group / "cgroup.procs", os.W_OK):  # else processes may not be moved here
            return folder
    except OSError:
        pass
    folder.rmdir()
    return None


# ---- resource limits ----------------------------------------------------------------------------------------------


def make_rlimits(spec: SandboxSpec, controllers: Mapping[str, Path]) -> dict[str, int]:
    """Make the resource limits for what the control groups do not limit, by their names in Python's `resource`."""
    limits = {"RLIMIT_CORE": 0, "RLIMIT_NOFILE": _OPEN_FILES}
    if "pids" not in controllers:
        limits["RLIMIT_NPROC"] = spec.processes
    if "memory" not in controllers:
        limits["RLIMIT_AS"] = spec.memory_mb * 2**20
    return limits


def describe_limits(cgroups: Cgroups) -> tuple[LimitStatus, ...]:
    """Describe which limits hold, and what enforces them."""
    groups = f"control group, version {cgroups.version}"
    memory = LimitStatus("memory", groups, True)
    processes = LimitStatus("processes", groups, True)
    if "memory" not in cgroups.parents:
        memory = LimitStatus("memory", "resource limit: per process, not per slot", False)
    if "pids" not in cgroups.parents:
        processes = LimitStatus("processes", "resource limit: per user of the slot", False)
    disk = LimitStatus("disk", "size of the slot's own file systems", True)
    shell = LimitStatus("time and output", "the driver", True)
    return memory, processes, disk, shell
