"""The embedded model in token mode: llama.cpp's server inside this process.

The server starts with the first request and ends with `close`. The tokenizer is in the weights file:

    engine = EmbeddedEngine(EmbeddedSettings(cache=…, weights=path))
    model = TokenModel(engine, Codec.open(path, parser="hermes", template="chatml"))

The model's own template leaves out tools. `chatml` shows them in the form on which models of its format are trained.
The model is too small to call tools well: token mode with it is for trying and testing.
"""

from collections.abc import Callable, Sequence

import msgspec

from ludus.models.embedded import EmbeddedRuntime, EmbeddedServer
from ludus.models.reply_pieces import PieceStream
from ludus.models.server import ServerSettings
from ludus.models.settings import EmbeddedSettings
from ludus.models.weights import Tell
from ludus.tokens import EngineFacts, Generation, Guide, TakeIds
from ludus.tokens.engines.llamacpp import LlamaCppEngine, write_guide
from ludus.types import JsonObject, Sampling


class EmbeddedEngine:
    """llama.cpp, loaded on first use."""

    def __init__(self, settings: EmbeddedSettings, runtime: EmbeddedRuntime, tell: Tell = lambda _: None) -> None:
        self._settings = settings
        self._runtime = runtime
        self._server = EmbeddedServer(settings, runtime, tell)
        self._engine: LlamaCppEngine | None = None

    @property
    def name(self) -> str:
        return self._settings.recorded_name

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> list[Generation]:
        if sampling.max_tokens is None:
            sampling = msgspec.structs.replace(sampling, max_tokens=self._runtime.reply_tokens)
        return await (await self.ensure_started()).generate(ids, sampling, n)

    async def stream(
        self, ids: Sequence[int], sampling: Sampling, reply_stream: PieceStream, begin: Callable[[], TakeIds]
    ) -> Generation:
        """Sample one reply and pass it on while it is sampled."""
        if sampling.max_tokens is None:
            sampling = msgspec.structs.replace(sampling, max_tokens=self._runtime.reply_tokens)
        return await (await self.ensure_started()).stream(ids, sampling, reply_stream, begin)

    def write_guide(self, guide: Guide) -> JsonObject:
        return write_guide(guide)

    async def tokenize(self, text: str) -> Sequence[int] | None:
        return await (await self.ensure_started()).tokenize(text)

    async def get_facts(self) -> EngineFacts:
        return await (await self.ensure_started()).get_facts()

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()
        await self._server.close()

    async def ensure_started(self) -> LlamaCppEngine:
        """Start the server if it is not running. Returns the engine."""
        endpoint = await self._server.start()
        if self._engine is None:
            settings = ServerSettings(name=self.name, concurrency=self._runtime.slots)
            self._engine = LlamaCppEngine(settings, endpoint)
        return self._engine
