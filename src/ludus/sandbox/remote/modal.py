"""Slots in sandboxes of Modal (https://modal.com), with its own client library: the extra `modal`.

A Modal sandbox runs slotd by `exec`, and the driver uses that process's stdin and stdout. That works with the network
blocked, needs no tunnel, and nothing listens anywhere. `network=False` blocks the sandbox's network altogether.

When the driver dies, slotd ends when no message comes, and Modal ends a sandbox in which nothing runs (`idle_timeout`).
A sandbox also ends after `lifetime_seconds`, which fails the slots that it still has. Sandboxes that a dead driver left
are ended by the next driver on the same host. The client's calls run on its own thread and never block the driver's
loop.

Tasks with images of their own have sandboxes of that image, which Modal pulls or builds of the Dockerfile.
"""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ludus.errors import ConfigError, SandboxError, boundary
from ludus.sandbox import ImageSupport, SandboxSpec
from ludus.sandbox.backend import BackendFinding
from ludus.sandbox.backend_settings import ModalSettings
from ludus.sandbox.limits import compute_container_mb
from ludus.sandbox.owner import OwnedResource, make_owner_mark
from ludus.sandbox.remote.bundle import build_receive_command
from ludus.sandbox.remote.fleet import Once, RemoteBackend
from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake
from ludus.sandbox.teardown import run_shielded

_OWNER = "ludus-owner"
_IDLE_SECONDS = 60
"""Modal ends a sandbox that runs nothing for this long."""
_END_SECONDS = 30.0
_PIECE_BYTES = 2**20
"""The client takes no more than 2 MB at once."""


class Modal(RemoteBackend[ModalSettings]):
    """Starts Modal sandboxes, each with a slotd in it."""

    name = "modal"
    Settings = ModalSettings

    def __init__(self, settings: ModalSettings, secrets: Mapping[str, str] = MappingProxyType({})) -> None:
        """`secrets`: `token_id` and `token_secret`. Without them the client looks for a token where it always does."""
        super().__init__(settings, secrets)
        self._modal = _import_modal()
        self._owner = make_owner_mark()
        self._open_once = Once(self._open)

    @classmethod
    async def look(cls) -> BackendFinding:
        if importlib.util.find_spec("modal") is None:
            return BackendFinding(
                cls.name, "off", "Modal's client is not installed", "pip install 'ludus-train[modal]'"
            )
        return BackendFinding(cls.name, "ready", "Modal's client is here; your account is checked when it is used")

    @classmethod
    def get_image_support(cls, settings: ModalSettings) -> ImageSupport:
        return "any"

    def get_kind(self, spec: SandboxSpec) -> Hashable:
        return spec.network, spec.memory_mb, spec.disk_mb, spec.processes, spec.caches, spec.image

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        if (spec.caches and spec.image is None) or self.settings.mounts:
            raise SandboxError("Modal cannot mount folders of a host: leave out caches and mounts", retryable=False)
        client, app = await self._open_once.run()
        with boundary(SandboxError, "Modal"):
            building = 0.0 if spec.image is None else spec.image.seconds
            async with asyncio.timeout(self.settings.start_seconds + building):
                sandbox = await self._create(client, app, spec)
        try:
            return await self._start(sandbox, spec)
        except BaseException:
            await run_shielded(_terminate(sandbox))
            raise

    async def close(self) -> None:
        await self._open_once.stop()

    async def _open(self) -> Any:
        """The client and the app. Sandboxes that dead drivers have left are ended first."""
        modal = self._modal
        with boundary(SandboxError, "Modal"):
            if key := self.secrets.get("token_id", ""):
                client = await modal.Client.from_credentials.aio(key, self.secrets.get("token_secret", ""))
            else:
                client = await modal.Client.from_env.aio()
            app = await modal.App.lookup.aio(self.settings.app, create_if_missing=True, client=client)
            for resource in await _list_sandboxes(modal, client, app):
                if resource.orphaned:
                    await _terminate(await modal.Sandbox.from_id.aio(resource.name, client=client))
        return client, app

    async def list_resources(self) -> list[OwnedResource]:
        client, app = await self._open_once.run()
        with boundary(SandboxError, "Modal"):
            return await _list_sandboxes(self._modal, client, app)

    async def remove_resource(self, resource: OwnedResource) -> None:
        client, _ = await self._open_once.run()
        with boundary(SandboxError, "Modal"):
            await _terminate(await self._modal.Sandbox.from_id.aio(resource.name, client=client))

    async def _create(self, client: Any, app: Any, spec: SandboxSpec) -> Any:
        settings, modal = self.settings, self._modal
        memory = settings.memory_mb or compute_container_mb(spec, settings.slots)
        return await modal.Sandbox.create.aio(
            app=app,
            image=self._choose_image(spec),
            timeout=settings.lifetime_seconds,
            idle_timeout=_IDLE_SECONDS,
            cpu=settings.cpus,
            memory=(memory, memory),
            gpu=settings.gpu or None,
            region=settings.region or None,
            block_network=not spec.network,
            secrets=[modal.Secret.from_name(name) for name in settings.secrets],
            env=settings.env,
            tags={_OWNER: self._owner},
            client=client,
        )

    def _choose_image(self, spec: SandboxSpec) -> Any:
        """The image of the task, which Modal builds once for the same content, or that of the settings."""
        modal, image = self._modal, spec.image
        if image is None:
            return modal.Image.from_registry(self.settings.image)
        if image.folder:
            made = modal.Image.from_dockerfile(Path(image.folder, "Dockerfile"), context_dir=image.folder)
        else:
            made = modal.Image.from_registry(image.name)
        for source, target in spec.caches:
            add = made.add_local_dir if Path(source).is_dir() else made.add_local_file
            made = add(source, target)
        return made

    async def _start(self, sandbox: Any, spec: SandboxSpec) -> SlotServer:
        settings = self.settings
        with boundary(SandboxError, "Modal"):
            process = await sandbox.exec.aio(*build_receive_command(settings.python), text=False)
        link = StdioLink(ModalChannel(process))
        alone = spec.image is not None
        hello = {"view": "root"} if alone else {"view": "image", "exclusive": settings.slots == 1}
        reply = link.start(hello, seconds=settings.start_seconds, lapse=settings.lapse_seconds)
        info = await finish_handshake(
            link, reply, slots=settings.slots, trusted=settings.trusted, container=True, image=alone
        )
        return SlotServer(
            link,
            info,
            end=lambda: _terminate(sandbox),
            container_limits=("memory",) if settings.slots == 1 or alone else (),
            image_mounts=[target for _, target in spec.caches] if alone else None,
        )


