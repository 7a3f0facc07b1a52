"""The embedded model in token mode: llama.cpp's server inside this process, spoken to as such.

The server starts with the first question and ends with `close`. The tokenizer is inside the weights file:

    engine = EmbeddedEngine(EmbeddedSettings(cache=…, weights=path))
    model = TokenModel(engine, Codec.open(path, parser="hermes", template="chatml"))

The model's own template leaves out tools; `chatml` shows them in the form that models of its format are trained on. It
is too small to have learnt to call them: token mode here is for trying the machinery, and for checking it.
"""

from collections.abc import Sequence

import msgspec

from ludus.models.embedded import EmbeddedServer, EmbeddedSettings
from ludus.models.server import ServerSettings
from ludus.models.server_pool import OnRetry
from ludus.models.weights import Tell
from ludus.tokens import EngineFacts, Generated
from ludus.tokens.engines.llamacpp import LlamaCppEngine
from ludus.types import Sampling


class EmbeddedEngine:
    """llama.cpp, loaded on first use."""

    def __init__(self, settings: EmbeddedSettings, tell: Tell = lambda _: None) -> None:
        self._settings = settings
        self._server = EmbeddedServer(settings, tell)
        self._engine: LlamaCppEngine | None = None

    @property
    def name(self) -> str:
        return self._settings.name

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, n: int = 1, *, on_retry: OnRetry | None = None
    ) -> list[Generated]:
        if sampling.max_tokens is None:
            sampling = msgspec.structs.replace(sampling, max_tokens=self._settings.reply_tokens)
        return await (await self.started()).generate(ids, sampling, n, on_retry=on_retry)

    async def tokenize(self, text: str) -> Sequence[int] | None:
        return await (await self.started()).tokenize(text)

    async def facts(self) -> EngineFacts:
        return await (await self.started()).facts()

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()
        await self._server.close()

    async def started(self) -> LlamaCppEngine:
        """The engine, running."""
        address = await self._server.start()
        if self._engine is None:
            own = self._settings
            self._engine = LlamaCppEngine(
                ServerSettings(
                    base_url=address.base_url, model=own.name, api_key=address.api_key, concurrency=own.slots
                )
            )
        return self._engine
