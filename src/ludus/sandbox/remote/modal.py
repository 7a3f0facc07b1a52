"""Slots in sandboxes of Modal (https://modal.com), with its own client library: the extra `modal`.

A Modal sandbox runs slotd by `exec`, and the driver talks to it over that process's stdin and stdout. That works with
the network blocked, needs no tunnel, and nothing listens anywhere. `network=False` blocks the sandbox's network
altogether.

When the driver dies, slotd ends after a silence, and Modal ends a sandbox in which nothing runs (`idle_timeout`); a
sandbox also ends after `lifetime_seconds`, which fails the slots it still has. What is left of a dead driver is ended
by the next one on the same host. The client's calls are awaited on its own thread and never block the driver's loop.
"""

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import suppress
from typing import Any

from ludus.errors import ConfigError, SandboxError, boundary
from ludus.sandbox import SandboxSpec
from ludus.sandbox.local.limits import SHM_MB
from ludus.sandbox.owner import OwnedResource, make_owner_mark
from ludus.sandbox.remote.bundle import build_receive_command
from ludus.sandbox.remote.fleet import Once
from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake
from ludus.sandbox.settings import ModalSettings
from ludus.sandbox.teardown import run_shielded

_OWNER = "ludus-owner"
_SLOTD_MB = 96
_IDLE_SECONDS = 60
"""After which Modal ends a sandbox that runs nothing."""
_END_SECONDS = 30.0
_PIECE_BYTES = 2**20
"""The client takes no more than 2 MB at once."""


class Modal:
    """Starts Modal sandboxes, each with a slotd in it."""

    def __init__(self, settings: ModalSettings, *, token: tuple[str, str] | None = None) -> None:
        """`token` is Modal's token id and secret; without it, the client looks where it always does."""
        self._settings = settings
        self._token = token
        self._modal = _import_modal()
        self._owner = make_owner_mark()
        self._opened = Once(self._open)

    def kind(self, spec: SandboxSpec) -> Hashable:
        return spec.network, spec.memory_mb, spec.disk_mb, spec.processes

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        if spec.caches or self._settings.mounts:
            raise SandboxError("Modal cannot mount folders of a host: leave out caches and mounts", retryable=False)
        client, app = await self._opened.run()
        with boundary(SandboxError, "Modal"):
            async with asyncio.timeout(self._settings.start_seconds):
                sandbox = await self._create(client, app, spec)
        try:
            return await self._start(sandbox, spec)
        except BaseException:
            await run_shielded(_terminate(sandbox))
            raise

    async def close(self) -> None:
        await self._opened.stop()

    async def _open(self) -> Any:
        """The client and the app, after what dead drivers have left is ended."""
        modal = self._modal
        with boundary(SandboxError, "Modal"):
            client = (
                await modal.Client.from_credentials.aio(*self._token)
                if self._token
                else await modal.Client.from_env.aio()
            )
            app = await modal.App.lookup.aio(self._settings.app, create_if_missing=True, client=client)
            for holding in await _list_sandboxes(modal, client, app):
                if holding.orphaned:
                    await _terminate(await modal.Sandbox.from_id.aio(holding.name, client=client))
        return client, app

    async def holdings(self) -> list[OwnedResource]:
        client, app = await self._opened.run()
        with boundary(SandboxError, "Modal"):
            return await _list_sandboxes(self._modal, client, app)

    async def drop(self, holding: OwnedResource) -> None:
        client, _ = await self._opened.run()
        with boundary(SandboxError, "Modal"):
            await _terminate(await self._modal.Sandbox.from_id.aio(holding.name, client=client))

    async def _create(self, client: Any, app: Any, spec: SandboxSpec) -> Any:
        settings, modal = self._settings, self._modal
        memory = settings.memory_mb or settings.slots * (spec.memory_mb + 3 * spec.disk_mb + SHM_MB) + _SLOTD_MB
        return await modal.Sandbox.create.aio(
            app=app,
            image=modal.Image.from_registry(settings.image),
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

    async def _start(self, sandbox: Any, spec: SandboxSpec) -> SlotServer:
        settings = self._settings
        with boundary(SandboxError, "Modal"):
            process = await sandbox.exec.aio(*build_receive_command(settings.python), text=False)
        link = StdioLink(ModalChannel(process))
        hello = {"view": "image", "exclusive": settings.slots == 1}
        greeting = link.start(hello, seconds=settings.start_seconds, lapse=settings.lapse_seconds)
        about = await finish_handshake(link, greeting, slots=settings.slots, trusted=settings.trusted, container=True)
        return SlotServer(
            link,
            about,
            places=settings.slots,
            end=lambda: _terminate(sandbox),
            held=("memory",) if settings.slots == 1 else (),
        )


async def _list_sandboxes(modal: Any, client: Any, app: Any) -> list[OwnedResource]:
    """The sandboxes of an app, whoever's they are."""
    found: list[OwnedResource] = []
    async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, client=client):
        mark = (await sandbox.get_tags.aio()).get(_OWNER, "")
        found.append(OwnedResource("modal", "sandbox", str(sandbox.object_id), mark))
    return found


async def _terminate(sandbox: Any) -> None:
    """End a sandbox. One that will not is ended by Modal: nothing runs in it any more, and its lifetime is limited."""
    with suppress(SandboxError), boundary(SandboxError, "Modal"):
        async with asyncio.timeout(_END_SECONDS):
            await sandbox.terminate.aio()


def _import_modal() -> Any:
    try:
        import modal
    except ImportError as error:
        raise ConfigError("sandbox.backend 'modal' needs Modal's client: pip install 'ludus[modal]'") from error
    return modal


class ModalChannel:
    """The stdin and stdout of a process that runs by `exec` in a Modal sandbox."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._chunks: AsyncIterator[bytes] = aiter(process.stdout)
        self._unsent: list[bytes] = []
        self._turn = asyncio.Lock()
        self._why = ""

    def send(self, data: bytes) -> None:
        self._unsent.append(data)

    async def drain(self) -> None:
        """Hand over what is unsent. One at a time: the client numbers what it writes by the order of calls."""
        async with self._turn:
            while self._unsent:
                data, self._unsent = b"".join(self._unsent), []
                try:
                    for start in range(0, len(data), _PIECE_BYTES):
                        self._process.stdin.write(data[start : start + _PIECE_BYTES])
                        await self._process.stdin.drain.aio()
                except Exception as error:  # whatever the client raises means that the process cannot be reached
                    raise ConnectionError(f"Modal: {type(error).__name__}: {error}") from error

    async def receive(self) -> bytes:
        try:
            return await anext(self._chunks, b"")
        except Exception as error:  # as above
            raise ConnectionError(f"Modal: {type(error).__name__}: {error}") from error

    def words(self) -> str:
        return self._why

    async def close(self) -> None:
        """The process ends with its sandbox."""
