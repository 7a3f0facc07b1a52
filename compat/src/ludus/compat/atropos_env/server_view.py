"""`self.server` of a file: the calls of atroposlib's servers, answered by the models of the run.

A file runs in a loop of its own (`file_host`), the models in the loop of Ludus. A view passes calls on from any loop.
A reply looks like one of OpenAI's client. `managed_server` keeps the exact ids of a conversation: its nodes have
`tokens`, `masked_tokens` and `logprobs`. It needs a model in token mode.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ludus.chat_form import read_messages, read_tools
from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.chat_forms import (
    ReplyObject,
    make_chat_reply,
    make_text_reply,
    read_sampling,
)
from ludus.compat.atropos_env.file_model import FileModel
from ludus.errors import ConfigError
from ludus.tokens import Generation
from ludus.types import Completion, Finish, Message, Sampling, ToolSpec, Usage

if TYPE_CHECKING:
    from ludus.tokens.session import TokenSession

T = TypeVar("T")
NOT_TRAINED, NO_LOGPROB = -100, 1.0


async def call_loop(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop of Ludus, and wait for it in any loop."""
    if asyncio.get_running_loop() is loop:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


class FileServer:
    """One server of a file."""

    def __init__(self, model: FileModel, config: Any, loop: asyncio.AbstractEventLoop, thinking: "Thinking") -> None:
        self.config = config
        self.server_healthy = True
        self.initialized = True
        self.tokenizer: Any = None
        self.model = model
        self._loop = loop
        self._thinking = thinking

    async def chat_completion(self, **arguments: Any) -> ReplyObject:
        """`chat.completions.create`: `n` replies to `messages`."""
        completions = await self.sample_chat(arguments)
        return make_chat_reply(completions, self.model.name)

    async def completion(self, **arguments: Any) -> ReplyObject:
        """`completions.create`: `n` continuations of `prompt`."""
        drawn = await self.sample_text(arguments["prompt"], arguments)
        return make_sampled_reply(drawn, self.model.name)

    async def tokens_and_logprobs_completion(
        self, **arguments: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[str]]:
        """The ids of the prompt, and for each reply its ids, its logprobs and why it ended."""
        require_tokens(self.model, "tokens_and_logprobs_completion")
        ids = arguments.pop("input_ids", None)
        drawn = await self.sample_text(arguments["prompt"] if ids is None else ids, arguments)
        return (
            list(drawn[0].prompt or ()),
            [list(each.ids) for each in drawn],
            [fill_logprobs(each) for each in drawn],
            [each.finish.value for each in drawn],
        )

    async def get_logprobs(self, **arguments: Any) -> dict[str, Any]:
        """The likeliest ids at each place of a prompt: `prompt_tokens`, `prompt_topk_token_ids`,
        `prompt_topk_logprobs`. vLLM servers have them."""
        require_tokens(self.model, "get_logprobs")
        assert self.model.token_model is not None
        given = arguments.get("input_ids")
        ids = self.model.token_model.codec.tokenizer.encode(arguments["prompt"]) if given is None else list(given)
        k = int(arguments.get("top_k") or arguments.get("top_logprobs") or 1)
        places = await self._wait(self.model.score_prompt(ids, k), arguments.get("timeout"))
        return {
            "prompt_tokens": ids,
            "prompt_topk_token_ids": [place["ids"] for place in places],
            "prompt_topk_logprobs": [place["logprobs"] for place in places],
        }

    async def sample_chat(self, arguments: dict[str, Any], session: "TokenSession | None" = None) -> list[Completion]:
        model, sampling = self.model, self._read_sampling(arguments)
        if not arguments.get("skip_reasoning"):
            sampling = self._ask_for_thinking(sampling)
        given: list[Message] = read_messages(arguments["messages"])
        tools: list[ToolSpec] = read_tools(arguments.get("tools"))
        split, n = str(arguments.get("split") or "train"), int(arguments.get("n") or 1)
        work = model.chat(given, tools, sampling, n, split=split, session=session)
        return await self._wait(work, arguments.get("timeout"))

    async def sample_text(self, prompt: str | Sequence[int], arguments: dict[str, Any]) -> list[Generation]:
        sampling = self._read_sampling(arguments)
        split, n = str(arguments.get("split") or "train"), int(arguments.get("n") or 1)
        work = self.model.complete_text(prompt, sampling, n, split=split)
        return await self._wait(work, arguments.get("timeout"))

    def _read_sampling(self, arguments: dict[str, Any]) -> Sampling:
        try:
            return read_sampling(arguments, self.model.sampling, self.model.stop_ids)
        except ConfigError as error:
            get_scope().failures.append(error)  # on record, also if the file swallows it
            raise

    async def complete(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        session: "TokenSession | None" = None,
    ) -> Completion:
        """One reply, in the nouns of Ludus."""
        base = self.model.sampling
        given = msgspec.structs.replace(
            sampling, top_p=base.top_p, stop=base.stop, extra={**base.extra, **sampling.extra}
        )
        given = self._ask_for_thinking(given)
        (completion,) = await call_loop(self._loop, self.model.chat(messages, tools, given, session=session))
        return completion

    def _ask_for_thinking(self, sampling: Sampling) -> Sampling:
        """The sampling with the fields that ask for reasoning. Engines of token mode have none: templates ask there."""
        return sampling if self.model.token_model is not None else self._thinking.apply(sampling, self.config)

    async def _wait(self, work: Coroutine[Any, Any, T], seconds: Any) -> T:
        async with asyncio.timeout(float(seconds) if seconds else None):
            return await call_loop(self._loop, work)


