"""Builds the pool of slots from settings."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import msgspec

from ludus.config.references import SANDBOX, make_instance
from ludus.config.secrets import read_secret
from ludus.config.tree import Config
from ludus.errors import ConfigError, LudusError, SandboxError, describe_error, suggest
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backend import Backend, BackendSettings, RemoteSettings, explain_no_images
from ludus.sandbox.backends import (
    BACKENDS,
    Profile,
    SandboxSettings,
    check_needed,
    get_backend_class,
    get_image_support,
    read_secrets,
)
from ludus.sandbox.pool import Pool


def change_spec(spec: SandboxSpec, sandbox: SandboxSettings) -> SandboxSpec:
    """A spec with the values that the `sandbox` section sets."""
    values = {f.name: getattr(sandbox, f.name, None) for f in msgspec.structs.fields(SandboxSpec)}
    return msgspec.structs.replace(spec, **{name: value for name, value in values.items() if value is not None})


@asynccontextmanager
async def open_sandboxes(
    config: Config, slot: SandboxSpec | None, tell: Callable[[str], None] = lambda message: None
) -> AsyncGenerator[Pool | None, None]:
    """The pool of slots; None if neither the environment nor the agent needs one. `slot` is the environment's. `tell`
    is called with messages for the user."""
    if slot is None and not config.agent.harness:
        yield None
        return
    async with open_slots(config, slot or SandboxSpec(), tell) as pool:
        yield pool


@asynccontextmanager
async def open_slots(
    config: Config, spec: SandboxSpec, tell: Callable[[str], None] = lambda message: None
) -> AsyncGenerator[Pool, None]:
    """The pool of slots, after a check that it can make a slot of this spec. Raises ConfigError if it cannot."""
    from ludus.sandbox.profiles import open_pool  # it imports what backends need, and few runs have slots

    sandbox = config.sandbox
    if spec.image is not None:
        await _check_images(find_profile(sandbox, spec.profile))
    settings = msgspec.structs.replace(sandbox, max_slots=sandbox.max_slots or config.run.concurrency + sandbox.warm)
    profiles = make_profiles(sandbox, with_images=spec.image is not None)
    async with open_pool(profiles, settings, first=spec.profile, read_secret=read_secret, tell=tell) as pool:
        profile = profiles[spec.profile]
        # A slot whose image is the task's own cannot be tried without a task.
        if (
            isinstance(profile, RemoteSettings | Backend) and spec.image is None
        ):  # `open_pool` has checked the backends of this host
            try:
                async with pool.lease(spec):
                    pass
            except SandboxError as error:
                name = get_backend_class(profile).name
                raise ConfigError(f"sandbox.backend '{name}' gives no slot: {error}") from error
        yield pool


async def _check_images(profile: Profile) -> None:
    """Raise ConfigError if slots of a profile cannot have images, or if the backend is not there."""
    kind = get_backend_class(profile)
    if get_image_support(profile) == "none":
        raise ConfigError(f"sandbox.backend: {explain_no_images(kind.name)}")
    if isinstance(profile, RemoteSettings):
        finding = await kind.look_with(profile)
        if finding.state in ("off", "broken"):
            raise ConfigError(f"sandbox.backend '{kind.name}' gives no slot: {finding.message}; {finding.remedy}")


def find_profile(sandbox: SandboxSettings, name: str) -> Profile:
    """The profile of that name, for slots with images. Raises ConfigError if there is none."""
    profiles = make_profiles(sandbox, with_images=True)
    if name not in profiles:
        known = [profile for profile in profiles if profile]
        raise ConfigError(f"there is no sandbox profile '{name}'; {suggest(name, known)}")
    return profiles[name]


def make_profiles(sandbox: SandboxSettings, *, with_images: bool = False) -> dict[str, Profile]:
    """All profiles by name. The one of `sandbox.backend` has the empty name. `with_images`: for tasks with images of
    their own, so that a backend needs none.

    Raises:
        ConfigError: a setting of a backend is missing, or a backend isolates nothing although `require_sandbox` is set.
    """
    profiles: dict[str, Profile] = {"": _choose_backend(sandbox), **sandbox.profiles}
    for name, profile in profiles.items():
        if isinstance(profile, BackendSettings) and not with_images:
            tag = get_backend_class(profile).name
            check_needed(profile, f"sandbox.profiles.{name}" if name else f"sandbox.{tag}")
    if sandbox.require_sandbox:
        from ludus.sandbox.profiles import require_isolation

        require_isolation(profiles)
    return profiles


def list_sections(sandbox: SandboxSettings) -> dict[str, BackendSettings]:
    """The settings of every built-in backend whose section is set, by backend."""
    sections = {name: getattr(sandbox, name, None) for name in BACKENDS}
    return {name: section for name, section in sections.items() if isinstance(section, BackendSettings)}


def _choose_backend(sandbox: SandboxSettings) -> Profile:
    if sandbox.backend not in BACKENDS:
        return _make_own_backend(sandbox)
    if sandbox.options:
        name = sandbox.backend
        place = f"the settings of '{name}' are in sandbox.{name}" if hasattr(sandbox, name) else f"'{name}' has none"
        raise ConfigError(f"sandbox.options has the settings of a backend of your own; {place}")
    from ludus.sandbox.profiles import choose_builtin

    return getattr(sandbox, sandbox.backend, None) or choose_builtin(sandbox.backend)


def _make_own_backend(sandbox: SandboxSettings) -> Backend[msgspec.Struct]:
    kind: type[Backend[msgspec.Struct]] = SANDBOX.load(sandbox.backend)
    settings = make_instance(kind.Settings, sandbox.options, "sandbox.options")
    secrets = read_secrets(settings, "sandbox.options", read_secret)
    try:
        return kind(settings, secrets)
    except LudusError:
        raise
    except Exception as error:  # foreign code
        raise ConfigError(f"sandbox.backend: {kind.__name__} could not be made: {describe_error(error)}") from error
