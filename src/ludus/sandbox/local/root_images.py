"""Root file systems for slots: Dockerfiles replayed without a container engine, or images that an engine has made.

    Dockerfile ──> base (a folder, Debian, or this machine's programs) ──> steps in a slot ──> a layer in the cache
    Dockerfile or the name of an image ──> docker or podman: build or pull ──> export ──> a folder in the cache

`Images.prepare` returns what a slot with an `ImageSpec` starts with: layers, the lowest first, variables and the
working folder. The steps of the Dockerfile (`sandbox/dockerfile.py`) run one after the other in one slot, which has the
network and none of the driver's variables. What they change becomes a layer in the cache, under a name that depends on
the base, the Dockerfile and every file beside it. So an image is made once per machine, and slots share it.

A base is what the user's mapping says (a folder, or `host`), or Debian by `debootstrap` for the names `debian:…` and
`python:…`. In a slot, one user owns all files. A driver that is root samples that user when it makes a base, and the
layers on top have the same owner. The cache must be a folder that this user can reach.
"""

import asyncio
import hashlib
import os
import posixpath
import secrets
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from shlex import quote

import msgspec
from msgspec import Struct

from ludus.errors import SandboxError
from ludus.sandbox import ExecResult, ImageSpec, SandboxSpec, engine_images
from ludus.sandbox.archive import ArchiveEntry, extract_entries, gather_entries, make_archive, read_entries
from ludus.sandbox.dockerfile import (
    PATH,
    CopyStep,
    FolderStep,
    NeedsEngine,
    Recipe,
    RunStep,
    Step,
    WriteStep,
    is_ignored,
    read_definition,
    read_dockerfile,
)
from ludus.sandbox.local.host_dir import make_open_folder, remove_tree
from ludus.sandbox.local.layers import change_owner
from ludus.sandbox.shell_sandbox import ShellSandbox

HOST = "host"
"""The base that has the programs of this machine."""
BUILD_SPEC = SandboxSpec(network=True, memory_mb=4096, disk_mb=6144, processes=4096)
"""The slot in which a Dockerfile is replayed."""
_VERSION = "1"
_LAYER_BYTES = 4 * 2**30
_OWN_PATHS = ("run/ludus", "proc", "dev", "sys", "tmp/.ludus-jobs", "etc/resolv.conf")
"""Places that are the slot's and not the image's."""
_PYTHON_SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie", "3": "trixie", "latest": "trixie"}
_DEBIAN_SUITES = {
    "11": "bullseye",
    "12": "bookworm",
    "13": "trixie",
    "latest": "trixie",
    "stable": "trixie",
    "bullseye": "bullseye",
    "bookworm": "bookworm",
    "trixie": "trixie",
}
_DEBOOTSTRAP_SECONDS = 1200.0
_NEWEST_USER = 0x7000_0000
"""User ids from here on were sampled for slots."""


class RootImage(Struct, frozen=True):
    """What slots with an image start with."""

    layers: tuple[str, ...]
    """Folders of the host, the lowest first."""
    owner: int | None
    """The user who owns the files; None for the driver's own."""
    env: tuple[tuple[str, str], ...] = (("PATH", PATH),)
    folder: str = "/"
    home: str = "/root"
    has_host_programs: bool = False
    """Whether slots see this machine's /usr."""


class DebianBase(Struct, frozen=True):
    """A base that `debootstrap` makes."""

    suite: str
    has_python: bool

    @property
    def name(self) -> str:
        return f"debian-{self.suite}{'-python' if self.has_python else ''}"


class _Stored(Struct, frozen=True):
    """The file beside a layer in the cache."""

    env: tuple[tuple[str, str], ...]
    folder: str
    home: str


OpenSlot = Callable[[SandboxSpec, RootImage], Awaitable[ShellSandbox]]


# ---- which base ---------------------------------------------------------------------------------------------------


