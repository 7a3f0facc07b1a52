"""Opens pools of slots.

    async with open_pool("bwrap") as pool:
        async with pool.lease(SandboxSpec()) as box:
            await box.exec("echo hi")

A pool has the slots of one backend, or of several profiles. A spec names the profile that its slot is made with; the
empty name is the default one:

    profiles = {"": BwrapSettings(), "gpu": ModalSettings(gpu="T4")}
    async with open_pool(profiles) as pool:
        async with pool.lease(SandboxSpec(profile="gpu")) as box:
            await box.exec("nvidia-smi")

A profile's backend is started when its first slot is requested. So a profile that is not used costs nothing, and it
does not matter if it is broken. Profiles contain the names of secrets only: `read_secret` returns the values.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from ludus.errors import ConfigError, suggest
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.backend import Backend, BackendSettings, ReadSecret, SlotBackend, SlotSource
from ludus.sandbox.backends import BACKENDS, Profile, check_needed, is_isolated, make_backend, refuse_secret
from ludus.sandbox.pool import Pool, PoolSettings, require_slot
from ludus.sandbox.remote.fleet import RemoteBackend, open_fleet


@asynccontextmanager
async def open_pool(
    backend: str | Profile | Mapping[str, Profile] = "bwrap",
    settings: PoolSettings = PoolSettings(),
    *,
    first: str = "",
    lease_seconds: float | None = None,
    require_sandbox: bool = False,
    read_secret: ReadSecret = refuse_secret,
    tell: Callable[[str], None] = lambda message: None,
) -> AsyncGenerator[Pool, None]:
    """A pool of slots. Leaving the block ends every slot and every container.

    `backend`: the name of a built-in backend that needs no settings, the settings of a built-in backend, a backend of
    your own, or several of these by profile name. `first`: the profile that is checked before the pool opens.
    `lease_seconds`: see `Pool`. `require_sandbox`: refuse backends that isolate nothing. `tell` is called with messages
    for the user.

    Raises:
        ConfigError: the backend or the profile `first` is unknown, does not work here, or isolates nothing although
            `require_sandbox` is set. There is no fallback to another backend.
    """
    profiles = {name: _find_profile(profile) for name, profile in _list_profiles(backend).items()}
    if require_sandbox:
        require_isolation(profiles)
    async with AsyncExitStack() as stack:
        sources = _SlotSources(profiles, read_secret, stack, tell)
        await sources.open(first)
        pool = Pool(sources.create, settings, lease_seconds=lease_seconds, snapshot=sources.snapshot)
        async with pool:
            yield pool


def _list_profiles(backend: str | Profile | Mapping[str, Profile]) -> Mapping[str, str | Profile]:
    return {"": backend} if isinstance(backend, str | BackendSettings | Backend) else backend


def _find_profile(profile: str | Profile) -> Profile:
    if not isinstance(profile, str):
        return profile
    settings = choose_builtin(profile)
    check_needed(settings, f"sandbox.{profile}")
    return settings


def choose_builtin(name: str) -> BackendSettings:
    """The default settings of a built-in backend.

    Raises:
        ConfigError: there is no such backend, or one of its settings has no default.
    """
    if name not in BACKENDS:
        raise ConfigError(f"sandbox.backend '{name}' is unknown; {suggest(name, list(BACKENDS))}")
    kind = BACKENDS[name].Settings
    try:
        settings = kind()
    except TypeError:
        missing = next(f.name for f in msgspec.structs.fields(kind) if f.required)
        raise ConfigError(f"sandbox.{name}.{missing} is not set: --sandbox.{name}.{missing} …") from None
    assert isinstance(settings, BackendSettings)
    return settings


def require_isolation(profiles: Mapping[str, Profile]) -> None:
    """Raise ConfigError if a profile isolates nothing."""
    for name, profile in profiles.items():
        if not is_isolated(profile):
            setting = f"sandbox.profiles.{name}" if name else "sandbox.backend"
            raise ConfigError(f"{setting} isolates nothing, but sandbox.require_sandbox is set: use 'bwrap'")


def open_slot_source(
    profile: Profile, read_secret: ReadSecret = refuse_secret, tell: Callable[[str], None] | None = None
) -> SlotSource:
    """What makes the slots of a profile, without a pool. Nothing is started yet. Close it at the end."""
    backend = make_backend(profile, read_secret)
    if tell is not None:
        backend.tell = tell
    if isinstance(backend, RemoteBackend):
        return open_fleet(backend)
    assert isinstance(backend, SlotBackend), f"{type(backend).__name__} is neither a SlotBackend nor a RemoteBackend"
    return backend


class _SlotSources:
    """The slots of each profile. A profile is opened when its first slot is requested."""

    def __init__(
        self,
        profiles: Mapping[str, Profile],
        read_secret: ReadSecret,
        stack: AsyncExitStack,
        tell: Callable[[str], None],
    ) -> None:
        self._profiles = profiles
        self._tell = tell
        self._read_secret = read_secret
        self._stack = stack
        self._sources: dict[str, SlotSource] = {}
        self._lock = asyncio.Lock()

    async def create(self, spec: SandboxSpec) -> Sandbox:
        source = await self.open(spec.profile)
        box = await source.create(spec)
        require_slot(box, ("exec", "read", "write", "close"), f"{type(source).__name__}.create")
        return box

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        return await (await self.open(box.spec.profile)).snapshot(box)

    async def open(self, name: str) -> SlotSource:
        if name not in self._profiles:
            known = [profile for profile in self._profiles if profile]
            raise ConfigError(f"there is no sandbox profile '{name}'; {suggest(name, known)}")
        if name not in self._sources:
            async with self._lock:
                if name not in self._sources:  # another request may have opened it meanwhile
                    self._sources[name] = await self._open(self._profiles[name])
        return self._sources[name]

    async def _open(self, profile: Profile) -> SlotSource:
        source = open_slot_source(profile, self._read_secret, self._tell)
        try:
            await source.check()
        except BaseException:
            await source.close()
            raise
        self._stack.push_async_callback(source.close)
        return source