@dataclass(frozen=True)
class Thinking:
    """The reasoning that a file's settings ask for."""

    enabled: bool = False
    effort: str | None = None
    tokens: int | None = None

    def apply(self, sampling: Sampling, config: Any) -> Sampling:
        """The sampling of a chat request with the fields that ask for reasoning, in the form of the server."""
        if not (self.enabled or self.effort or self.tokens):
            return sampling
        extra = dict(sampling.extra)
        if "api.openai.com" in (getattr(config, "base_url", "") or ""):
            extra.setdefault("reasoning_effort", self.effort or "medium")
            if sampling.max_tokens is not None:
                extra.setdefault("max_completion_tokens", sampling.max_tokens)
            return msgspec.structs.replace(sampling, temperature=1.0, max_tokens=None, extra=extra)
        more = {"effort": self.effort} if self.effort else {"max_tokens": self.tokens} if self.tokens else {}
        extra.setdefault("reasoning", {"enabled": True, **more})
        return msgspec.structs.replace(sampling, extra=extra)


class FileServers:
    """`self.server`: all servers of a file. A call goes to the first one, or to the next in turn."""

    def __init__(self, servers: Sequence[FileServer], allow_dummy: bool = False) -> None:
        self.servers = list(servers)
        self.tool_parser: str = "hermes"
        self.allow_dummy = allow_dummy
        self._turn = 0

    def _choose(self) -> FileServer:
        self._turn += 1
        return self.servers[self._turn % len(self.servers)]

    async def chat_completion(self, **arguments: Any) -> ReplyObject:
        return await self._choose().chat_completion(**arguments)

    async def completion(self, **arguments: Any) -> ReplyObject:
        return await self._choose().completion(**arguments)

    async def tokens_and_logprobs_completion(self, **arguments: Any) -> Any:
        return await self._choose().tokens_and_logprobs_completion(**arguments)

    async def get_logprobs(self, **arguments: Any) -> dict[str, Any]:
        return await self._choose().get_logprobs(**arguments)

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        return await self._choose().complete(messages, tools, sampling)

    @contextlib.asynccontextmanager
    async def dedicated_server(self) -> AsyncGenerator[FileServer, None]:
        """One server for several calls."""
        yield self._choose()

    @contextlib.asynccontextmanager
    async def managed_server(
        self, tokenizer: Any = None, base_url: Any = None, preserve_think_blocks: bool = False, **_: Any
    ) -> "AsyncGenerator[ManagedView | DummyManagedView, None]":
        """A conversation whose ids are kept."""
        server = self._choose()
        if server.model.token_model is None and self.allow_dummy:
            yield DummyManagedView(server)
            return
        require_tokens(server.model, "managed_server")
        yield ManagedView(server)


def require_tokens(model: FileModel, what: str) -> None:
    """Refuse what only a model in token mode can do. The refusal is on record, also if the file swallows it."""
    if model.token_model is None:
        error = ConfigError(
            f"{what} needs exact ids, which the server of '{model.name}' does not give: use "
            "--openai.server_type vllm or sglang (or --model.mode token, see docs/tokens.md)"
        )
        get_scope().failures.append(error)
        raise error


# ---- exact ids ----------------------------------------------------------------------------------------------------