async def _list_sandboxes(modal: Any, client: Any, app: Any) -> list[OwnedResource]:
    """All sandboxes of an app, of every driver."""
    found: list[OwnedResource] = []
    async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, client=client):
        mark = (await sandbox.get_tags.aio()).get(_OWNER, "")
        found.append(OwnedResource("modal", "sandbox", str(sandbox.object_id), mark))
    return found


async def _terminate(sandbox: Any) -> None:
    """End a sandbox. If that fails, Modal ends it: nothing runs in it any more, and its lifetime is limited."""
    with suppress(SandboxError), boundary(SandboxError, "Modal"):
        async with asyncio.timeout(_END_SECONDS):
            await sandbox.terminate.aio()


def _import_modal() -> Any:
    try:
        import modal
    except ImportError as error:
        raise ConfigError("sandbox.backend 'modal' needs Modal's client: pip install 'ludus-train[modal]'") from error
    return modal


class ModalChannel:
    """The stdin and stdout of a process that runs by `exec` in a Modal sandbox."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._chunks: AsyncIterator[bytes] = aiter(process.stdout)
        self._unsent: list[bytes] = []
        self._turn = asyncio.Lock()

    def send(self, data: bytes) -> None:
        self._unsent.append(data)

    async def drain(self) -> None:
        """Send what is unsent. One call at a time: the client numbers what it writes by the order of calls."""
        async with self._turn:
            while self._unsent:
                data, self._unsent = b"".join(self._unsent), []
                try:
                    for start in range(0, len(data), _PIECE_BYTES):
                        self._process.stdin.write(data[start : start + _PIECE_BYTES])
                        await self._process.stdin.drain.aio()
                except Exception as error:  # the client may raise anything; the process cannot be reached
                    raise ConnectionError(f"Modal: {type(error).__name__}: {error}") from error

    async def receive(self) -> bytes:
        try:
            return await anext(self._chunks, b"")
        except Exception as error:  # as above
            raise ConnectionError(f"Modal: {type(error).__name__}: {error}") from error

    def get_stderr(self) -> str:
        return ""

    async def close(self) -> None:
        """The process ends with its sandbox."""