def choose_base(name: str, bases: Sequence[tuple[str, str]]) -> str | DebianBase:
    """What `FROM name` means: a folder of the host, `host`, or a Debian to be made.

    Raises:
        NeedsEngine: it is not mapped, and is neither a Debian nor a Python image.
    """
    short = name.removeprefix("docker.io/").removeprefix("library/").partition("@")[0]
    repository, _, tag = short.partition(":")
    mapping = dict(bases)
    for choice in (name, short, repository):
        if choice in mapping:
            return mapping[choice]
    if repository.startswith("ghcr.io/laude-institute/t-bench/python-"):
        repository, tag = "python", repository.rpartition("/")[2].removeprefix("python-").replace("-", ".", 1)
    words = (tag or "latest").split("-")
    if repository == "debian" and (suite := _DEBIAN_SUITES.get(words[0].partition(".")[0])):
        return DebianBase(suite, False)
    suite = _PYTHON_SUITES.get(".".join(words[0].split(".")[:2]))
    if repository == "python" and suite and all(word == "slim" or word in _DEBIAN_SUITES for word in words[1:]):
        return DebianBase(suite, True)
    raise NeedsEngine(f"FROM {name} is no base that can be made here: map it with --env.bases {repository}=FOLDER")


def check_base(base: str | DebianBase) -> str:
    """Why a base cannot be used on this machine; empty if it can."""
    if isinstance(base, DebianBase):
        if os.geteuid() != 0:
            return f"{base.name} is made by debootstrap, which needs root"
        return "" if shutil.which("debootstrap") else f"{base.name} is made by debootstrap, which is not installed"
    if base == HOST or (Path(base).expanduser() / "usr").is_dir():
        return ""
    return f"there is no root file system in {base}"


def find_problem(image: ImageSpec) -> str:
    """Why a Dockerfile cannot be replayed on this machine; empty if it can, as far as its text says."""
    try:
        recipe = read_recipe(image)
        return check_base(choose_base(recipe.base, image.bases))
    except NeedsEngine as error:
        return str(error)


def read_recipe(image: ImageSpec) -> Recipe:
    """The steps of the folder's Dockerfile, or of its `container.def` if it has no Dockerfile.

    Raises:
        NeedsEngine: it cannot be read, or not be replayed.
    """
    folder = Path(image.folder)
    is_definition = not (folder / "Dockerfile").is_file() and (folder / "container.def").is_file()
    path = folder / ("container.def" if is_definition else "Dockerfile")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise NeedsEngine(f"{path} cannot be read: {words}") from None
    return read_definition(text) if is_definition else read_dockerfile(text)


# ---- the cache ----------------------------------------------------------------------------------------------------