@dataclass
class SequenceNode:
    """One sequence: what was given and what was sampled."""

    full_text: str
    tokens: list[int]
    masked_tokens: list[int]
    """The id where it was sampled, -100 elsewhere."""
    logprobs: list[float]
    """The engine's logprob where sampled, 1.0 elsewhere."""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class ManagedView:
    """`managed_server`: a conversation, or texts that continue each other."""

    def __init__(self, server: FileServer) -> None:
        self._server = server
        self._session = server.model.make_session()
        self._texts: list[SequenceNode] = []
        self._finish = "stop"

    @property
    def config(self) -> Any:
        return self._server.config

    async def chat_completion(self, **arguments: Any) -> ReplyObject:
        completions = await self._server.sample_chat(arguments, self._session)
        self._finish = completions[-1].finish.value
        return make_chat_reply(completions, self._server.model.name)

    async def completion(self, **arguments: Any) -> ReplyObject:
        prompt: str = arguments["prompt"]
        known = max(
            (node for node in self._texts if prompt.startswith(node.full_text)),
            key=lambda node: len(node.full_text),
            default=None,
        )
        ids = self._encode(prompt, known)
        drawn = await self._server.sample_text(ids, arguments)
        made = [self._make_node(prompt, ids, known, each) for each in drawn]
        if known is not None and known in self._texts:
            self._texts.remove(known)
        self._texts += made
        return make_sampled_reply(drawn, self._server.model.name)

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        completion = await self._server.complete(messages, tools, sampling, self._session)
        self._finish = completion.finish.value
        return completion

    def _encode(self, prompt: str, known: SequenceNode | None) -> list[int]:
        model = self._server.model.token_model
        assert model is not None
        if known is None:
            return model.codec.tokenizer.encode(prompt)
        return [*known.tokens, *model.codec.tokenizer.encode_after(prompt[len(known.full_text) :])]

    def _make_node(self, prompt: str, ids: list[int], known: SequenceNode | None, drawn: Generation) -> SequenceNode:
        masks = [*known.masked_tokens] if known else []
        logprobs = [*known.logprobs] if known else []
        gap = len(ids) - len(masks)
        return SequenceNode(
            prompt + (drawn.text or ""),
            [*ids, *drawn.ids],
            [*masks, *[NOT_TRAINED] * gap, *drawn.ids],
            [*logprobs, *[NO_LOGPROB] * gap, *fill_logprobs(drawn)],
            {"finish_reason": drawn.finish.value},
        )

    def get_state(self) -> dict[str, Any]:
        """The sequences so far, under `nodes`."""
        model = self._server.model.token_model
        assert model is not None
        nodes: list[SequenceNode] = []
        for row in self._session.build_sequences():
            tokens = row.tokens
            pairs = zip(tokens.ids, tokens.sampled, strict=True)
            nodes.append(
                SequenceNode(
                    model.codec.tokenizer.decode(tokens.ids),
                    list(tokens.ids),
                    [id if sampled else NOT_TRAINED for id, sampled in pairs],
                    [NO_LOGPROB if value is None else value for value in tokens.logprobs],
                    {"finish_reason": self._finish},
                )
            )
        return {"nodes": [*nodes, *self._texts]}

    def reset(self) -> None:
        """Forget the sequences."""
        self._session, self._texts = self._server.model.make_session(), []


class DummyManagedView:
    """`managed_server` on a server that gives no ids, as atroposlib's variable ATROPOS_ALLOW_DUMMY_MANAGED_SERVER asks
    for: the ids mean nothing, and `metadata.dummy_tokens` says so."""

    def __init__(self, server: FileServer) -> None:
        self._server = server
        self._nodes: list[SequenceNode] = []

    @property
    def config(self) -> Any:
        return self._server.config

    async def chat_completion(self, **arguments: Any) -> ReplyObject:
        reply = await self._server.chat_completion(**arguments)
        lines = [f"{message['role']}:{message['content']}" for message in arguments["messages"]]
        for choice in reply.choices:
            self._add("\n\n".join([*lines, f"assistant:{choice.message.content}"]), choice.finish_reason)
        return reply

    async def completion(self, **arguments: Any) -> ReplyObject:
        reply = await self._server.completion(**arguments)
        for choice in reply.choices:
            self._add(arguments["prompt"] + choice.text, choice.finish_reason)
        return reply

    def _add(self, text: str, finish: str) -> None:
        ids = list(range(128))
        more = {"finish_reason": finish, "dummy_tokens": True}
        self._nodes.append(SequenceNode(text, ids, [NOT_TRAINED, *ids[1:]], [-0.5] * len(ids), more))

    def get_state(self) -> dict[str, Any]:
        return {"nodes": list(self._nodes)}

    def reset(self) -> None:
        self._nodes = []


def fill_logprobs(drawn: Generation) -> list[float]:
    return [NO_LOGPROB if value is None else value for value in drawn.logprobs]


def make_sampled_reply(drawn: Sequence[Generation], model: str) -> ReplyObject:
    texts: list[tuple[str, Finish]] = [(each.text or "", each.finish) for each in drawn]
    usage = Usage(len(drawn[0].prompt or ()) or drawn[0].prompt_tokens or 0, sum(len(each.ids) for each in drawn))
    return make_text_reply(texts, model, usage)
