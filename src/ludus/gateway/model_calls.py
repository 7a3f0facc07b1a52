"""How a session asks the model behind the gateway, whatever model that is.

A model in token mode is asked with the session's own tree, so that all of its conversations, branches and sub-agents
are one record of exact ids. Any other model is asked as the loop asks it. Calls are booked with the session's budget
first, if it has one, and then wherever the model itself is metered.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ludus.gateway.dialect import Asked, BadRequest
from ludus.gateway.gateway_session import Session
from ludus.models import Model
from ludus.models.ledger import Metered, estimated
from ludus.models.server import Price, usage
from ludus.models.server_pool import ServerPool
from ludus.models.token_estimate import prompt_tokens
from ludus.tokens.session_tree import Tree
from ludus.types import Completion, Message, Sampling

if TYPE_CHECKING:
    from ludus.tokens.capture import Capture, CapturedChatModel
    from ludus.tokens.codec import Codec
    from ludus.tokens.token_model import TokenModel
    from ludus.tokens.token_session import TokenSession as Tokens


class Asker:
    """Asks one model on behalf of sessions."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._meters: list[Metered] = []
        inner = model
        while isinstance(inner, Metered):
            self._meters.append(inner)
            inner = inner.model
        self.exact = _token_model(inner)
        """The model, if it is in token mode."""
        self._captured = _captured_model(inner)
        """The model, if its server tells the ids."""
        self._price = inner.price if isinstance(inner, ServerPool) else self.exact.price if self.exact else Price()

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def codec(self) -> "Codec | None":
        """Tokenizer, template and parser, if we have them."""
        return None if self.exact is None else self.exact.codec

    def begin(self) -> Tree | None:
        """The tree of a new session; None in chat mode."""
        if self._captured is not None:
            from ludus.tokens.capture import Capture

            return Capture()
        if self.exact is None:
            return None
        from ludus.tokens.token_session import TokenSession as Tokens

        return Tokens(self.exact.codec)

    def place(self, asked: Asked) -> Sequence[Message]:
        """The conversation that is asked about. A raw prompt of ids is one of the words that they say.

        Raises:
            BadRequest: ids were sent to a model that takes none.
        """
        if asked.prompt is None or isinstance(asked.prompt, str):
            return asked.messages
        if self.exact is None:
            raise BadRequest("prompt: token ids can only be sent to a model in token mode")
        size = self.exact.codec.tokenizer.size
        if asked.prompt and max(asked.prompt) >= size:
            raise BadRequest(f"prompt: {max(asked.prompt)} is no token id of this model, which has {size}")
        return [Message("user", self.exact.codec.tokenizer.decode(asked.prompt))]

    def count(self, asked: Asked) -> int:
        """How many tokens a prompt has; without a tokenizer, about how many."""
        if self.exact is None:
            return prompt_tokens(asked.messages, asked.tools)
        codec = self.exact.codec
        return len(codec.tokenizer.encode(codec.renderer.render_prompt(asked.messages, asked.tools)))

    async def ask(self, session: Session, asked: Asked, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Draw one reply. In token mode nothing is waited for between the tree taking it in and the return, so that
        replies come back in the order of the tree's steps.

        Raises:
            BudgetExhausted: the session's budget or the run's is spent.
            ModelError: the model broke.
            ConfigError: it cannot be asked this.
        """
        ledger = session.ledger
        if ledger is None:
            return await self._booked(session, asked, messages, sampling)
        expected = estimated(ledger.budget, messages, asked.tools, sampling, self._price)
        async with ledger.reserve("agent", expected) as charge:
            completion = await self._booked(session, asked, messages, sampling)
            charge.settle(completion.usage)
            return completion

    async def _booked(
        self, session: Session, asked: Asked, messages: Sequence[Message], sampling: Sampling, depth: int = 0
    ) -> Completion:
        """Draw a reply within the meters of the model. A model that is asked as a whole books for itself."""
        if session.tree is None or depth == len(self._meters):
            return await self._draw(session, asked, messages, sampling)
        async with self._meters[depth].reserve(messages, asked.tools, sampling) as charge:
            completion = await self._booked(session, asked, messages, sampling, depth + 1)
            charge.settle(completion.usage)
            return completion

    async def _draw(
        self, session: Session, asked: Asked, messages: Sequence[Message], sampling: Sampling
    ) -> Completion:
        if self._captured is not None:
            return await self._captured.sample(cast("Capture", session.tree), messages, asked.tools, sampling)
        if self.exact is None:
            return await self._model.complete(messages, asked.tools, sampling)
        tree = cast("Tokens", session.tree)
        if asked.prompt is not None:
            return await _continue(self.exact, tree, asked.prompt, sampling)
        (completion,) = await self.exact.sample(tree, messages, asked.tools, sampling)
        return completion


async def _continue(model: "TokenModel", tree: "Tokens", prompt: str | Sequence[int], sampling: Sampling) -> Completion:
    """What a model in token mode says after a raw prompt. In the tree it stands behind ids alone."""
    from ludus.tokens.token_session import check_columns, check_echo, check_text

    await model.start()
    codec = model.codec
    ids = codec.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    (generated,) = await model.engine.generate(ids, sampling)
    check_echo(ids, generated)
    check_columns(generated)
    text = codec.decode_reply(generated.ids)
    check_text(text, generated, codec.tokenizer.ends.values())
    given = tree.add_given(tree.root, (), ids, "", ())
    message = codec.parse_reply(text, (), stop=sampling.stop)
    _, step = tree.add_reply(given, message, generated, ended=codec.ends_turn(generated.ids))
    spent = usage(model.price, len(ids), len(generated.ids), generated.cached_tokens)
    return Completion(message, generated.finish, spent, model.name, step.tokens, step.splice)


def _token_model(model: Model) -> "TokenModel | None":
    """The model, if it is a `TokenModel`. Where its module was never imported, nothing can be one; importing it here
    would demand an extra that chat mode does not need."""
    module = sys.modules.get("ludus.tokens.token_model")
    return cast("TokenModel", model) if module is not None and isinstance(model, module.TokenModel) else None


def _captured_model(model: Model) -> "CapturedChatModel | None":
    """The model, if it is a `CapturedChatModel`, in the same way."""
    module = sys.modules.get("ludus.tokens.capture")
    found = module is not None and isinstance(model, module.CapturedChatModel)
    return cast("CapturedChatModel", model) if found else None