class Images:
    """The images of one pool. `open_slot` opens a slot with an image, for the steps of a Dockerfile."""

    def __init__(self, open_slot: OpenSlot, etc: Path, new_user: Callable[[], int | None]) -> None:
        """`etc`: a small /etc for the base `host`. `new_user` samples the owner of a base."""
        self._open_slot = open_slot
        self._etc = etc
        self._new_user = new_user
        self._made: dict[ImageSpec, asyncio.Task[RootImage]] = {}
        self._lock = asyncio.Lock()

    async def prepare(self, spec: ImageSpec) -> RootImage:
        """The image, made first if it is not in the cache. An image that could not be made is not tried again.

        Raises:
            SandboxError: it cannot be made. Not retryable.
        """
        if spec not in self._made:
            self._made[spec] = asyncio.create_task(self._make(spec))
        return await asyncio.shield(self._made[spec])

    async def close(self) -> None:
        """Stop making images."""
        for task in self._made.values():
            task.cancel()
        await asyncio.gather(*self._made.values(), return_exceptions=True)

    async def _make(self, spec: ImageSpec) -> RootImage:
        if spec.engine:
            return await self._make_with_engine(spec)
        try:
            async with asyncio.timeout(spec.seconds):
                recipe = await asyncio.to_thread(read_recipe, spec)
                cache = await asyncio.to_thread(_open_cache, spec.cache)
                async with self._lock:  # images of one base would make it at the same time
                    base = await asyncio.to_thread(self._prepare_base, choose_base(recipe.base, spec.bases), cache)
                return await self._prepare_layer(spec, recipe, base, cache)
        except NeedsEngine as error:
            raise SandboxError(f"{_name(spec)} needs a container engine: {error}", retryable=False) from None
        except TimeoutError:
            raise SandboxError(
                f"{_name(spec)} was not made within {spec.seconds:g} s: allow it more time", retryable=False
            ) from None
        except OSError as error:
            raise SandboxError(f"{_name(spec)} cannot be made: {error}", retryable=False) from error

    async def _make_with_engine(self, spec: ImageSpec) -> RootImage:
        try:
            cache = await asyncio.to_thread(_open_cache, spec.cache)
            config = await engine_images.make_image(spec, (spec.engine,))
            fill = partial(engine_images.export_image, spec.engine, config)
            folder = await asyncio.to_thread(self._store_base, cache / f"engine-{config.id}", fill)
        except OSError as error:
            raise SandboxError(f"{_name(spec)} cannot be made: {error}", retryable=False) from error
        home = _read_home(folder, config.user)
        env = {"PATH": PATH, "HOME": home, **config.env}
        return RootImage((str(folder),), _find_owner(folder), tuple(env.items()), config.folder, home)

    def _prepare_base(self, base: str | DebianBase, cache: Path) -> RootImage:
        if problem := check_base(base):
            raise SandboxError(problem, retryable=False)
        if isinstance(base, DebianBase):
            folder = self._store_base(cache / base.name, partial(_run_debootstrap, base))
        elif base == HOST:
            digest = _hash_folder(self._etc, self._etc.rglob("*"))[:16]
            folder = self._store_base(cache / f"host-{digest}", self._copy_skeleton)
        else:
            folder = Path(base).expanduser().resolve()
            if not _is_usable(folder):
                folder = self._store_base(cache / f"base-{_identify(folder)}", partial(_copy_root, folder))
        return RootImage((str(folder),), _find_owner(folder), has_host_programs=base == HOST)

    def _store_base(self, folder: Path, fill: Callable[[Path], None]) -> Path:
        if folder.is_dir():
            return folder
        unfinished = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
        try:
            make_open_folder(unfinished)
            fill(unfinished)
            user = self._new_user()
            if user is not None:
                change_owner(unfinished, user)
            _finish(unfinished, folder)
        except BaseException:
            remove_tree(unfinished)
            raise
        return folder

    def _copy_skeleton(self, target: Path) -> None:
        """The folders that programs expect beside /usr."""
        shutil.copytree(self._etc, target / "etc", symlinks=True, ignore=shutil.ignore_patterns("ludus"))
        for name in ("root", "home", "var/tmp", "var/log", "var/lib", "opt", "srv", "mnt", "run", "usr", "tmp"):
            make_open_folder(target / name)
        (target / "tmp").chmod(0o1777)
        (target / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
        (target / "etc/group").write_text("root:x:0:\n")
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            if Path("/", name).is_symlink():
                (target / name).symlink_to(Path("/", name).readlink())

    async def _prepare_layer(self, spec: ImageSpec, recipe: Recipe, base: RootImage, cache: Path) -> RootImage:
        key = await asyncio.to_thread(_hash_image, spec, base)
        folder = cache / f"image-{key}"
        if not await asyncio.to_thread(folder.is_dir):
            await self._replay(spec, recipe, base, folder)
        data = await asyncio.to_thread((folder / "image.json").read_bytes)
        stored = msgspec.json.decode(data, type=_Stored)
        return RootImage(
            (*base.layers, str(folder / "layer")),
            base.owner,
            stored.env,
            stored.folder,
            stored.home,
            base.has_host_programs,
        )

    async def _replay(self, spec: ImageSpec, recipe: Recipe, base: RootImage, folder: Path) -> None:
        """Run the steps in a slot, and store what they changed."""
        box = await self._open_slot(BUILD_SPEC, base)
        try:
            for step in recipe.steps:
                await _replay_step(step, box, spec)
            await box.settle()
            home = await _find_home(box, recipe.user)
            packed = await box.pack_changes(max_bytes=_LAYER_BYTES)
        finally:
            await box.close()
        stored = _Stored(_finish_env(recipe, home), recipe.folder, home)
        await asyncio.to_thread(_store_layer, packed, stored, folder, base.owner)


def _name(spec: ImageSpec) -> str:
    return f"the image of {spec.folder}" if spec.folder else f"image {spec.name}"


def _open_cache(folder: str) -> Path:
    """The folder of the cache. Slots' users must be able to pass through it."""
    default = "/var/cache/ludus/images" if os.geteuid() == 0 else "~/.cache/ludus/images"
    cache = Path(folder or default).expanduser().resolve()
    make_open_folder(cache)
    closed = [each for each in (cache, *cache.parents) if os.geteuid() == 0 and not each.stat().st_mode & 0o001]
    if closed:
        raise SandboxError(
            f"env.cache {cache}: slots run as other users, who may not enter {closed[0]}; choose another folder",
            retryable=False,
        )
    return cache


def _is_usable(root: Path) -> bool:
    """Whether slots can use a folder as it is: a driver that is not root owns its files, and others were made here."""
    return os.geteuid() != 0 or root.stat().st_uid >= _NEWEST_USER


def _find_owner(root: Path) -> int | None:
    return root.stat().st_uid if os.geteuid() == 0 else None


def _finish(unfinished: Path, folder: Path) -> None:
    """Give a finished folder its name. Another driver may have made the same one meanwhile."""
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        remove_tree(unfinished)


def _store_layer(packed: bytes, stored: _Stored, folder: Path, owner: int | None) -> None:
    unfinished = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    try:
        make_open_folder(unfinished / "layer")
        entries = read_entries(packed, layer=True, max_bytes=_LAYER_BYTES)
        extract_entries((entry for entry in entries if not _is_own(entry.path)), unfinished / "layer", all_links=True)
        if owner is not None:
            change_owner(unfinished / "layer", owner)
        (unfinished / "image.json").write_bytes(msgspec.json.encode(stored))
        _finish(unfinished, folder)
    except (OSError, ValueError) as error:
        remove_tree(unfinished)
        raise SandboxError(f"the image cannot be stored: {error}", retryable=False) from error


def _is_own(path: str) -> bool:
    return any(path == own or path.startswith(f"{own}/") for own in _OWN_PATHS)


# ---- names in the cache -------------------------------------------------------------------------------------------


def _hash_image(spec: ImageSpec, base: RootImage) -> str:
    folder = Path(spec.folder)
    files = (path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    return hashlib.sha256(f"{_VERSION} {base.layers} {_hash_folder(folder, files)}".encode()).hexdigest()[:24]


def _hash_folder(folder: Path, paths: Iterable[Path]) -> str:
    """A hash of the names, modes and contents of files."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        status = path.lstat()
        digest.update(f"{path.relative_to(folder)}\0{status.st_mode & 0o170777}\0".encode(errors="surrogateescape"))
        if path.is_symlink():
            digest.update(str(path.readlink()).encode(errors="surrogateescape"))
        elif path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _identify(root: Path) -> str:
    """A name for a folder with a root file system, by its place and the times of its main folders."""
    times = [
        (root / name).lstat().st_mtime_ns
        for name in (".", "etc", "usr", "usr/bin", "usr/lib")
        if (root / name).exists()
    ]
    return hashlib.sha256(f"{root} {times}".encode()).hexdigest()[:16]


# ---- bases --------------------------------------------------------------------------------------------------------


def _run_debootstrap(base: DebianBase, target: Path) -> None:
    """Make a minimal Debian, in a mount namespace, so that the host keeps none of its mounts."""
    packages = "ca-certificates" + (",python3,python3-pip,python3-venv" if base.has_python else "")
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", base.suite, str(target)]
    unshare = shutil.which("unshare")
    done = subprocess.run(
        [*([unshare, "--mount", "--"] if unshare else []), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"},
        timeout=_DEBOOTSTRAP_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        words = done.stdout.decode(errors="replace").strip()[-500:]
        raise SandboxError(f"debootstrap {base.suite} failed: {words}", retryable=False)
    shutil.rmtree(target / "dev", ignore_errors=True)
    (target / "dev").mkdir(exist_ok=True)
    if base.has_python:
        for link, program in (("python", "python3"), ("python3", "python3"), ("pip", "pip3")):
            (target / "usr/local/bin" / link).symlink_to(f"/usr/bin/{program}")
        for marker in target.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            marker.unlink()


def _copy_root(source: Path, target: Path) -> None:
    def leave_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder) == source and name in ("dev", "proc", "sys")]

    try:
        shutil.copytree(source, target, symlinks=True, ignore=leave_out, dirs_exist_ok=True)
    except shutil.Error as error:
        raise OSError(f"{source} cannot be copied: {str(error.args[0][:2])[:300]}") from error


# ---- steps --------------------------------------------------------------------------------------------------------


async def _replay_step(step: Step, box: ShellSandbox, spec: ImageSpec) -> None:
    match step:
        case RunStep():
            await _replay_run(step, box, spec)
        case FolderStep():
            _require(await box.exec(f"mkdir -p {quote(step.path)}"), spec, step.line, f"WORKDIR {step.path}")
        case WriteStep():
            await box.write(step.path, step.text.encode())
            if step.mode is not None:
                await box.exec(f"chmod {step.mode:o} {quote(step.path)}")
        case CopyStep():
            is_folder = step.target.endswith("/") or ((await box.exec(f"test -d {quote(step.target)}")).exit_code == 0)
            entries = await asyncio.to_thread(lambda: list(gather_copy(Path(spec.folder), step, is_folder=is_folder)))
            await box.unpack(make_archive(entries), "/")


async def _replay_run(step: RunStep, box: ShellSandbox, spec: ImageSpec) -> None:
    env = {"DEBIAN_FRONTEND": "noninteractive", **dict(step.env)}
    done = await box.exec(" ".join(map(quote, step.command)), env=env, cwd=step.folder, timeout=spec.seconds, stdin=b"")
    _require(done, spec, step.line, f"RUN {' '.join(step.command[-1].split())[:100]}")


def _require(done: ExecResult, spec: ImageSpec, line: int, what: str) -> None:
    if done.exit_code != 0:
        words, place = done.text.strip()[-600:], f"Dockerfile, line {line}" if line else "container.def"
        raise SandboxError(
            f"{spec.folder}: {place}: '{what}' failed with exit code {done.exit_code}: {words}",
            retryable=False,
        )


def gather_copy(context: Path, step: CopyStep, *, is_folder: bool) -> Iterator[ArchiveEntry]:
    """The files of a `COPY`, by their paths below the image's root. `is_folder`: the target is one.

    Raises:
        NeedsEngine: a source is not there.
    """
    ignore_file = context / ".dockerignore"
    ignored = ignore_file.read_text(encoding="utf-8").splitlines() if ignore_file.is_file() else []
    target = step.target.strip("/")
    for pattern in step.sources:
        found = [context] if pattern == "." else sorted(context.glob(pattern))
        found = [path for path in found if path == context or not is_ignored(str(path.relative_to(context)), ignored)]
        if not found:
            raise NeedsEngine(f"line {step.line}: COPY {pattern}: there is no such file")
        for source in found:
            if source.is_dir():
                place = target
            else:
                place = posixpath.join(target, source.name) if is_folder or len(found) > 1 else target
            for entry in _list_source(source, context, ignored):
                path = posixpath.join(place, entry.path) if source.is_dir() else place
                mode = entry.mode if step.mode is None or entry.is_folder else step.mode
                yield msgspec.structs.replace(entry, path=path.strip("/"), mode=mode)


def _list_source(source: Path, context: Path, ignored: Sequence[str]) -> Iterator[ArchiveEntry]:
    prefix = "" if source == context else f"{source.relative_to(context).as_posix()}/"
    for entry in gather_entries(source.resolve() if not source.is_dir() else source, max_bytes=_LAYER_BYTES):
        if not source.is_dir() or not is_ignored(prefix + entry.path, ignored):
            yield entry


def _read_home(root: Path, user: str) -> str:
    """The home of a user by the image's own list."""
    passwd = root / "etc/passwd"
    lines = passwd.read_text(errors="replace").splitlines() if passwd.is_file() and not passwd.is_symlink() else []
    fields = [line.split(":") for line in lines]
    return next((f[5] for f in fields if len(f) > 5 and user in (f[0], f[2])), "/root") if user else "/root"


async def _find_home(box: ShellSandbox, user: str) -> str:
    if not user or user in ("root", "0"):
        return "/root"
    done = await box.exec(f"getent passwd {quote(user)} | cut -d: -f6")
    return done.stdout.decode(errors="replace").strip() or "/root"


def _finish_env(recipe: Recipe, home: str) -> tuple[tuple[str, str], ...]:
    env: Mapping[str, str] = {"HOME": home, **dict(recipe.env)}
    return tuple(env.items())
