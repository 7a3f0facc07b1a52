"""From a profile to a pool of its slots.

    profiles = {"small": DockerSettings(image="python:3.11", slots=4), "gpu": ModalSettings(gpu="T4")}
    async with open_profiles(profiles) as pool_of:
        pool = await pool_of("small")
        async with pool.lease(spec) as box:
            await box.exec("echo hi")

A pool is made when its profile is first asked for, so a profile that nobody uses costs nothing and may be broken.
Secrets are read by whoever may read the environment, and passed in: a profile has only their names.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from ludus.errors import ConfigError, suggest
from ludus.sandbox.apptainer import Apptainer
from ludus.sandbox.docker import Docker
from ludus.sandbox.fleet import Backend, Fleet
from ludus.sandbox.nomad import Nomad
from ludus.sandbox.pool import Pool
from ludus.sandbox.settings import (
    ApptainerSettings,
    DockerSettings,
    ModalSettings,
    NomadSettings,
    Profile,
    SshSettings,
)
from ludus.sandbox.ssh import Ssh

ReadSecret = Callable[[str, str], str]
"""The value of an environment variable, given its name and the setting that names it; empty for an empty name."""


def _no_secret(variable: str, setting: str) -> str:
    if variable:
        raise ConfigError(f"{setting} names the variable {variable}, but nothing was given to read it with")
    return ""


def open_fleet(profile: Profile, *, secret: ReadSecret = _no_secret) -> Fleet:
    """The slots of a profile, without a pool. Nothing is started yet."""
    return Fleet(_backend(profile, secret), slots=profile.slots, idle_seconds=profile.idle_seconds)


def _backend(profile: Profile, secret: ReadSecret) -> Backend:
    match profile:
        case DockerSettings():
            return Docker(profile)
        case SshSettings():
            return Ssh(profile)
        case ApptainerSettings():
            return Apptainer(profile)
        case NomadSettings():
            return Nomad(profile, token=secret(profile.token_var, "sandbox.token_var"))
        case ModalSettings():
            from ludus.sandbox.modal import Modal

            key = secret(profile.token_id_var, "sandbox.token_id_var")
            return Modal(
                profile, token=(key, secret(profile.token_secret_var, "sandbox.token_secret_var")) if key else None
            )


@asynccontextmanager
async def open_profile(
    profile: Profile,
    *,
    max_slots: int = 64,
    warm: int = 0,
    acquire_seconds: float = 600.0,
    secret: ReadSecret = _no_secret,
) -> AsyncGenerator[Pool, None]:
    """A pool of the slots of one profile. Leaving ends every slot and every container."""
    if isinstance(profile, SshSettings):
        max_slots = min(max_slots, profile.slots * len(profile.hosts))
    fleet = open_fleet(profile, secret=secret)
    try:
        async with Pool(
            fleet.create,
            max_slots=max_slots,
            warm=warm,
            acquire_seconds=acquire_seconds,
            snapshot=fleet.snapshot,
        ) as pool:
            yield pool
    finally:
        await fleet.close()


@asynccontextmanager
async def open_profiles(
    profiles: Mapping[str, Profile],
    *,
    max_slots: int = 64,
    warm: int = 0,
    acquire_seconds: float = 600.0,
    secret: ReadSecret = _no_secret,
) -> AsyncGenerator[Callable[[str], Awaitable[Pool]], None]:
    """Pools by the name of their profile; `max_slots` and `warm` are for each. An unknown name is a ConfigError."""
    opened: dict[str, Pool] = {}
    turn = asyncio.Lock()
    async with AsyncExitStack() as stack:

        async def pool_of(name: str) -> Pool:
            if name not in profiles:
                raise ConfigError(f"there is no sandbox profile '{name}'; {suggest(name, list(profiles))}")
            async with turn:
                if name not in opened:
                    opening = open_profile(
                        profiles[name],
                        max_slots=max_slots,
                        warm=warm,
                        acquire_seconds=acquire_seconds,
                        secret=secret,
                    )
                    opened[name] = await stack.enter_async_context(opening)
            return opened[name]

        yield pool_of
