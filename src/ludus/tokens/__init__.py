"""Exact tokens: the model is trained on the ids that were sampled.

In chat mode a server renders the conversation, samples, and returns text. The ids it used are lost, and encoding the
text again often gives other ids, which spoils training. In token mode Ludus renders the conversation itself, sends ids,
and keeps the ids and logprobs of the reply. The loop and the environments see the same `Model` in both modes:

    TokenModel.complete(messages, tools, sampling)
        TokenSession.build_prompt     messages ──> the known ids, then the newly rendered delta    token_session, render
        Engine.generate               ids ──> sampled ids, their logprobs, the finish reason       engines/
        TokenSession.add_completion   sampled ids ──> a message, a node, `Completion.tokens`       token_session, codec

Read `render` (the idea) → `token_session` (the tree) → `token_model`. `tokenizer`, `template` and `gguf` read the files
of a model. `probe` checks a template before a run. `sequences` turns records into rows for training.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

from ludus.models.reply_pieces import Drawing, Piece
from ludus.types import Finish, JsonObject, Sampling

TakeIds = Callable[[Sequence[int]], list[Piece]]
"""Takes ids that were sampled, and returns the pieces of the reply that are certain now."""


class Generation(Struct, frozen=True, kw_only=True):
    """One reply that an engine sampled after a prompt."""

    ids: tuple[int, ...]
    """All sampled ids, with the stop token if the engine returns it."""
    logprobs: tuple[float | None, ...]
    """One for each id, of the model's own distribution at temperature 1. None where the engine gives no logprob."""
    finish: Finish
    text: str | None = None
    """The ids as text, as the engine decodes them. None if the engine returns no text."""
    prompt: tuple[int, ...] | None = None
    """The prompt ids that the engine used. None if it does not return them."""
    prompt_tokens: int | None = None
    """The number of prompt ids that the engine counted. None if it does not return it."""
    cached_tokens: int = 0


class EngineFacts(Struct, frozen=True, kw_only=True):
    """What an engine reports about its model. None where it reports nothing."""

    vocabulary: int | None = None
    """Ids are below this."""
    context: int | None = None
    """The longest prompt and reply together, in ids."""


class Guide(Struct, frozen=True, kw_only=True):
    """The form that a reply must have: JSON of a schema, or a text of a grammar."""

    schema: JsonObject | None = None
    grammar: str = ""
    """In llama.cpp's notation (GBNF)."""


class Engine(Protocol):
    """Samples ids after a prompt of ids. Raises `ModelError` when that fails, after its own retries."""

    @property
    def name(self) -> str: ...

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> Sequence[Generation]:
        """Draw `n` independent replies to a prompt."""
        ...

    async def tokenize(self, text: str) -> Sequence[int] | None:
        """Encode a text with the engine's own tokenizer, without added special tokens. None if the engine cannot."""
        ...

    async def get_facts(self) -> EngineFacts: ...

    async def close(self) -> None: ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that passes a reply on while it draws it."""

    async def stream(
        self, ids: Sequence[int], sampling: Sampling, drawing: Drawing, begin: Callable[[], TakeIds]
    ) -> Generation:
        """Draw one reply. Every attempt calls `begin`. The result gets the ids as they come, and its pieces go to the
        drawing.

        If the drawing is abandoned and the task is cancelled, the result is what was drawn until then.
        """
        ...


@runtime_checkable
class GuidedEngine(Engine, Protocol):
    """An engine with guided decoding."""

    def write_guide(self, guide: Guide) -> JsonObject:
        """The form of a reply as request fields of this engine, for `sampling.extra`."""
        ...
