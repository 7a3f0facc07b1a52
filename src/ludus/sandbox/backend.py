"""What a backend is: a class that makes slots in one place, such as this machine, Docker or a cluster.

There are two kinds. A `SlotBackend` makes single slots (`create`). A `RemoteBackend` (`sandbox/remote/fleet.py`) starts
servers that hold several slots each (`launch`). Everything that is known about a backend is in its class: its name, its
settings, how it is made from them, whether it isolates, and how to find out whether it works on this machine. The
backends of Ludus are listed in `sandbox/backends.py`.

A backend of your own is a class like this one, chosen with `--sandbox.backend my_file.py:Mine`. Its settings are given
in `sandbox.options`:

    class MineSettings(BackendSettings, frozen=True, kw_only=True):
        url: str
        token_var: str = ""

    class Mine(SlotBackend[MineSettings]):
        name = "mine"
        Settings = MineSettings

        async def create(self, spec: SandboxSpec) -> Sandbox:
            return await open_my_slot(self.settings.url, self.secrets["token"], spec)

It is constructed as `Mine(settings, secrets)`. The constructor must not start anything: what a backend needs is started
when the first slot is created, and ended by `close`.
"""

import shutil
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

from msgspec import Struct, field

from ludus.errors import SandboxError
from ludus.sandbox import ImageSupport, Sandbox, SandboxSpec
from ludus.sandbox.limits import LimitStatus
from ludus.sandbox.owner import OwnedResource
from ludus.settings import Settings
from ludus.types import Count, Positive

S = TypeVar("S", bound=Struct)

State = Literal["works", "ready", "off", "broken"]
"""`works`: a slot ran. `ready`: what the backend needs is here, but nothing was run. `off`: it is not here."""

ReadSecret = Callable[[str, str], str]
"""Returns the value of an environment variable, given its name and the setting that names it. An empty name gives an
empty value."""


class BackendSettings(Settings, frozen=True, kw_only=True, tag_field="backend"):
    """Base class of a backend's settings. Fields that end in `_var` name environment variables that hold secrets."""

    needed: ClassVar[tuple[str, ...]] = ()
    """Settings that may be empty until the backend makes slots without an image of their own, so that it can be looked
    at without them."""


class Mount(Settings, frozen=True, kw_only=True):
    """A folder of the host that slots may read, such as a cache of packages or repositories."""

    source: str
    """Where it is on the host that runs the containers."""
    target: str
    """Where slots see it."""


