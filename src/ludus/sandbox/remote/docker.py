"""Slots in containers of a Docker engine, or of Podman: `podman system service` has the same API.

A container runs `slotd` as its only program. The engine attaches it to the driver and removes it when it ends. With one
slot per container (the default) the container has only the few capabilities that slotd needs to act as the slot's user,
and the slot runs as a user of its own. With more, slotd may make namespaces (CAP_SYS_ADMIN), so that the slots of one
container see nothing of each other. The slots themselves have no capability in either case and cannot gain any.
`network=False` means a container without a network.

When the driver dies, its containers end: the engine closes their stdin, and slotd also ends when no message comes. A
container that was made but not yet started may be left. The next driver finds it by its label and removes it.

A slot with an image of its own (`SandboxSpec.image`) has a container of that image, which the engine's own command
builds or pulls. slotd runs there too, and gives the slot its own copy of the container's root (`slotd/root_view.py`).

The image needs bash, the usual tools and Python 3.8 or later. It is not changed. Files of the image are read-only for
the slot; `root=True` lifts that, and the separation of slot and slotd with it.
"""

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
from msgspec import Struct, field

from ludus.errors import ConfigError, SandboxError, SlotEvidence
from ludus.sandbox import ImageSpec, ImageSupport, SandboxSpec
from ludus.sandbox.backend import BackendFinding, BackendSettings
from ludus.sandbox.backend_settings import DockerSettings, PodmanSettings
from ludus.sandbox.engine_images import EngineImage, make_image
from ludus.sandbox.limits import SHM_MB, SLOTD_MB, LimitStatus, compute_container_mb
from ludus.sandbox.owner import OwnedResource, make_owner_mark
from ludus.sandbox.remote.bundle import build_receive_command
from ludus.sandbox.remote.docker_api import DockerApi, DockerApiError
from ludus.sandbox.remote.fleet import Once, RemoteBackend
from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake
from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.slotd.mount_view import FILES_PER_MB, HOME, WORKSPACE
from ludus.sandbox.teardown import run_shielded

OWNER = "ludus.owner"
"""The label that names the owner of a container."""
_SLOTD_PROCESSES = 32
_USER_CAPABILITIES = ("SETUID", "SETGID", "CHOWN", "KILL", "DAC_OVERRIDE", "FOWNER")
_NAMESPACE_CAPABILITIES = ("SYS_ADMIN", "SYS_CHROOT", "NET_ADMIN", "SETPCAP")
_IMAGE_CAPABILITIES = ("FSETID", "SETFCAP")
"""What slotd needs to make a copy of a file of the image, and a user namespace that knows root."""
_GONE = (404, 409)
"""Statuses that a removal gets for a container that is gone or is being removed."""
_LOOK_SECONDS = 5.0
_ENGINE_ENDS = ("kill", "stop", "restart", "pause")
"""Events that somebody has asked the engine for."""


class _EventActor(Struct, rename="pascal"):
    attributes: dict[str, str] = field(default_factory=dict[str, str])


class EngineEvent(Struct, rename="pascal"):
    """Something that happened to a container, in the engine's words."""

    action: str = ""
    actor: _EventActor = field(default_factory=_EventActor)

    @property
    def exit_code(self) -> str:
        """The exit code of a container that ended."""
        return self.actor.attributes.get("exitCode", "") or self.actor.attributes.get("containerExitCode", "")


def judge_events(events: Sequence[EngineEvent]) -> SlotEvidence:
    """Who ended a container with one slot, by what has happened to it; nothing if the engine does not say.

    slotd exits with code 0 when its connection ends, and at no order of an agent.
    """
    actions = [event.action for event in events]
    if "oom" in actions:
        return SlotEvidence(inside="its processes and files used all memory of the container")
    ends = [action for action in actions if action in _ENGINE_ENDS]
    if ends:
        return SlotEvidence(outside=f"the engine ended the container ({', '.join(ends)})")
    if any(event.action in ("die", "died") and event.exit_code == "0" for event in events):
        return SlotEvidence(outside="the connection to the container broke")
    return SlotEvidence()


