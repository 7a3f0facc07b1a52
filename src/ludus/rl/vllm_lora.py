"""Sampling by vLLM with the LoRA weights of each version.

The server is started with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`, on a machine that sees the same
files, and keeps running. Every version is an adapter with its own name and folder: it is loaded, requests use it from
then on, and the one before is removed. vLLM's own way to swap (`load_inplace` under one name) is not used: such an
adapter is read from disk again at later requests, and the server ends if its folder is gone.

A request that is under way keeps its adapter, and the files of an adapter stay until no request uses it. The next
request of the same rollout uses the newest one. With several servers all of them get the new weights, or none.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ludus.encoding import to_json
from ludus.errors import ModelUnusable
from ludus.http_client import Client, HttpError
from ludus.models import Model
from ludus.models.reply_pieces import PieceStream
from ludus.models.server import Endpoint, ServerSettings, make_endpoints, mask_url, merge_headers
from ludus.tokens import Generation, TakeIds
from ludus.tokens.codec import Codec
from ludus.tokens.engines import make_headers, make_root_url
from ludus.tokens.engines.vllm import VllmEngine
from ludus.tokens.model import TokenModel
from ludus.types import JsonObject, Sampling

_SHOWN = 500


@dataclass(eq=False)
class _Adapter:
    """One version on the servers."""

    folder: Path
    requests: int = 0
    """Requests that are under way with it."""

    @property
    def name(self) -> str:
        return f"ludus-{self.folder.name}"


class VllmAdapters:
    """The LoRA weights on one or several vLLM servers. `settings` name the servers and their base model."""

    def __init__(self, settings: ServerSettings, codec: Codec, *endpoints: Endpoint) -> None:
        self._settings = settings
        self._endpoints = endpoints or make_endpoints(settings)
        self._codec = codec
        self._folder = Path(tempfile.mkdtemp(prefix="ludus-adapters-"))
        self._newest: _Adapter | None = None
        self._older: list[_Adapter] = []
        self._loading = asyncio.Lock()

    async def load_adapter(self, folder: Path, version: int, name: str) -> Model:
        """Load the weights of a folder (in the form of peft) on all servers, and return a model that samples with them.

        Raises:
            ModelUnusable: a server did not load them. The last good weights stay in use on all servers.
        """
        async with self._loading:
            own = Path(tempfile.mkdtemp(prefix=f"{version}-", dir=self._folder))
            await asyncio.to_thread(shutil.copytree, folder, own, dirs_exist_ok=True)
            await self._load(_Adapter(own))
            await self._remove_unused()
        return TokenModel(VllmLoraEngine(self._settings, self, *self._endpoints), self._codec, name=name)

    @contextmanager
    def hold(self) -> Generator[str]:
        """The name of the newest adapter. Its files stay at least as long as the context."""
        adapter = self._newest
        assert adapter is not None, "no adapter was loaded"
        adapter.requests += 1
        try:
            yield adapter.name
        finally:
            adapter.requests -= 1

    async def close(self) -> None:
        """Remove all adapters from the servers, and their files."""
        known = [*self._older, *([self._newest] if self._newest else [])]
        self._older, self._newest = [], None
        for adapter in known:
            await self._unload(adapter, self._endpoints)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _load(self, adapter: _Adapter) -> None:
        """Load an adapter on all servers or on none, and use it from now on."""
        loaded: list[Endpoint] = []
        try:
            for endpoint in self._endpoints:
                body = {"lora_name": adapter.name, "lora_path": str(adapter.folder)}
                await change_adapters("load", endpoint, body, self._settings)
                loaded.append(endpoint)
        except BaseException:
            await self._unload(adapter, loaded)
            raise
        if self._newest is not None:
            self._older.append(self._newest)
        self._newest = adapter

    async def _remove_unused(self) -> None:
        """Remove older adapters that no request uses."""
        unused = [adapter for adapter in self._older if not adapter.requests]
        self._older = [adapter for adapter in self._older if adapter.requests]
        for adapter in unused:
            await self._unload(adapter, self._endpoints)

    async def _unload(self, adapter: _Adapter, endpoints: Sequence[Endpoint]) -> None:
        changes = (
            change_adapters("unload", endpoint, {"lora_name": adapter.name}, self._settings) for endpoint in endpoints
        )
        await asyncio.gather(*changes, return_exceptions=True)  # a server that has ended has no adapters
        shutil.rmtree(adapter.folder, ignore_errors=True)


class VllmLoraEngine(VllmEngine):
    """A vLLM engine that samples with the newest adapter."""

    def __init__(self, settings: ServerSettings, adapters: VllmAdapters, *endpoints: Endpoint) -> None:
        super().__init__(settings, *endpoints)
        self._adapters = adapters

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> list[Generation]:
        with self._adapters.hold() as name:
            return await super().generate(ids, name_adapter(sampling, name), n)

    async def stream(
        self, ids: Sequence[int], sampling: Sampling, reply_stream: PieceStream, begin: Callable[[], TakeIds]
    ) -> Generation:
        with self._adapters.hold() as name:
            return await super().stream(ids, name_adapter(sampling, name), reply_stream, begin)


def name_adapter(sampling: Sampling, name: str) -> Sampling:
    """Sampling that asks for an adapter: vLLM takes its name as that of the model."""
    return msgspec.structs.replace(sampling, extra={**sampling.extra, "model": name})


async def change_adapters(what: str, endpoint: Endpoint, body: JsonObject, settings: ServerSettings) -> None:
    """`load` or `unload` an adapter on one server.

    Raises:
        ModelUnusable: the server did not do it.
    """
    url = f"{make_root_url(endpoint)}/v1/{what}_lora_adapter"
    headers = merge_headers(make_headers(endpoint), {**settings.headers, **endpoint.headers})
    client = Client(timeouts=settings.timeouts, connections=1, proxy=endpoint.proxy)
    try:
        response = await client.request("POST", url, headers, to_json(body))
    except HttpError as error:
        raise ModelUnusable(f"{mask_url(url)}: {error}. Is vLLM running, and is the address right?") from error
    finally:
        await client.close()
    if response.status != 200:
        raise ModelUnusable(explain_refusal(mask_url(url), response.status, response.body))


def explain_refusal(url: str, status: int, body: bytes) -> str:
    """Why a server did not load an adapter, and what to do."""
    words = body.decode(errors="replace").strip()[:_SHOWN]
    message = f"{url}: status {status}: the adapter was not loaded, the last good weights stay in use: {words}"
    if status in (404, 405):
        return f"{message}. Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"
    if "rank" in words:
        return f"{message}. Start vLLM with --max-lora-rank of at least trainer.lora_rank"
    return message
