"""Slots in containers of a Docker engine, or of Podman: `podman system service` speaks the same API.

A container runs `slotd` as its only program, attached to the driver by the engine, and is removed by the engine when it
ends. With one slot per container (the default) the container has no rights beyond a few that slotd needs to act as the
slot's user, and the slot is a user of its own in it. With more, slotd is allowed to make namespaces (CAP_SYS_ADMIN), so
that slots of one container see nothing of each other; the slots themselves hold no capability in either case and cannot
gain any. `network=False` means a container without a network.

When the driver dies, its containers end by themselves: the engine closes their stdin, and silence ends them too. What
an unlucky moment may leave (a container made but not yet started) is found by its labels when the next driver starts.

The image needs bash, the usual tools and Python 3.8 or later; it is not changed. Files of the image are read-only to
the slot (`root=True` lifts that, and the separation of slot and slotd with it).
"""

import asyncio
import secrets
from collections.abc import Hashable
from typing import Any

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError, SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.local.limits import SHM_MB
from ludus.sandbox.owner import OwnedResource, make_owner_mark
from ludus.sandbox.remote.bundle import build_receive_command
from ludus.sandbox.remote.docker_api import DockerApi, DockerApiError
from ludus.sandbox.remote.fleet import Once
from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake
from ludus.sandbox.settings import DockerSettings, backend_of
from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.slotd.mount_view import HOME, WORKSPACE
from ludus.sandbox.teardown import run_shielded

OWNER = "ludus.owner"
"""The label that tells whose a container is."""
_SLOTD_MB = 96
_SLOTD_PROCESSES = 32
_USER_RIGHTS = ("SETUID", "SETGID", "CHOWN", "KILL", "DAC_OVERRIDE", "FOWNER")
_NAMESPACE_RIGHTS = ("SYS_ADMIN", "SYS_CHROOT", "NET_ADMIN", "SETPCAP")
_GONE = (404, 409)
"""Statuses of removing what is gone, or is being removed."""


class Docker:
    """Starts containers, each with a slotd in it."""

    def __init__(self, settings: DockerSettings) -> None:
        self._settings = settings
        self._engine = DockerApi(settings.socket, seconds=settings.api_seconds)
        self._owner = make_owner_mark()
        self._swept = Once(self._sweep)
        self._doubtful: set[str] = set()
        """Containers that the engine may still make, or still have, although it did not say so."""

    def kind(self, spec: SandboxSpec) -> Hashable:
        return spec.network, spec.memory_mb, spec.disk_mb, spec.processes, spec.caches

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        await self._swept.run()
        name = f"ludus-{self._owner}-{secrets.token_hex(4)}"
        try:
            return await self._start(name, spec)
        except BaseException:
            await run_shielded(self._remove(name))
            raise

    async def close(self) -> None:
        await self._swept.stop()
        for name in tuple(self._doubtful):
            await self._remove(name)

    # ---- one container --------------------------------------------------------------------------------------------

    async def _start(self, name: str, spec: SandboxSpec) -> SlotServer:
        settings = self._settings
        await self._create(name, spec)
        link = StdioLink(await self._engine.attach(name))
        greeting = self._start_slotd(link, name)
        about = await finish_handshake(link, greeting, slots=settings.slots, trusted=settings.root, container=True)
        return SlotServer(
            link,
            about,
            places=settings.slots,
            end=lambda: self._remove(name),
            held=("memory", "processes", "disk") if settings.slots == 1 else (),
        )

    async def _start_slotd(self, link: StdioLink, name: str) -> Frame:
        """Start the container, to whose streams the link is attached already, and the slotd in it."""
        settings = self._settings
        await self._engine.request("POST", f"/containers/{name}/start", body={})
        hello = {"view": "image", "as_root": settings.root, "exclusive": settings.slots == 1}
        try:
            return await link.start(hello, seconds=settings.start_seconds, lapse=settings.lapse_seconds)
        except SandboxError as error:
            raise SandboxError(f"image '{settings.image}' runs no slots: {error}") from error

    async def _create(self, name: str, spec: SandboxSpec) -> None:
        body = build_container(self._settings, spec, self._owner)
        try:
            await self._make(name, body)
        except DockerApiError as error:
            if error.status != 404:
                raise
            await self._pull()
            await self._make(name, body)

    async def _make(self, name: str, body: dict[str, Any]) -> None:
        """Have a container made. The engine does not stop when we hang up, so we hear it out even when cancelled."""
        self._doubtful.add(name)
        try:
            await run_shielded(self._engine.request("POST", "/containers/create", {"name": name}, body))
        except DockerApiError as error:
            if error.status:  # it answered: there is none
                self._doubtful.discard(name)
            raise
        self._doubtful.discard(name)

    async def _pull(self) -> None:
        image = self._settings.image
        if not self._settings.pull:
            raise SandboxError(f"there is no image '{image}' here, and sandbox.pull is off", retryable=False)
        repository, tag = split_image(image)
        query = {"fromImage": repository, "tag": tag}
        report = await self._engine.request("POST", "/images/create", query, {}, seconds=self._settings.pull_seconds)
        for line in msgspec.json.Decoder(_Progress).decode_lines(report):
            if line.error:
                raise SandboxError(f"image '{image}' cannot be had: {line.error}")

    async def _remove(self, name: str) -> None:
        """Remove a container, running or not. An engine that fails is asked again; the next driver's sweep is the last
        resort."""
        for pause in (0.2, 1.0, 0.0):
            try:
                await self._engine.request("DELETE", f"/containers/{name}", {"force": "true", "v": "true"})
            except DockerApiError as error:
                if error.status not in _GONE:
                    await asyncio.sleep(pause)
                    continue
            else:
                self._doubtful.discard(name)
            return
        self._doubtful.add(name)

    async def holdings(self) -> list[OwnedResource]:
        filters = msgspec.json.encode({"label": [OWNER]}).decode()
        found = await self._engine.read("/containers/json", {"all": "true", "filters": filters}, list[_Entry])
        backend = backend_of(self._settings)
        return [OwnedResource(backend, "container", entry.id, entry.labels.get(OWNER, "")) for entry in found]

    async def drop(self, holding: OwnedResource) -> None:
        await self._remove(holding.name)

    async def _sweep(self) -> None:
        """Remove what drivers of this host have left that are not alive any more."""
        for holding in await self.holdings():
            if holding.orphaned:
                await self.drop(holding)


