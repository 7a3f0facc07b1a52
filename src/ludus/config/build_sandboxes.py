"""Builds the pool of slots from settings. Heavy imports are inside."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ludus.config.reading import accepted_types
from ludus.config.secrets import read_secret
from ludus.config.tree import (
    Config,
    SandboxConfig,
)
from ludus.env import Env
from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import SandboxSpec

if TYPE_CHECKING:
    from ludus.sandbox.pool import Pool
    from ludus.sandbox.settings import Profile


def changed_spec(spec: SandboxSpec, sandbox: SandboxConfig) -> SandboxSpec:
    """A slot as the `sandbox` section wants it."""
    values = {f.name: getattr(sandbox, f.name, None) for f in msgspec.structs.fields(SandboxSpec)}
    return msgspec.structs.replace(spec, **{name: value for name, value in values.items() if value is not None})


@asynccontextmanager
async def open_sandboxes(config: Config, env: Env) -> "AsyncGenerator[Pool | None, None]":
    """The pool of slots; None if neither the environment nor the agent needs one."""
    if env.sandbox is None and not config.agent.harness:
        yield None
        return
    async with open_slots(config, env.sandbox or SandboxSpec()) as pool:
        yield pool


@asynccontextmanager
async def open_slots(config: Config, spec: SandboxSpec) -> "AsyncGenerator[Pool, None]":
    """The pool of slots, after a check that a slot of this spec can be had. Raises ConfigError if none can."""
    from ludus.sandbox.profiles import PoolSettings, open_profiles
    from ludus.sandbox.settings import RemoteSettings, backend_of

    sandbox = config.sandbox
    settings = PoolSettings(
        max_slots=sandbox.max_slots or config.run.concurrency + sandbox.warm,
        warm=sandbox.warm,
        acquire_seconds=sandbox.acquire_seconds,
        idle_seconds=sandbox.idle_seconds,
        lifetime_seconds=sandbox.lifetime_seconds,
        starts_per_second=sandbox.starts_per_second,
    )
    profiles = sandbox_profiles(sandbox)
    async with open_profiles(profiles, settings, first=spec.profile, secret=read_secret) as pool:
        if isinstance(profiles[spec.profile], RemoteSettings):  # those of this host have been tried by now
            try:
                async with pool.lease(spec):
                    pass
            except SandboxError as error:
                backend = backend_of(profiles[spec.profile])
                raise ConfigError(f"sandbox.backend '{backend}' gives no slot: {error}") from error
        yield pool


def sandbox_profiles(sandbox: SandboxConfig) -> "dict[str, Profile]":
    """All kinds of slots by name; the one of `sandbox.backend` has the empty name.

    Raises:
        ConfigError: a backend lacks what it must be told, or isolates nothing although `require_sandbox` is set.
    """
    from ludus.sandbox.settings import BwrapSettings, LocalSettings, isolates

    local = {"bwrap": BwrapSettings(), "local": LocalSettings()}
    chosen = local.get(sandbox.backend) or getattr(sandbox, sandbox.backend) or _unset_backend(sandbox.backend)
    profiles: dict[str, Profile] = {"": chosen, **sandbox.profiles}
    for name, profile in profiles.items():
        if sandbox.require_sandbox and not isolates(profile):
            setting = f"sandbox.profiles.{name}" if name else "sandbox.backend"
            raise ConfigError(f"{setting} isolates nothing, but sandbox.require_sandbox is set: use 'bwrap'")
    return profiles


def _unset_backend(backend: str) -> "Profile":
    """The profile of a backend of which nothing is said, if nothing needs to be."""
    kind = next(f.type for f in msgspec.structs.fields(SandboxConfig) if f.name == backend)
    recipe: Any = next(option.cls for option in accepted_types(kind) if isinstance(option, msgspec.inspect.StructType))
    missing = [f.name for f in msgspec.structs.fields(recipe) if f.required]
    if missing:
        raise ConfigError(f"sandbox.{backend}.{missing[0]} is not set: --sandbox.{backend}.{missing[0]} …")
    return recipe()
