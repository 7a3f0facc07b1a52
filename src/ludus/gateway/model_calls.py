"""Calls of the model behind the gateway.

A model in token mode samples within the session's tree, so that all conversations, branches and sub-agents of the
session are one record of exact ids. Any other model is called as the agent loop calls it. A call is booked in the
session's ledger first, if it has a budget, and then in the ledgers of a metered model.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ludus.gateway.dialect import BadRequest, ParsedRequest
from ludus.gateway.gateway_session import GatewaySession
from ludus.images import refuse_images
from ludus.models import Model
from ludus.models.ledger import MeteredModel, estimate_usage
from ludus.models.openai import ChatModel
from ludus.models.reply_pieces import Drawing, StreamingModel
from ludus.models.server import Price, make_usage
from ludus.models.server_pool import ServerPool
from ludus.models.token_estimate import estimate_prompt
from ludus.tokens.session_tree import Tree
from ludus.types import Completion, JsonObject, Message, Sampling

if TYPE_CHECKING:
    from ludus.tokens.capture import Capture, CapturedChatModel
    from ludus.tokens.codec import Codec
    from ludus.tokens.token_model import TokenModel
    from ludus.tokens.token_session import TokenSession


_TEMPLATE_FIELD = "chat_template_kwargs"
"""A field beside the sampling that changes what is asked. The sampling of a session replaces it."""
NO_LOGPROB = -9999.0
"""What the APIs write for a token whose logprob is not known."""


class ModelCaller:
    """Calls one model for sessions."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._meters: list[MeteredModel] = []
        inner = model
        while isinstance(inner, MeteredModel):
            self._meters.append(inner)
            inner = inner.model
        self.token_model = _find_token_model(inner)
        """The model if it is in token mode."""
        self._captured = _find_captured_model(inner)
        """The model if its server returns token ids."""
        self._streaming = model if isinstance(model, StreamingModel) else None
        """The model if it passes replies on while they are drawn."""
        self._takes_fields = self._captured is not None or isinstance(inner, ChatModel)
        """Whether its server speaks the chat API, and takes all fields of it."""
        priced = inner if isinstance(inner, ServerPool) else self.token_model
        self._price = Price() if priced is None else priced.price

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def codec(self) -> "Codec | None":
        """Tokenizer, template and parser of a model in token mode."""
        return None if self.token_model is None else self.token_model.codec

    def make_tree(self) -> Tree | None:
        """The tree of a new session; None in chat mode."""
        if self._captured is not None:
            from ludus.tokens.capture import Capture

            return Capture()
        if self.token_model is None:
            return None
        from ludus.tokens.token_session import TokenSession

        return TokenSession(self.token_model.codec)

    def resolve_messages(self, request: ParsedRequest) -> Sequence[Message]:
        """The messages of a request. A raw prompt of token ids becomes a user message with their text.

        Raises:
            BadRequest: token ids were sent to a model that does not take them.
        """
        if request.prompt is None or isinstance(request.prompt, str):
            return request.messages
        if self.token_model is None:
            raise BadRequest("prompt: token ids can only be sent to a model in token mode")
        size = self.token_model.codec.tokenizer.size
        if request.prompt and max(request.prompt) >= size:
            raise BadRequest(f"prompt: {max(request.prompt)} is not a token id of this model, which has {size}")
        return [Message("user", self.token_model.codec.tokenizer.decode(request.prompt))]

    def count_tokens(self, request: ParsedRequest) -> int:
        """The number of tokens of a prompt. Without a tokenizer it is an estimate."""
        if self.token_model is None:
            return estimate_prompt(request.messages, request.tools)
        refuse_images(request.messages, "a model in token mode")
        codec = self.token_model.codec
        return len(codec.tokenizer.encode(codec.renderer.render_prompt(request.messages, request.tools)))

    async def draw(
        self,
        session: GatewaySession,
        request: ParsedRequest,
        messages: Sequence[Message],
        sampling: Sampling,
        drawing: Drawing | None = None,
    ) -> Completion:
        """Sample one reply, and pass it to the `drawing` meanwhile if the model can do that. In token mode there is no
        await between adding the reply to the tree and the return, so replies return in the order of the tree's steps.

        Raises:
            BudgetExhausted: the budget of the session or of the run is spent.
            ModelError: the model failed.
            ConfigError: the model cannot serve this request.
        """
        ledger = session.ledger
        if ledger is None:
            return await self._draw_metered(session, request, messages, sampling, drawing)
        expected = estimate_usage(ledger.budget, messages, request.tools, sampling, self._price)
        async with ledger.reserve("agent", expected) as charge:
            completion = await self._draw_metered(session, request, messages, sampling, drawing)
            charge.settle(completion.usage)
            return completion

    async def _draw_metered(
        self,
        session: GatewaySession,
        request: ParsedRequest,
        messages: Sequence[Message],
        sampling: Sampling,
        drawing: Drawing | None,
        depth: int = 0,
    ) -> Completion:
        """Sample a reply and book it in the model's ledgers. In chat mode the metered model books for itself."""
        if session.tree is None or depth == len(self._meters):
            return await self._draw_reply(session, request, messages, sampling, drawing)
        async with self._meters[depth].reserve(messages, request.tools, sampling) as charge:
            completion = await self._draw_metered(session, request, messages, sampling, drawing, depth + 1)
            charge.settle(completion.usage)
            return completion

    async def _draw_reply(
        self,
        session: GatewaySession,
        request: ParsedRequest,
        messages: Sequence[Message],
        sampling: Sampling,
        drawing: Drawing | None,
    ) -> Completion:
        if self._captured is not None:
            return await self._captured.sample(
                cast("Capture", session.tree), messages, request.tools, sampling, drawing
            )
        if self.token_model is None:
            if drawing is not None and self._streaming is not None:
                return await self._streaming.stream(messages, request.tools, sampling, drawing)
            return await self._model.complete(messages, request.tools, sampling)
        tree = cast("TokenSession", session.tree)
        if request.prompt is not None:
            return await _continue_prompt(self.token_model, tree, request.prompt, sampling, drawing)
        (completion,) = await self.token_model.sample(tree, messages, request.tools, sampling, drawing=drawing)
        return completion

    def add_wishes(self, sampling: Sampling, request: ParsedRequest) -> tuple[Sampling, tuple[str, ...]]:
        """The sampling with what the client wants of the reply, where the model can do that; and what is left out."""
        if request.parallel_calls is not False and request.logprobs is None and not request.sampling.extra:
            return sampling, ()
        wishes: dict[str, Any] = {}
        ignored: list[str] = []
        if request.parallel_calls is False and request.tools:
            if self._takes_fields:
                wishes["parallel_tool_calls"] = False
            else:
                ignored.append("parallel_tool_calls")
        if request.logprobs is not None:
            if self._takes_fields:
                wishes |= {"logprobs": True} | ({"top_logprobs": request.logprobs} if request.logprobs else {})
            elif self.token_model is None:
                ignored.append("logprobs")
            elif request.logprobs:
                ignored.append("top_logprobs")
        if _TEMPLATE_FIELD in request.sampling.extra and _TEMPLATE_FIELD not in sampling.extra:
            ignored.append(_TEMPLATE_FIELD)
        if not wishes:
            return sampling, tuple(ignored)
        return msgspec.structs.replace(sampling, extra={**sampling.extra, **wishes}), tuple(ignored)

    def read_logprobs(self, completion: Completion, drawing: Drawing) -> list[Any] | None:
        """The logprobs of the sampled tokens, in the form of the chat API; None if the model has none."""
        tokens = completion.tokens
        if drawing.logprobs or tokens is None:
            return drawing.logprobs or None
        codec = self.codec
        rows = zip(tokens.ids, tokens.sampled, tokens.logprobs, strict=True)
        drawn = ((number, value) for number, is_sampled, value in rows if is_sampled)
        return [_write_place(f"token_id:{n}" if codec is None else codec.tokenizer.decode((n,)), p) for n, p in drawn]


