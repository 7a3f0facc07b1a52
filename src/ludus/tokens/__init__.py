"""Exact tokens: what was sampled is what is trained.

In chat mode a server renders the conversation, samples, and gives back text; which ids it used is lost, and encoding
the text again gives others often enough to spoil training. In token mode Ludus renders the conversation itself, sends
ids, and keeps the ids and logprobs that come back. It is the same `Model` to the loop and to environments:

    TokenModel.complete(messages, tools, sampling)
        Session.prompt   messages ──> ids: those known from before, then the newly rendered delta      session, render
        Engine.generate  ids ──> sampled ids, their logprobs, why they ended                           engines/
        Session.add      sampled ids ──> a message, a node of the tree, `Completion.tokens`            session, codec

Read `render` (the idea) → `session` (the tree) → `model`. `tokenizer`, `template` and `gguf` read what models ship;
`probe` says what is wrong with a template before it costs anything; `sequences` turns records into rows to train on.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from ludus.types import Finish, Sampling


class Generation(Struct, frozen=True, kw_only=True):
    """What an engine drew after a prompt."""

    ids: tuple[int, ...]
    """All of them, the one that ended the turn included, if the engine tells it."""
    logprobs: tuple[float | None, ...]
    """One for each id, of the model's own distribution at temperature 1; None where the engine has none to tell."""
    finish: Finish
    text: str | None = None
    """The engine's own reading of the ids, where it gives one."""
    prompt: tuple[int, ...] | None = None
    """The prompt as the engine understood it, where it says so."""
    prompt_tokens: int | None = None
    """How many ids the engine counted in the prompt, where it says so."""
    cached_tokens: int = 0


class EngineFacts(Struct, frozen=True, kw_only=True):
    """What an engine says about the model it serves; None where it does not."""

    vocabulary: int | None = None
    """Ids are below this."""
    context: int | None = None
    """The longest prompt and reply together, in ids."""


class Engine(Protocol):
    """Something that samples ids after ids. Raises `ModelError` when it cannot, after its own retries."""

    @property
    def name(self) -> str: ...

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> Sequence[Generation]:
        """Draw `n` continuations of a prompt, each for itself."""
        ...

    async def tokenize(self, text: str) -> Sequence[int] | None:
        """The engine's own ids of a text, without any that it would add; None if it cannot tell."""
        ...

    async def get_facts(self) -> EngineFacts: ...

    async def close(self) -> None: ...