class Docker(RemoteBackend[DockerSettings]):
    """Starts containers, each with a slotd in it."""

    name = "docker"
    Settings = DockerSettings
    start_hint: ClassVar[str] = "start the engine"
    """How to start the service, if its socket is missing."""

    def __init__(self, settings: DockerSettings, secrets: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(settings, secrets)
        self._api = DockerApi(settings.socket, seconds=settings.api_seconds)
        self._owner = make_owner_mark()
        self._sweep_once = Once(self._sweep)
        self._limits_files = True
        """Whether the engine can limit the number of files, as far as is known."""
        self._images: dict[ImageSpec, asyncio.Task[EngineImage]] = {}
        """Images of tasks: made, being made, or refused by the engine."""
        self._unconfirmed: set[str] = set()
        """Containers that the engine may have, or may still make, although it did not confirm that."""

    @classmethod
    def get_image_support(cls, settings: DockerSettings) -> ImageSupport:
        return "any"

    @classmethod
    async def look(cls) -> BackendFinding:
        return await cls.look_with(cls._make_defaults())

    @classmethod
    async def look_with(cls, settings: BackendSettings) -> BackendFinding:
        assert isinstance(settings, DockerSettings)
        socket, default = settings.socket, cls._make_defaults().socket
        flags = f"--sandbox.backend {cls.name}"
        image = f"--sandbox.{cls.name}.image {settings.image or 'IMAGE'}"
        if not await asyncio.to_thread(_has_file, socket):
            remedy = f"{cls.start_hint}, or use another socket: {flags} --sandbox.{cls.name}.socket SOCKET {image}"
            return BackendFinding(cls.name, "off", f"there is no {socket}", remedy)
        try:
            info = await DockerApi(socket, seconds=_LOOK_SECONDS).get("/info", {}, DockerInfo)
        except DockerApiError as error:
            return BackendFinding(cls.name, "broken", str(error), "may this user use the socket?")
        limits = describe_engine_limits(info)
        place = "" if socket == default else f" at {socket}"
        flags += "" if socket == default else f" --sandbox.{cls.name}.socket {socket}"
        remedy = f"use it with {flags} {image}"
        return BackendFinding(cls.name, "ready", f"version {info.server_version} replies{place}", remedy, limits)

    @classmethod
    def _make_defaults(cls) -> DockerSettings:
        settings = cls.Settings()
        assert isinstance(settings, DockerSettings)
        return settings

    def get_kind(self, spec: SandboxSpec) -> Hashable:
        return spec.network, spec.memory_mb, spec.disk_mb, spec.processes, spec.caches, spec.folders, spec.image

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        if spec.image is None and not self.settings.image:
            setting = f"sandbox.{self.name}.image"
            raise SandboxError(f"{setting} is not set: --{setting} IMAGE", retryable=False)
        await self._sweep_once.run()
        image = None if spec.image is None else await self._prepare_image(spec.image)
        name = f"ludus-{self._owner}-{token_hex(4)}"
        try:
            return await self._start(name, spec, image)
        except BaseException:
            await run_shielded(self._remove(name))
            raise

    async def close(self) -> None:
        await self._sweep_once.stop()
        for task in self._images.values():
            task.cancel()
        await asyncio.gather(*self._images.values(), return_exceptions=True)
        for name in tuple(self._unconfirmed):
            await self._remove(name)

    async def _prepare_image(self, spec: ImageSpec) -> EngineImage:
        """The image of a task, made by the engine first if it does not have it. One that could not be made is not tried
        again."""
        if spec not in self._images:
            network = "" if self.settings.network == "bridge" else self.settings.network
            making = make_image(spec, self._build_command(), network=network, pull=self.settings.pull)
            self._images[spec] = asyncio.create_task(making)
        return await asyncio.shield(self._images[spec])

    def _build_command(self) -> tuple[str, ...]:
        """The engine's own command, which builds and pulls images."""
        return ("docker", "--host", f"unix://{self.settings.socket}")

    # ---- one container --------------------------------------------------------------------------------------------

    async def _start(self, name: str, spec: SandboxSpec, image: EngineImage | None) -> SlotServer:
        settings = self.settings
        await self._create(name, spec, image)
        try:
            link = StdioLink(await self._api.attach(name))
        except SandboxError as error:  # Podman prepares the program already now
            raise self._explain_start(image, error) from error
        reply = self._start_slotd(link, name, image)
        single = settings.slots == 1 or image is not None
        info = await finish_handshake(
            link, reply, slots=settings.slots, trusted=settings.root, container=True, image=image is not None
        )
        return SlotServer(
            link,
            info,
            end=lambda: self._remove(name),
            container_limits=("memory", "processes", "disk") if single else (),
            image_mounts=None if image is None else [target for _, target in _list_mounts(settings, spec)],
            explain_loss=(lambda: self._explain_loss(name)) if single else None,
        )

    async def _explain_loss(self, name: str) -> SlotEvidence:
        """Why the connection to a container with one slot was lost, as far as the engine knows.

        slotd ends without the engine's doing only if the kernel chose it when the container's memory ran out.
        """
        try:
            if await self._is_running(name):
                return SlotEvidence(outside="the connection to the container broke")
            return judge_events(await self._read_events(name))
        except DockerApiError as error:
            return SlotEvidence(outside=f"the engine does not answer: {error}")

    async def _is_running(self, name: str) -> bool:
        """Whether a container runs. One that has ended is gone, or about to be."""
        try:
            return (await self._api.get(f"/containers/{name}/json", {}, _Inspection)).state.running
        except DockerApiError as error:
            if error.status in _GONE:
                return False
            raise

    async def _read_events(self, name: str) -> list[EngineEvent]:
        """What happened to a container. The engine knows that also after its removal."""
        now = await self._api.get("/info", {}, _EngineTime)  # its clock, not the driver's
        query = {
            "since": "0",
            "until": str(now.system_time.timestamp()),
            "filters": msgspec.json.encode({"container": [name]}).decode(),
        }
        report = await self._api.request("GET", "/events", query)
        return msgspec.json.Decoder(EngineEvent).decode_lines(report)

    async def _start_slotd(self, link: StdioLink, name: str, image: EngineImage | None) -> Frame:
        """Start the container, to which the link is attached already, and the slotd in it."""
        settings = self.settings
        hello = {"view": "image", "as_root": settings.root, "exclusive": settings.slots == 1}
        if image is not None:
            hello = {"view": "root", "user": image.user}
        try:
            await self._api.request("POST", f"/containers/{name}/start", body={})
            return await link.start(hello, seconds=settings.start_seconds, lapse=settings.lapse_seconds)
        except SandboxError as error:
            raise self._explain_start(image, error) from error

    def _explain_start(self, image: EngineImage | None, error: SandboxError) -> SandboxError:
        """The error of a container in which slotd did not start."""
        if image is None:
            return SandboxError(f"image '{self.settings.image}' runs no slots: {error}", retryable=error.retryable)
        lacks_program = isinstance(error, DockerApiError) and (error.status == 409 or "not found" in str(error))
        return SandboxError(
            f"the image runs no slots of '{self.name}', for which it needs bash and {self.settings.python}, Python 3.8 "
            f"or later; without them use --sandbox.backend bwrap --env.engine {self.name}: {error}",
            retryable=error.retryable and not lacks_program,
        )

    async def _create(self, name: str, spec: SandboxSpec, image: EngineImage | None) -> None:
        limit_files = self._limits_files
        body = build_container(self.settings, spec, self._owner, image, limit_files=limit_files)
        try:
            await self._make(name, body)
        except DockerApiError as error:
            if limit_files and "nr_inodes" in str(error):  # Podman does not know this option
                self._limits_files = False
                await self._create(name, spec, image)
                return
            if error.status != 404 or image is not None:
                raise
            await self._pull()
            await self._make(name, body)

    async def _make(self, name: str, body: dict[str, Any]) -> None:
        """Have the engine make a container. The engine goes on when the driver disconnects, so the driver waits for its
        reply even when cancelled."""
        self._unconfirmed.add(name)
        try:
            await run_shielded(self._api.request("POST", "/containers/create", {"name": name}, body))
        except DockerApiError as error:
            if error.status:  # the engine replied: there is no container
                self._unconfirmed.discard(name)
            raise
        self._unconfirmed.discard(name)

    async def _pull(self) -> None:
        image = self.settings.image
        if not self.settings.pull:
            raise SandboxError(
                f"there is no image '{image}' here, and sandbox.{self.name}.pull is off", retryable=False
            )
        repository, tag = split_image(image)
        query = {"fromImage": repository, "tag": tag}
        report = await self._api.request("POST", "/images/create", query, {}, seconds=self.settings.pull_seconds)
        for line in msgspec.json.Decoder(_Progress).decode_lines(report):
            if line.error:
                raise SandboxError(f"image '{image}' cannot be fetched: {line.error}")

    async def _remove(self, name: str) -> None:
        """Remove a container, running or not. If the engine fails, this is tried again. What is left after that is
        removed by the next driver."""
        for pause in (0.2, 1.0, 0.0):
            try:
                await self._api.request("DELETE", f"/containers/{name}", {"force": "true", "v": "true"})
            except DockerApiError as error:
                if error.status not in _GONE:
                    await asyncio.sleep(pause)
                    continue
            else:
                self._unconfirmed.discard(name)
            return
        self._unconfirmed.add(name)

    async def list_resources(self) -> list[OwnedResource]:
        filters = msgspec.json.encode({"label": [OWNER]}).decode()
        found = await self._api.get("/containers/json", {"all": "true", "filters": filters}, list[_Container])
        return [OwnedResource(self.name, "container", each.id, each.labels.get(OWNER, "")) for each in found]

    async def remove_resource(self, resource: OwnedResource) -> None:
        await self._remove(resource.name)

    async def _sweep(self) -> None:
        """Remove what dead drivers of this host have left."""
        for resource in await self.list_resources():
            if resource.orphaned:
                await self.remove_resource(resource)


class Podman(Docker):
    """Starts containers through Podman's service."""

    name = "podman"
    Settings = PodmanSettings
    start_hint = "podman system service --time=0 &"

    def _build_command(self) -> tuple[str, ...]:
        return ("podman", "--remote", "--url", f"unix://{self.settings.socket}")


def _has_file(path: str) -> bool:
    """Whether the path exists. A folder that this user may not search hides it: then it does not."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


class _Container(Struct, rename="pascal"):
    """A container in the engine's list."""

    id: str
    labels: dict[str, str]


class _Progress(Struct):
    """A line of the engine's report while it fetches an image."""

    error: str = ""


class _State(Struct, rename="pascal"):
    running: bool = False


class _Inspection(Struct, rename="pascal"):
    """What the engine says about one container."""

    state: _State


class _EngineTime(Struct, rename="pascal"):
    """What the engine's clock says."""

    system_time: datetime


class DockerInfo(Struct, rename="pascal"):
    """What an engine reports about itself, as far as it does."""

    server_version: str = ""
    cgroup_version: str = ""
    memory_limit: bool = False
    pids_limit: bool = False


def describe_engine_limits(info: DockerInfo) -> tuple[LimitStatus, ...]:
    """The limits of a container with one slot."""
    groups = f"the container's control group, version {info.cgroup_version or '?'}"
    memory = LimitStatus("memory", groups if info.memory_limit else "nothing", info.memory_limit)
    processes = LimitStatus("processes", groups if info.pids_limit else "nothing", info.pids_limit)
    disk = LimitStatus("disk", "size of the container's own file systems", True)
    return memory, processes, disk, LimitStatus("time and output", "slotd", True)


# ---- the request that makes a container ---------------------------------------------------------------------------


def build_container(
    settings: DockerSettings,
    spec: SandboxSpec,
    owner: str,
    image: EngineImage | None = None,
    *,
    limit_files: bool = True,
) -> dict[str, Any]:
    """The request that makes a container, with the image of a task or that of the settings. `limit_files`: the engine
    can limit the number of files."""
    place: dict[str, Any] = {"Image": settings.image, "WorkingDir": "/"}
    if image is not None:
        place = {"Image": image.id, "Healthcheck": {"Test": ["NONE"]}}
    return {
        **place,
        "Entrypoint": [],
        "Cmd": build_receive_command(settings.python),
        "User": "0:0",
        "Env": [f"{name}={value}" for name, value in settings.env.items()],
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": False,
        "Labels": {OWNER: owner, **settings.labels},
        "HostConfig": _build_host(settings, spec, with_image=image is not None, limit_files=limit_files),
    }


def _build_host(settings: DockerSettings, spec: SandboxSpec, *, with_image: bool, limit_files: bool) -> dict[str, Any]:
    """The limits, rights and mounts of a container. `with_image`: it has one slot, with the image of a task."""
    as_root = settings.root and not with_image
    nested = (settings.slots > 1 or with_image) and not as_root
    capabilities = () if as_root else _USER_CAPABILITIES
    if nested:
        capabilities = (*capabilities, *_NAMESPACE_CAPABILITIES, *(_IMAGE_CAPABILITIES if with_image else ()))
    security = [] if as_root else ["no-new-privileges"]
    memory = (settings.memory_mb or compute_container_mb(spec, settings.slots)) * 2**20
    slots = 1 if with_image else settings.slots
    host: dict[str, Any] = {
        "AutoRemove": True,
        "NetworkMode": settings.network if spec.network else "none",
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": spec.processes * slots + _SLOTD_PROCESSES,
        "NanoCpus": round(settings.cpus * 1e9),
        "ShmSize": SHM_MB * 2**20,
        "ReadonlyRootfs": settings.read_only and not with_image,
        "CapDrop": [] if as_root else ["ALL"],
        "CapAdd": list(capabilities),
        "SecurityOpt": [*security, *(("apparmor=unconfined",) if nested else ())],
        "Tmpfs": {} if with_image else _build_tmpfs(settings, spec, limit_files=limit_files),
        "Binds": [f"{source}:{target}:ro" for source, target in _list_mounts(settings, spec)],
        "LogConfig": {"Type": "none", "Config": {}},
    }
    if nested:
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}  # else a slot could not have its own /proc
    if settings.gpus:
        request = {"Driver": "nvidia", "Count": settings.gpus, "Capabilities": [["gpu"]]}
        host["DeviceRequests"] = [request]
    if settings.runtime:
        host["Runtime"] = settings.runtime
    return host