def _write_place(token: str, logprob: float | None) -> JsonObject:
    value = NO_LOGPROB if logprob is None else logprob
    return {"token": token, "logprob": value, "bytes": list(token.encode(errors="replace")), "top_logprobs": []}


async def _continue_prompt(
    model: "TokenModel",
    tree: "TokenSession",
    prompt: str | Sequence[int],
    sampling: Sampling,
    drawing: Drawing | None = None,
) -> Completion:
    """Sample the continuation of a raw prompt. In the tree it follows a node that has ids but no messages."""
    from ludus.tokens.reply_decoder import ReplyDecoder
    from ludus.tokens.token_session import check_columns, check_echo, check_text

    await model.start()
    codec = model.codec
    ids = codec.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if drawing is None:
        (generated,) = await model.engine.generate(ids, sampling)
    else:
        begin = partial(ReplyDecoder, codec, stop=sampling.stop, raw=True)
        generated = await model.generate_stream(ids, sampling, drawing, begin)
    check_echo(ids, generated)
    check_columns(generated)
    text = codec.decode_reply(generated.ids)
    check_text(text, generated, codec.tokenizer.stop_tokens.values())
    given = tree.add_given(tree.root, (), ids, "", ())
    message = codec.parse_reply(text, (), stop=sampling.stop)
    _, step = tree.add_reply(given, message, generated, ended=codec.ends_turn(generated.ids))
    spent = make_usage(model.price, len(ids), len(generated.ids), generated.cached_tokens)
    return Completion(message, generated.finish, spent, model.name, step.tokens, step.splice)


def _find_token_model(model: Model) -> "TokenModel | None":
    """The model if it is a `TokenModel`. If that module was never imported, no model is one. Importing it here would
    require an extra that chat mode does not need."""
    module = sys.modules.get("ludus.tokens.token_model")
    return cast("TokenModel", model) if module is not None and isinstance(model, module.TokenModel) else None


def _find_captured_model(model: Model) -> "CapturedChatModel | None":
    """The model if it is a `CapturedChatModel`, found in the same way."""
    module = sys.modules.get("ludus.tokens.capture")
    found = module is not None and isinstance(model, module.CapturedChatModel)
    return cast("CapturedChatModel", model) if found else None
