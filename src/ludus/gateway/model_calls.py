"""Calls of the model behind the gateway.

A model in token mode samples within the session's tree, so that all conversations, branches and sub-agents of the
session are one record of exact ids. Any other model is called as the agent loop calls it. A call is booked in the
session's ledger first, if it has a budget, and then in the ledgers of a metered model.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ludus.gateway.dialect import BadRequest, ParsedRequest
from ludus.gateway.session import GatewaySession
from ludus.images import refuse_images
from ludus.models import Model, find_capability, list_layers
from ludus.models.ledger import MeteredModel, estimate_usage, find_price
from ludus.models.openai import ChatModel
from ludus.models.reply_pieces import PieceStream, StreamingModel
from ludus.models.token_estimate import estimate_prompt
from ludus.tokens import ExactModel, find_token_model
from ludus.tokens.session_tree import Tree
from ludus.types import Completion, JsonObject, Message, Sampling

if TYPE_CHECKING:
    from ludus.tokens.codec import Codec
    from ludus.tokens.session import TokenSession


_TEMPLATE_FIELD = "chat_template_kwargs"
"""A field beside the sampling that changes what is asked. The sampling of a session replaces it."""
NO_LOGPROB = -9999.0
"""What the APIs write for a token whose logprob is not known."""


class ModelCaller:
    """Calls one model for sessions."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._meters = [layer for layer in list_layers(model) if isinstance(layer, MeteredModel)]
        self._exact = find_capability(model, ExactModel)
        """The model if it reports exact ids."""
        self._token_model = find_token_model(model)
        """The same, if it renders and parses here."""
        self._streaming = find_capability(model, StreamingModel)
        """The model if it passes replies on while they are sampled."""
        self._takes_fields = find_capability(model, ChatModel) is not None or (
            self._exact is not None and self._exact.codec is None
        )
        """Whether its server speaks the chat API, and takes all fields of it."""
        self._price = find_price(model)

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def codec(self) -> "Codec | None":
        """Tokenizer, template and parser of a model that renders and parses here."""
        return None if self._exact is None else self._exact.codec

    def make_tree(self) -> Tree | None:
        """The tree of a new session; None in chat mode."""
        return None if self._exact is None else self._exact.make_tree()

    def resolve_messages(self, request: ParsedRequest) -> Sequence[Message]:
        """The messages of a request. A raw prompt of token ids becomes a user message with their text.

        Raises:
            BadRequest: token ids were sent to a model that does not take them.
        """
        if request.prompt is None or isinstance(request.prompt, str):
            return request.messages
        if self._token_model is None:
            raise BadRequest("prompt: token ids can only be sent to a model in token mode")
        tokenizer = self._token_model.codec.tokenizer
        if request.prompt and max(request.prompt) >= tokenizer.size:
            problem = f"{max(request.prompt)} is not a token id of this model, which has {tokenizer.size}"
            raise BadRequest(f"prompt: {problem}")
        return [Message("user", tokenizer.decode(request.prompt))]

    def count_tokens(self, request: ParsedRequest) -> int:
        """The number of tokens of a prompt. Without a tokenizer it is an estimate."""
        codec = self.codec
        if codec is None:
            return estimate_prompt(request.messages, request.tools)
        refuse_images(request.messages, "a model in token mode")
        return len(codec.tokenizer.encode(codec.renderer.render_prompt(request.messages, request.tools)))

    async def sample(
        self,
        session: GatewaySession,
        request: ParsedRequest,
        messages: Sequence[Message],
        sampling: Sampling,
        reply_stream: PieceStream | None = None,
    ) -> Completion:
        """Sample one reply, and pass it to the `reply_stream` meanwhile if the model can do that. In token mode there
        is no await between adding the reply to the tree and the return, so replies return in the order of the tree's
        steps.

        Raises:
            BudgetExhausted: the budget of the session or of the run is spent.
            ModelError: the model failed.
            ConfigError: the model cannot serve this request.
        """
        ledger = session.ledger
        if ledger is None:
            return await self._stream_metered(session, request, messages, sampling, reply_stream)
        expected = estimate_usage(ledger.budget, messages, request.tools, sampling, self._price)
        async with ledger.reserve("agent", expected) as charge:
            completion = await self._stream_metered(session, request, messages, sampling, reply_stream)
            charge.settle(completion.usage)
            return completion

    async def _stream_metered(
        self,
        session: GatewaySession,
        request: ParsedRequest,
        messages: Sequence[Message],
        sampling: Sampling,
        reply_stream: PieceStream | None,
        depth: int = 0,
    ) -> Completion:
        """Sample a reply and book it in the model's ledgers. In chat mode the metered model books for itself."""
        if session.tree is None or depth == len(self._meters):
            return await self._sample_reply(session, request, messages, sampling, reply_stream)
        async with self._meters[depth].reserve(messages, request.tools, sampling) as charge:
            completion = await self._stream_metered(session, request, messages, sampling, reply_stream, depth + 1)
            charge.settle(completion.usage)
            return completion

    async def _sample_reply(
        self,
        session: GatewaySession,
        request: ParsedRequest,
        messages: Sequence[Message],
        sampling: Sampling,
        reply_stream: PieceStream | None,
    ) -> Completion:
        if self._exact is not None:
            if request.prompt is not None and self._token_model is not None:
                tree = cast("TokenSession", session.tree)
                return await self._token_model.sample_continuation(tree, request.prompt, sampling, reply_stream)
            return await self._exact.sample_reply(session.tree, messages, request.tools, sampling, reply_stream)
        if reply_stream is not None and self._streaming is not None:
            return await self._streaming.stream(messages, request.tools, sampling, reply_stream)
        return await self._model.complete(messages, request.tools, sampling)

    def add_request_fields(self, sampling: Sampling, request: ParsedRequest) -> tuple[Sampling, tuple[str, ...]]:
        """The sampling with what the client wants of the reply, where the model can do that; and what is left out."""
        if request.parallel_calls is not False and request.logprobs is None and not request.sampling.extra:
            return sampling, ()
        fields: dict[str, Any] = {}
        ignored: list[str] = []
        if request.parallel_calls is False and request.tools:
            if self._takes_fields:
                fields["parallel_tool_calls"] = False
            else:
                ignored.append("parallel_tool_calls")
        if request.logprobs is not None:
            if self._takes_fields:
                fields |= {"logprobs": True} | ({"top_logprobs": request.logprobs} if request.logprobs else {})
            elif self._exact is None:
                ignored.append("logprobs")
            elif request.logprobs:
                ignored.append("top_logprobs")
        if _TEMPLATE_FIELD in request.sampling.extra and _TEMPLATE_FIELD not in sampling.extra:
            ignored.append(_TEMPLATE_FIELD)
        if not fields:
            return sampling, tuple(ignored)
        return msgspec.structs.replace(sampling, extra={**sampling.extra, **fields}), tuple(ignored)

    def read_logprobs(self, completion: Completion, reply_stream: PieceStream) -> list[Any] | None:
        """The logprobs of the sampled tokens, in the form of the chat API; None if the model has none."""
        tokens = completion.tokens
        if reply_stream.logprobs or tokens is None:
            return reply_stream.logprobs or None
        codec = self.codec
        rows = zip(tokens.ids, tokens.sampled, tokens.logprobs, strict=True)
        chosen = ((number, value) for number, is_sampled, value in rows if is_sampled)
        return [_write_place(f"token_id:{n}" if codec is None else codec.tokenizer.decode((n,)), p) for n, p in chosen]


def _write_place(token: str, logprob: float | None) -> JsonObject:
    value = NO_LOGPROB if logprob is None else logprob
    return {"token": token, "logprob": value, "bytes": list(token.encode(errors="replace")), "top_logprobs": []}
