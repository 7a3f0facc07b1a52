"""The backends that come with Ludus, and the settings of the `sandbox` section.

To add a backend, write its module (`sandbox/backend.py` says what a backend is) and its settings
(`sandbox/backend_settings.py`), and add it here: to `REFERENCES`, to `BuiltinSettings` and as a section of
`SandboxSettings`. Commands, checks and docs take their lists from here.
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from msgspec import field

from ludus.errors import ConfigError
from ludus.sandbox import ImageSupport
from ludus.sandbox.backend import Backend, BackendSettings, ReadSecret
from ludus.sandbox.backend_settings import (
    ApptainerSettings,
    BwrapSettings,
    DockerSettings,
    LocalSettings,
    ModalSettings,
    NomadSettings,
    PodmanSettings,
    SshSettings,
)
from ludus.sandbox.pool import PoolSettings
from ludus.types import Count, Positive, Whole

REFERENCES = {
    "bwrap": "ludus.sandbox.local.bwrap:Bwrap",
    "local": "ludus.sandbox.local.unisolated:Local",
    "docker": "ludus.sandbox.remote.docker:Docker",
    "podman": "ludus.sandbox.remote.docker:Podman",
    "ssh": "ludus.sandbox.remote.ssh:Ssh",
    "apptainer": "ludus.sandbox.remote.apptainer:Apptainer",
    "nomad": "ludus.sandbox.remote.nomad:Nomad",
    "modal": "ludus.sandbox.remote.modal:Modal",
}


class _Backends(Mapping[str, type[Backend[Any]]]):
    """Backend classes by name. One is imported when it is looked up: a run needs few of them."""

    def __getitem__(self, name: str) -> type[Backend[Any]]:
        module, _, kind = REFERENCES[name].partition(":")
        return getattr(importlib.import_module(module), kind)

    def __contains__(self, name: object) -> bool:
        return name in REFERENCES

    def __iter__(self) -> Iterator[str]:
        return iter(REFERENCES)

    def __len__(self) -> int:
        return len(REFERENCES)


BACKENDS = _Backends()

BuiltinSettings = (
    BwrapSettings
    | LocalSettings
    | DockerSettings
    | PodmanSettings
    | SshSettings
    | ApptainerSettings
    | NomadSettings
    | ModalSettings
)
"""The settings of any backend in `BACKENDS`. The field `backend` says which one."""

Profile = BackendSettings | Backend[Any]
"""One kind of slots: the settings of a built-in backend, or a backend of the user's own."""


class SandboxSettings(PoolSettings, frozen=True, kw_only=True):
    """Where the agent acts. Settings that are null are decided by the environment."""

    backend: str = "bwrap"
    """`bwrap` isolates; `local` runs commands on this machine as you: for trusted code only; `docker`, `podman`, `ssh`,
    `apptainer`, `nomad` and `modal` have a section of their name. A backend of your own: `module:Class` or
    `file.py:Class`."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """The settings of a backend of your own."""
    profile: str | None = None
    """Use this one of `profiles`; null: the one that the environment names, else `backend`."""
    require_sandbox: bool = False
    """Refuse to run without isolation, whatever else is set."""
    warm: Whole = 2
    network: bool | None = None
    """Whether commands may reach the network."""
    memory_mb: Count | None = None
    """Memory of a slot."""
    disk_mb: Count | None = None
    """How much /workspace, /tmp and home may each hold."""
    processes: Count | None = None
    """Processes and threads that may exist at once in a slot."""
    command_seconds: Positive | None = None
    """The default time limit of one command."""
    output_bytes: Count | None = None
    """How much of a command's output is kept."""
    docker: DockerSettings | None = None
    """For `backend: docker`."""
    podman: PodmanSettings | None = None
    """For `backend: podman`."""
    ssh: SshSettings | None = None
    """For `backend: ssh`."""
    apptainer: ApptainerSettings | None = None
    """For `backend: apptainer`."""
    nomad: NomadSettings | None = None
    """For `backend: nomad`."""
    modal: ModalSettings | None = None
    """For `backend: modal`."""
    profiles: dict[str, BuiltinSettings] = field(default_factory=dict[str, BuiltinSettings])
    """Further kinds of slots by name: `backend`, and the settings of that backend's section."""

    added_later: ClassVar[tuple[str, ...]] = ("options",)


def get_backend_class(profile: Profile) -> type[Backend[Any]]:
    """The backend class of a profile."""
    return type(profile) if isinstance(profile, Backend) else BACKENDS[str(profile.__struct_config__.tag)]


def is_isolated(profile: Profile) -> bool:
    """Whether slots of this profile are isolated from each other and from their host."""
    return get_backend_class(profile).isolates(profile.settings if isinstance(profile, Backend) else profile)


def get_image_support(profile: Profile) -> ImageSupport:
    """Which images of their own slots of this profile can have."""
    kind, settings = get_backend_class(profile), profile.settings if isinstance(profile, Backend) else profile
    return kind.get_image_support(settings)


def refuse_secret(variable: str, setting: str) -> str:
    """A `ReadSecret` for callers that have no secrets."""
    if variable:
        raise ConfigError(f"{setting} names the variable {variable}, but nothing was given to read it with")
    return ""


def read_secrets(settings: Any, section: str, read_secret: ReadSecret) -> dict[str, str]:
    """The secrets of a backend: for each setting `x_var`, the value of the variable that it names, as `x`."""
    names = [name for name in settings.__struct_fields__ if name.endswith("_var")]
    return {name.removesuffix("_var"): read_secret(getattr(settings, name), f"{section}.{name}") for name in names}


def check_needed(settings: BackendSettings, section: str) -> None:
    """Raise ConfigError if a setting is empty without which the backend makes no slots without an image."""
    for name in settings.needed:
        if not getattr(settings, name):
            raise ConfigError(f"{section}.{name} is not set: --{section}.{name} {name.upper()}")


def make_backend(profile: Profile, read_secret: ReadSecret = refuse_secret) -> Backend[Any]:
    """The backend of a profile. Nothing is started yet.

    Raises:
        ConfigError: a secret is missing, or a library that the backend needs.
    """
    if isinstance(profile, Backend):
        return profile
    kind = get_backend_class(profile)
    return kind(profile, read_secrets(profile, f"sandbox.{kind.name}", read_secret))