def _list_mounts(settings: DockerSettings, spec: SandboxSpec) -> list[tuple[str, str]]:
    return [*((mount.source, mount.target) for mount in settings.mounts), *spec.caches]


def _build_tmpfs(settings: DockerSettings, spec: SandboxSpec, *, limit_files: bool) -> dict[str, str]:
    """File systems in memory. A slot in a mount namespace makes its own inside the container."""
    common = "rw,exec,nosuid,nodev"
    own = {"/run/ludus": f"{common},mode=711,size={SLOTD_MB // 3}m"} if settings.read_only else {}
    if settings.slots == 1:
        size = f"size={spec.disk_mb}m" + (f",nr_inodes={spec.disk_mb * FILES_PER_MB}" if limit_files else "")
        own |= {WORKSPACE: f"{common},mode=755,{size}", HOME: f"{common},mode=700,{size}"}
        own |= {"/tmp": f"{common},mode=1777,{size}", "/var/tmp": f"{common},mode=1777,{size}"}
        own |= dict.fromkeys(spec.folders, f"{common},mode=755,{size}")
    return own


def split_image(image: str) -> tuple[str, str]:
    """Repository and tag (or digest) of an image's name."""
    if "@" in image:
        repository, _, digest = image.partition("@")
        return repository, digest
    head, slash, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    if not name:
        raise ConfigError(f"sandbox.docker.image is '{image}', which is not the name of an image")
    return f"{head}{slash}{name}", tag or "latest"
