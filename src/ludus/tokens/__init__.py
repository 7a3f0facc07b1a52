"""Exact tokens: the model is trained on the ids that were sampled.

In chat mode a server renders the conversation, samples, and returns text. The ids it used are lost, and encoding the
text again often gives other ids, which spoils training. In token mode Ludus renders the conversation itself, sends ids,
and keeps the ids and logprobs of the reply. The loop and the environments see the same `Model` in both modes:

    TokenModel.complete(messages, tools, sampling)
        TokenSession.build_prompt     messages ──> the known ids, then the newly rendered delta    session, render
        Engine.generate               ids ──> sampled ids, their logprobs, the finish reason       engines/
        TokenSession.add_completion   sampled ids ──> a message, a node, `Completion.tokens`       session, codec

Read `render` (the idea) → `session` (the tree) → `model`. `tokenizer`, `template` and `gguf` read the files
of a model. `probe` checks a template before a run. `sequences` turns records into rows for training.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec import Struct

from ludus.models import Model, find_capability
from ludus.models.reply_pieces import Piece, PieceStream
from ludus.types import Completion, Finish, JsonObject, Message, Sampling, ToolSpec

if TYPE_CHECKING:
    from ludus.tokens.codec import Codec
    from ludus.tokens.model import TokenModel
    from ludus.tokens.session_tree import Tree

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
        """Sample `n` independent replies to a prompt."""
        ...

    async def tokenize(self, text: str) -> Sequence[int] | None:
        """Encode a text with the engine's own tokenizer, without added special tokens. None if the engine cannot."""
        ...

    async def get_facts(self) -> EngineFacts: ...

    async def close(self) -> None: ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that passes a reply on while it samples it."""

    async def stream(
        self, ids: Sequence[int], sampling: Sampling, reply_stream: PieceStream, begin: Callable[[], TakeIds]
    ) -> Generation:
        """Sample one reply. Every attempt calls `begin`. The result gets the ids as they come, and its pieces go to the
        sampling.

        If the sampling is abandoned and the task is cancelled, the result is what was sampled until then.
        """
        ...


@runtime_checkable
class GuidedEngine(Engine, Protocol):
    """An engine with guided decoding."""

    def write_guide(self, guide: Guide) -> JsonObject:
        """The form of a reply as request fields of this engine, for `sampling.extra`."""
        ...


@runtime_checkable
class ExactModel(Protocol):
    """A model that reports the ids it samples. The caller may keep the tree of a conversation, as the gateway does."""

    @property
    def codec(self) -> "Codec | None":
        """Tokenizer, template and parser; None if the server renders and parses."""
        ...

    def make_tree(self) -> "Tree":
        """The tree of a new conversation."""
        ...

    async def sample_reply(
        self,
        tree: Any,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        reply_stream: PieceStream | None = None,
    ) -> Completion:
        """Sample one reply, and add it to a tree that `make_tree` made. With a `reply_stream`, pass it on as it is
        sampled."""
        ...


@runtime_checkable
class AdoptingModel(Protocol):
    """A model that can go on with the exact ids of a recorded conversation."""

    def adopt_reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[Completion], reply: Completion
    ) -> Completion | None:
        """Add a recorded reply to a conversation, as if it had just been sampled; `before` are those before it. None if
        its ids are not those of this model."""
        ...


def find_token_model(model: Model) -> "TokenModel | None":
    """The `TokenModel` in a model, if there is one. Its module is imported only then: it needs packages that other
    models do not need."""
    exact = find_capability(model, ExactModel)
    if exact is None or exact.codec is None:
        return None
    from ludus.tokens.model import TokenModel

    return exact if isinstance(exact, TokenModel) else None
