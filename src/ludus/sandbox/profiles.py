"""From profiles to a pool of their slots.

    profiles = {"": BwrapSettings(), "gpu": ModalSettings(gpu="T4")}
    async with open_profiles(profiles) as pool:
        async with pool.lease(SandboxSpec(profile="gpu")) as box:
            await box.exec("nvidia-smi")

One pool serves them all: a spec names the profile that its slots are made with, and "" is the default one. What a
profile needs is started when its first slot is asked for, so a profile that nobody uses costs nothing and may be
broken. Secrets are read by whoever may read the environment, and passed in: a profile has only their names.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from ludus.errors import ConfigError, suggest
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.local.unisolated import Local
from ludus.sandbox.pool import Create, Pool, Snapshot
from ludus.sandbox.remote.apptainer import Apptainer
from ludus.sandbox.remote.docker import Docker
from ludus.sandbox.remote.fleet import Backend, Fleet
from ludus.sandbox.remote.nomad import Nomad
from ludus.sandbox.remote.ssh import Ssh
from ludus.sandbox.settings import (
    ApptainerSettings,
    BwrapSettings,
    DockerSettings,
    LocalSettings,
    ModalSettings,
    NomadSettings,
    Profile,
    RemoteProfile,
    SshSettings,
)

ReadSecret = Callable[[str, str], str]
"""The value of an environment variable, given its name and the setting that names it; empty for an empty name."""


@dataclass(frozen=True)
class PoolSettings:
    """How many slots there are, and for how long."""

    max_slots: int = 64
    warm: int = 0
    acquire_seconds: float = 600.0
    idle_seconds: float | None = None
    lifetime_seconds: float | None = None
    lease_seconds: float | None = None
    """After which a slot that is held by name, and gives no sign of life, is taken back."""
    starts_per_second: float | None = None


def _no_secret(variable: str, setting: str) -> str:
    if variable:
        raise ConfigError(f"{setting} names the variable {variable}, but nothing was given to read it with")
    return ""


def open_fleet(profile: RemoteProfile, *, secret: ReadSecret = _no_secret) -> Fleet:
    """The slots of a remote profile, without a pool. Nothing is started yet."""
    room = profile.slots * len(profile.hosts) if isinstance(profile, SshSettings) else None
    return Fleet(make_backend(profile, secret), slots=profile.slots, idle_seconds=profile.idle_seconds, room=room)


def make_backend(profile: RemoteProfile, secret: ReadSecret = _no_secret) -> Backend:
    match profile:
        case DockerSettings():  # Podman's among them
            return Docker(profile)
        case SshSettings():
            return Ssh(profile)
        case ApptainerSettings():
            return Apptainer(profile)
        case NomadSettings():
            return Nomad(profile, token=secret(profile.token_var, "sandbox.nomad.token_var"))
        case ModalSettings():
            from ludus.sandbox.remote.modal import Modal

            key = secret(profile.token_id_var, "sandbox.modal.token_id_var")
            word = secret(profile.token_secret_var, "sandbox.modal.token_secret_var")
            return Modal(profile, token=(key, word) if key else None)


@dataclass(frozen=True)
class _Kind:
    """How slots of one profile are made."""

    create: Create
    snapshot: Snapshot


class _Kinds:
    """What is needed for each profile, made when it is first asked for."""

    def __init__(self, profiles: Mapping[str, Profile], secret: ReadSecret, stack: AsyncExitStack) -> None:
        self._profiles = profiles
        self._secret = secret
        self._stack = stack
        self._made: dict[str, _Kind] = {}

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self.of(spec.profile).create(spec)

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        return await self.of(box.spec.profile).snapshot(box)

    def of(self, name: str) -> _Kind:
        if name not in self._profiles:
            known = [profile for profile in self._profiles if profile]
            raise ConfigError(f"there is no sandbox profile '{name}'; {suggest(name, known)}")
        if name not in self._made:
            self._made[name] = self._make(self._profiles[name])
        return self._made[name]

    def _make(self, profile: Profile) -> _Kind:
        if isinstance(profile, BwrapSettings):
            bwrap = Bwrap()
            self._stack.callback(bwrap.close)
            bwrap.check()
            return _Kind(bwrap.create, bwrap.snapshot)
        if isinstance(profile, LocalSettings):
            local = Local()
            self._stack.callback(local.close)
            return _Kind(local.create, local.snapshot)
        fleet = open_fleet(profile, secret=self._secret)
        self._stack.push_async_callback(fleet.close)
        return _Kind(fleet.create, fleet.snapshot)


@asynccontextmanager
async def open_profiles(
    profiles: Mapping[str, Profile],
    settings: PoolSettings = PoolSettings(),
    *,
    first: str = "",
    secret: ReadSecret = _no_secret,
) -> AsyncGenerator[Pool, None]:
    """A pool of the slots of all profiles. Leaving ends every slot and every container.

    Raises:
        ConfigError: there is no profile `first`, or what it needs is not here.
    """
    async with AsyncExitStack() as stack:
        kinds = _Kinds(profiles, secret, stack)
        kinds.of(first)
        pool = Pool(
            kinds.create,
            max_slots=settings.max_slots,
            warm=settings.warm,
            acquire_seconds=settings.acquire_seconds,
            idle_seconds=settings.idle_seconds,
            lifetime_seconds=settings.lifetime_seconds,
            lease_seconds=settings.lease_seconds,
            starts_per_second=settings.starts_per_second,
            snapshot=kinds.snapshot,
        )
        async with pool:
            yield pool


@asynccontextmanager
async def open_profile(
    profile: Profile, settings: PoolSettings = PoolSettings(), *, secret: ReadSecret = _no_secret
) -> AsyncGenerator[Pool, None]:
    """A pool of the slots of one profile."""
    async with open_profiles({"": profile}, settings, secret=secret) as pool:
        yield pool
