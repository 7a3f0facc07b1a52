"""Exact tokens from a server that renders and parses itself: vLLM's chat with `return_token_ids`.

This is for users without a tokenizer, or with the server's own tool parser. The server returns the ids of its prompt
and of its reply, and both are recorded as they are. The server renders the next prompt from text again, so nothing is
known about it in advance. A prompt continues the reply before it as far as its ids repeat that reply exactly; a new
sequence starts where they do not. So every row is exact, but drift costs rows. `TokenModel` avoids that.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ludus.errors import ModelError
from ludus.models.openai import ChatStreamReader, build_request, make_chat_server, parse_reply
from ludus.models.reply_pieces import Piece, PieceStream
from ludus.models.server import Endpoint, Price, make_endpoints
from ludus.models.server_pool import ServerPool, Tell, Timing
from ludus.models.settings import OpenAISettings
from ludus.tokens import Generation
from ludus.tokens.engines import make_ids_error, make_logprobs_error, parse_logprobs
from ludus.tokens.guides import asks_for_form
from ludus.tokens.sequences import build_prompt_ids, find_own_ids
from ludus.tokens.session_index import SessionIndex
from ludus.tokens.session_tree import Node, Tree, check_columns
from ludus.types import Completion, Message, Sampling, ToolSpec


class Capture(Tree):
    """A conversation whose prompts the engine renders: a tree of ids without messages."""

    def add_completion(self, completion: Completion, generated: Generation) -> Completion:
        """Add a completion. Returns it with the exact ids.

        Raises:
            ModelError: the engine did not return the prompt, or ids and logprobs differ in length.
        """
        if generated.prompt is None:
            raise ModelError("the engine did not return the ids of the prompt", retryable=False)
        check_columns(generated)
        parent = self._find_deepest(generated.prompt)
        rest = generated.prompt[parent.end :]
        given = self.add_given(parent, (), rest, "", ())
        _, step = self.add_reply(given, completion.message, generated, ended=False)
        return msgspec.structs.replace(completion, tokens=step.tokens, splice=step.splice)

    def _find_deepest(self, ids: Sequence[int]) -> Node:
        """The deepest node whose sequence is a prefix of `ids`."""
        best = self.root
        stack = list(self.root.children)
        while stack:
            node = stack.pop()
            if tuple(ids[node.end - len(node.ids) : node.end]) == node.ids:
                best = node if node.end > best.end else best
                stack += node.children
        return best


class CapturedChatModel:
    """A chat model whose server returns the ids. `TokenModel` is the better way."""

    def __init__(
        self,
        settings: OpenAISettings,
        *endpoints: Endpoint,
        timing: Timing = Timing(),
        tell: Tell | None = None,
    ) -> None:
        self._settings = settings
        servers = [make_chat_server(settings, endpoint) for endpoint in endpoints or make_endpoints(settings)]
        self._servers = ServerPool(servers, settings.retry, timing, tell)
        self._captures = SessionIndex[Capture]()

    @property
    def name(self) -> str:
        return self._servers.name

    @property
    def codec(self) -> None:
        """The server renders and parses."""

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        capture = self._captures.find(messages)[0] or self.make_tree()
        completion = await self.sample_reply(capture, messages, tools, sampling)
        message = self._captures.register_copy(completion.message, capture)
        return msgspec.structs.replace(completion, message=message)

    def adopt_reply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], before: Sequence[Completion], reply: Completion
    ) -> Completion | None:
        """Add a recorded reply to a conversation, with the exact ids of the record: also those of its prompt, because
        only the server could encode another one."""
        own_ids, prompt = find_own_ids(reply), build_prompt_ids([*before, reply])
        if own_ids is None or prompt is None:
            return None
        capture = self._captures.find(messages)[0] or self.make_tree()
        completion = capture.add_completion(reply, msgspec.structs.replace(own_ids, prompt=prompt))
        message = self._captures.register_copy(completion.message, capture)
        return msgspec.structs.replace(completion, message=message)

    def make_tree(self) -> Capture:
        return Capture()

    async def sample_reply(
        self,
        tree: Capture,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        reply_stream: PieceStream | None = None,
    ) -> Completion:
        with_ids = msgspec.structs.replace(sampling, extra={**_REQUEST_FIELDS, **sampling.extra})
        settings = self._settings
        body = build_request(
            messages,
            tools,
            with_ids,
            settings.name,
            max_tokens_field=settings.max_tokens_field,
            omit=settings.omit,
            stream=reply_stream is not None,
        )

        def read(data: bytes) -> tuple[Completion, Generation]:
            completion = parse_reply(data, settings.price)
            return completion, _read_generation(data, completion)

        if reply_stream is None:
            found = await self._servers.run_with_retries(lambda lane: lane.server.exchange(body, read))
        else:
            found = await self._servers.run_with_retries(
                lambda lane: lane.server.exchange_stream(
                    body, _CapturedStream(settings.price, reply_stream), read, reply_stream
                )
            )
        completion = tree.add_completion(*found)
        return msgspec.structs.replace(completion, guided=True) if asks_for_form(sampling, tools) else completion

    async def close(self) -> None:
        await self._servers.close()


_REQUEST_FIELDS = {
    "return_token_ids": True,
    "logprobs": True,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}


class _Place(Struct, gc=False):
    logprob: Any = None


class _Logprobs(Struct, gc=False):
    content: list[_Place] | None = None


class _Choice(Struct, gc=False):
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Reply(Struct, gc=False):
    choices: list[_Choice]
    prompt_token_ids: list[int] | None = None


_REPLY = msgspec.json.Decoder(_Reply)
_LOGPROBS = msgspec.json.Decoder(_Logprobs | None)


def _read_generation(data: bytes, completion: Completion) -> Generation:
    reply = _REPLY.decode(data)
    choice = reply.choices[0]
    places = None if choice.logprobs is None else choice.logprobs.content
    values = None if places is None else [place.logprob for place in places]
    return _make_generation(choice.token_ids, reply.prompt_token_ids, values, completion)


def _make_generation(
    ids: list[int] | None, prompt: list[int] | None, logprobs: list[Any] | None, completion: Completion
) -> Generation:
    if ids is None or prompt is None:
        raise make_ids_error("the chat server", "`return_token_ids` needs vLLM 0.10.2 or later.")
    if logprobs is None:
        raise make_logprobs_error("the chat server", "The request had `logprobs: true`.")
    return Generation(ids=tuple(ids), logprobs=parse_logprobs(logprobs), finish=completion.finish, prompt=tuple(prompt))


class _CapturedStream:
    """Reads a completion and its ids from the events of a stream."""

    def __init__(self, price: Price, reply_stream: PieceStream) -> None:
        self._chat = ChatStreamReader(price, reply_stream)

    @property
    def has_sampled(self) -> bool:
        return bool(self._chat.ids)

    def take(self, event: bytes) -> list[Piece]:
        return self._chat.take(event)

    def finish(self, *, cut: bool = False) -> tuple[Completion, Generation]:
        completion = self._chat.finish(cut=cut)
        parts = [_LOGPROBS.decode(part) for part in self._chat.logprobs]
        values = [place.logprob for part in parts if part is not None for place in part.content or ()]
        return completion, _make_generation(self._chat.ids, self._chat.prompt_ids, values, completion)
