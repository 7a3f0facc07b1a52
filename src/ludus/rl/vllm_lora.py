"""Sampling by vLLM with LoRA weights that are swapped in place after each update.

The server is started with `--enable-lora` and `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`, on a machine that sees the same
files. Each version is written to a folder of its own: vLLM knows cached prompts by the folder of their adapter, so none
is reused under other weights. It may read the folder again at any time, so the folder of the weights in use is kept.

With several servers all of them get the new weights, or none: if one refuses, the others are given the last good ones
again.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ludus.errors import ModelUnusable
from ludus.http_client import Client, HttpError
from ludus.models import Model
from ludus.models.server import Endpoint, ServerSettings, make_endpoints, mask_url, merge_headers
from ludus.tokens.codec import Codec
from ludus.tokens.engines import make_headers, make_root_url
from ludus.tokens.engines.vllm import VllmEngine
from ludus.tokens.token_model import TokenModel
from ludus.types import JsonObject, Sampling, to_json

ADAPTER = "ludus"
"""The name of the adapter on the servers. It stays the same, the weights change."""
_SHOWN = 500


class VllmAdapters:
    """The adapter on one or several vLLM servers. `settings` name the servers and their base model."""

    def __init__(self, settings: ServerSettings, codec: Codec, *endpoints: Endpoint) -> None:
        self._settings = msgspec.structs.replace(settings, name=ADAPTER)
        self._endpoints = endpoints or make_endpoints(settings)
        self._codec = codec
        self._folder = Path(tempfile.mkdtemp(prefix="ludus-adapter-"))
        self._good: Path | None = None
        self._swapping = asyncio.Lock()

    async def load_adapter(self, folder: Path, version: int, name: str) -> Model:
        """Swap in the weights of a folder (in the form of peft), and return a model that samples with them.

        Raises:
            ModelUnusable: a server did not load them. All servers have the last good weights.
        """
        async with self._swapping:
            own = Path(tempfile.mkdtemp(prefix=f"version-{version}-", dir=self._folder))
            await asyncio.to_thread(shutil.copytree, folder, own, dirs_exist_ok=True)
            try:
                await self._swap(own)
            except BaseException:
                shutil.rmtree(own, ignore_errors=True)
                raise
            if self._good is not None:
                shutil.rmtree(self._good, ignore_errors=True)
            self._good = own
        engine = VllmLoraEngine(self._settings, self, *self._endpoints)
        return TokenModel(engine, self._codec, name=name)

    @property
    def weights_in_use(self) -> str:
        """What tells the weights in use from those before."""
        return "" if self._good is None else self._good.name

    async def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _swap(self, folder: Path) -> None:
        swapped: list[Endpoint] = []
        try:
            for endpoint in self._endpoints:
                await load_weights(endpoint, folder, self._settings)
                swapped.append(endpoint)
        except BaseException:
            if self._good is not None:
                await asyncio.gather(
                    *(load_weights(endpoint, self._good, self._settings) for endpoint in swapped),
                    return_exceptions=True,
                )
            raise


class VllmLoraEngine(VllmEngine):
    """A vLLM engine that samples with the adapter in use."""

    def __init__(self, settings: ServerSettings, adapters: VllmAdapters, *endpoints: Endpoint) -> None:
        super().__init__(settings, *endpoints)
        self._adapters = adapters

    def build_request(self, ids: Sequence[int], sampling: Sampling, n: int, model: str) -> JsonObject:
        # Older servers know cached prompts by the adapter's name only. The salt tells its versions apart.
        return {**super().build_request(ids, sampling, n, model), "cache_salt": self._adapters.weights_in_use}


async def load_weights(endpoint: Endpoint, folder: Path, settings: ServerSettings) -> None:
    """Make one server load the adapter in a folder in place of the one that it has.

    Raises:
        ModelUnusable: it did not. It keeps the weights that it had.
    """
    url = f"{make_root_url(endpoint)}/v1/load_lora_adapter"
    body = {"lora_name": ADAPTER, "lora_path": str(folder), "load_inplace": True}
    headers = merge_headers(make_headers(endpoint), {**settings.headers, **endpoint.headers})
    client = Client(timeouts=settings.timeouts, connections=1, proxy=endpoint.proxy)
    try:
        response = await client.request("POST", url, headers, to_json(body))
    except HttpError as error:
        raise ModelUnusable(f"{mask_url(url)}: the adapter was not loaded: {error}") from error
    finally:
        await client.close()
    if response.status != 200:
        raise ModelUnusable(explain_refusal(mask_url(url), response.status, response.body))


def explain_refusal(url: str, status: int, body: bytes) -> str:
    """Why a server did not load an adapter, and what to do."""
    words = body.decode(errors="replace").strip()[:_SHOWN]
    message = f"{url}: status {status}: the adapter was not loaded, the last good weights stay: {words}"
    if status in (404, 405):
        return f"{message}. Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment"
    if "rank" in words:
        return f"{message}. Start vLLM with --max-lora-rank of at least trainer.lora_rank"
    return message