class _Entry(Struct, rename="pascal"):
    """A container in the engine's list."""

    id: str
    labels: dict[str, str]


class _Progress(Struct):
    """A line of the engine's report while it fetches an image."""

    error: str = ""


# ---- what a container looks like ----------------------------------------------------------------------------------


def build_container(settings: DockerSettings, spec: SandboxSpec, owner: str) -> dict[str, Any]:
    """The request that makes a container."""
    nested = settings.slots > 1 and not settings.root
    rights = () if settings.root else _USER_RIGHTS
    security = [] if settings.root else ["no-new-privileges"]
    memory = _compute_memory_mb(settings, spec) * 2**20
    host: dict[str, Any] = {
        "AutoRemove": True,
        "NetworkMode": settings.network if spec.network else "none",
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": spec.processes * settings.slots + _SLOTD_PROCESSES,
        "NanoCpus": round(settings.cpus * 1e9),
        "ShmSize": SHM_MB * 2**20,
        "ReadonlyRootfs": settings.read_only,
        "CapDrop": [] if settings.root else ["ALL"],
        "CapAdd": [*rights, *(_NAMESPACE_RIGHTS if nested else ())],
        "SecurityOpt": [*security, *(("apparmor=unconfined",) if nested else ())],
        "Tmpfs": _build_tmpfs(settings, spec),
        "Binds": [f"{source}:{target}:ro" for source, target in (*_list_mounts(settings), *spec.caches)],
        "LogConfig": {"Type": "none", "Config": {}},
    }
    if nested:
        host |= {"MaskedPaths": [], "ReadonlyPaths": []}  # else a slot could not have a /proc of its own
    if settings.gpus:
        request = {"Driver": "nvidia", "Count": settings.gpus, "Capabilities": [["gpu"]]}
        host["DeviceRequests"] = [request]
    if settings.runtime:
        host["Runtime"] = settings.runtime
    return {
        "Image": settings.image,
        "Entrypoint": [],
        "Cmd": build_receive_command(settings.python),
        "User": "0:0",
        "WorkingDir": "/",
        "Env": [f"{name}={value}" for name, value in settings.env.items()],
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": False,
        "Labels": {OWNER: owner, **settings.labels},
        "HostConfig": host,
    }


def _list_mounts(settings: DockerSettings) -> list[tuple[str, str]]:
    return [(mount.source, mount.target) for mount in settings.mounts]


def _compute_memory_mb(settings: DockerSettings, spec: SandboxSpec) -> int:
    """Room for the slots' processes, their full disks, which lie in memory, and slotd."""
    if settings.memory_mb:
        return settings.memory_mb
    return settings.slots * (spec.memory_mb + 3 * spec.disk_mb + SHM_MB) + _SLOTD_MB


def _build_tmpfs(settings: DockerSettings, spec: SandboxSpec) -> dict[str, str]:
    """File systems in memory. A slot with a view of its own makes its own, inside."""
    common = "rw,exec,nosuid,nodev"
    own = {"/run/ludus": f"{common},mode=711,size={_SLOTD_MB // 3}m"} if settings.read_only else {}
    if settings.slots == 1:
        size = f"size={spec.disk_mb}m"
        own |= {WORKSPACE: f"{common},mode=755,{size}", HOME: f"{common},mode=700,{size}"}
        own |= {"/tmp": f"{common},mode=1777,{size}", "/var/tmp": f"{common},mode=1777,{size}"}
    return own


def split_image(image: str) -> tuple[str, str]:
    """Repository and tag (or digest) of an image's name."""
    if "@" in image:
        repository, _, digest = image.partition("@")
        return repository, digest
    head, slash, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    if not name:
        raise ConfigError(f"sandbox.image is '{image}', which is not the name of an image")
    return f"{head}{slash}{name}", tag or "latest"