class RemoteSettings(BackendSettings, frozen=True, kw_only=True):
    """The settings that all remote backends have."""

    slots: Count = 1
    """Slots per container or host."""
    python: str = "python3"
    """The Python that runs slotd on the other side: 3.8 or later."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    """Variables of the container. They are recorded: no secrets here."""
    start_seconds: Positive = 120.0
    """Time for a container to start."""
    idle_seconds: float = 60.0
    """How long a container without slots is kept for the next one."""
    lapse_seconds: Positive = 30.0
    """After this long without a message, slotd takes the driver for dead and ends its slots, and the driver takes slotd
    for dead."""
    mounts: tuple[Mount, ...] = ()
    """Folders of the host that slots may read."""


class BackendFinding(Struct, frozen=True):
    """Whether one backend, or one profile, works on this machine."""

    backend: str
    state: State
    message: str
    remedy: str = ""
    limits: tuple[LimitStatus, ...] = ()


class SlotSource(Protocol):
    """Makes the slots of one profile: a `SlotBackend`, or a `Fleet` of servers."""

    async def check(self) -> None: ...

    async def create(self, spec: SandboxSpec) -> Sandbox: ...

    async def snapshot(self, box: Sandbox) -> SandboxSpec: ...

    async def try_out(self) -> BackendFinding: ...

    async def close(self) -> None: ...


class Backend(Generic[S]):
    """What both kinds of backends have in common."""

    name: ClassVar[str] = ""
    """The name in `sandbox.backend`, in findings and in errors."""
    Settings: ClassVar[type[Struct]] = BackendSettings

    def __init__(self, settings: S, secrets: Mapping[str, str] = MappingProxyType({})) -> None:
        """`secrets`: for each setting `x_var`, the value of the variable that it names, under the key `x`."""
        self.settings = settings
        self.secrets = secrets
        self.tell: Callable[[str], None] = lambda message: None
        """Takes a message for the user. Whoever opens the backend may replace it."""

    @classmethod
    def isolates(cls, settings: Any) -> bool:
        """Whether slots with these settings are isolated from each other and from their host. If not,
        `sandbox.require_sandbox` refuses them."""
        return False

    @classmethod
    def get_image_support(cls, settings: Any) -> ImageSupport:
        """Which images of their own (`SandboxSpec.image`) slots with these settings can have."""
        return "none"

    @classmethod
    async def look(cls) -> BackendFinding:
        """Whether the backend could be used here. Starts, fetches and pays for nothing."""
        return BackendFinding(cls.name, "ready", "nothing is known about it until it is used")

    @classmethod
    async def look_with(cls, settings: BackendSettings) -> BackendFinding:
        """As `look`, with the settings of the backend's section, which may be incomplete."""
        return await cls.look()

    async def list_resources(self) -> list[OwnedResource]:
        """What drivers have there, this one and others, if it would outlive them."""
        return []

    async def remove_resource(self, resource: OwnedResource) -> None:
        """Remove it, whether it is in use or not."""
        raise SandboxError(f"{self.name} has nothing to remove", retryable=False)

    async def close(self) -> None:
        """Give back what the backend holds. Called once, when all its slots are closed, also if it never made one."""


def check_image(backend: Backend[Any], spec: SandboxSpec) -> None:
    """Raise SandboxError if the spec asks for an image that slots of the backend cannot have."""
    if (image := spec.image) is None:
        return
    support = backend.get_image_support(backend.settings)
    if support == "none":
        raise SandboxError(explain_no_images(backend.name), retryable=False)
    if spec.base:
        raise SandboxError("a slot has an image or a base, not both", retryable=False)
    if support == "named" and not image.name:
        raise SandboxError(f"'{backend.name}' pulls images by name, and {image.folder} has none", retryable=False)


def explain_no_images(backend: str) -> str:
    """Why slots of a backend cannot have images, and which can."""
    return (
        f"tasks of this kind need a root file system of their own, which slots of '{backend}' do not have: use "
        "--sandbox.backend bwrap (with --env.engine docker, an engine makes the images), docker, podman or modal"
    )


class SlotBackend(Backend[S]):
    """A backend that makes single slots."""

    async def check(self) -> None:
        """Called before the first slot. Raises ConfigError, with the reason and the fix, if no slot can be made."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A fresh slot. Raises SandboxError if there can be none, and leaves nothing behind."""
        raise NotImplementedError(f"{type(self).__name__}.create")

    async def snapshot(self, box: Sandbox) -> SandboxSpec:
        """The spec of slots that start with what /workspace is in `box` now."""
        raise SandboxError("slots of this kind have no snapshots", retryable=False)

    async def try_out(self) -> BackendFinding:
        """Make a slot, run a command in it and close it. Raises LudusError if that fails."""
        await self.check()
        box = await self.create(SandboxSpec(disk_mb=64))
        if not callable(getattr(box, "exec", None)):
            raise SandboxError(f"{type(self).__name__}.create returned {type(box).__name__}, which is not a Sandbox")
        try:
            await box.exec("true")
        finally:
            await box.close()
        return BackendFinding(self.name, "works", "a slot ran")


def look_for_program(backend: str, program: str, remedy: str) -> BackendFinding:
    """Whether a program that a backend needs is installed."""
    path = shutil.which(program)
    if path is None:
        return BackendFinding(backend, "off", f"there is no program '{program}'", f"install it; then {remedy}")
    return BackendFinding(backend, "ready", f"{path} is here", remedy)
