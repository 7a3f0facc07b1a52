"""Exact tokens from a server that renders and parses itself: vLLM's chat with `return_token_ids`.

For those who have no tokenizer at hand or want the server's own tool parser: the server is asked for the ids of its
prompt and of its reply, and both are recorded as they are. Nothing is proven about the next prompt, which the server
renders from text again; it goes on from the reply before it only as far as its ids repeat that reply's ids exactly, and
a new sequence starts where they do not. So every row is exact, but drift costs rows, which `TokenModel` avoids.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from ludus.errors import ModelError
from ludus.models.openai import ChatSettings, chat_server, parse_reply, request_body
from ludus.models.server_pool import Retry, Servers, Waits
from ludus.tokens import Generated
from ludus.tokens.engines import logprobs, no_ids, no_logprobs
from ludus.tokens.session_index import ByMessage
from ludus.tokens.session_tree import Node, Tree
from ludus.tokens.token_session import check_columns
from ludus.types import Completion, Message, Sampling, ToolSpec


class Capture(Tree):
    """A conversation whose prompts an engine renders: a tree over ids alone."""

    def add(self, completion: Completion, generated: Generated) -> Completion:
        """The completion, with the exact ids.

        Raises:
            ModelError: the engine did not tell the prompt, or its columns do not fit together.
        """
        if generated.prompt is None:
            raise ModelError("the engine did not tell the ids of the prompt", retryable=False)
        check_columns(generated)
        parent = self._deepest(generated.prompt)
        rest = generated.prompt[parent.end :]
        given = self.give(parent, (), rest, "", ())
        _, step = self.reply(given, completion.message, generated, ended=False)
        return msgspec.structs.replace(completion, tokens=step.tokens, splice=step.splice)

    def _deepest(self, ids: Sequence[int]) -> Node:
        """The deepest node whose sequence `ids` begins with."""
        best = self.root
        stack = list(self.root.children)
        while stack:
            node = stack.pop()
            if tuple(ids[node.end - len(node.ids) : node.end]) == node.ids:
                best = node if node.end > best.end else best
                stack += node.children
        return best


class CapturedChatModel:
    """A chat model whose server tells the ids. See `TokenModel` for the better way."""

    def __init__(self, *servers: ChatSettings, retry: Retry = Retry(), waits: Waits = Waits()) -> None:
        self._settings = servers[0]
        self._servers = Servers([chat_server(settings) for settings in servers], retry, waits)
        self._captures = ByMessage[Capture]()

    @property
    def name(self) -> str:
        return self._servers.name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        capture = self._captures.find(messages)[0] or Capture()
        completion = await self.ask(capture, messages, tools, sampling)
        twin = self._captures.give_out(completion.message, capture)
        return msgspec.structs.replace(completion, message=twin)

    async def ask(
        self, capture: Capture, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling
    ) -> Completion:
        """Draw a reply within a conversation that the caller keeps."""
        asked = msgspec.structs.replace(sampling, extra={**_ASKED, **sampling.extra})
        settings = self._settings
        body = request_body(
            messages,
            tools,
            asked,
            settings.model,
            max_tokens_field=settings.max_tokens_field,
            omit=settings.omit,
        )

        def read(data: bytes) -> tuple[Completion, Generated]:
            completion = parse_reply(data, settings.price)
            return completion, _generated(data, completion)

        found = await self._servers.retrying(lambda lane: lane.server.exchange(body, read))
        return capture.add(*found)

    async def close(self) -> None:
        await self._servers.close()


_ASKED = {
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


def _generated(data: bytes, completion: Completion) -> Generated:
    reply = _REPLY.decode(data)
    choice = reply.choices[0]
    if choice.token_ids is None or reply.prompt_token_ids is None:
        raise no_ids("the chat server", "`return_token_ids` needs vLLM 0.10.2 or later.")
    if choice.logprobs is None or choice.logprobs.content is None:
        raise no_logprobs("the chat server", "It was asked for `logprobs: true`.")
    return Generated(
        ids=tuple(choice.token_ids),
        logprobs=logprobs([place.logprob for place in choice.logprobs.content]),
        finish=completion.finish,
        prompt=tuple(reply.prompt_token_ids),
    )
