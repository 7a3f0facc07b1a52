"""The models of a file's servers: every call is booked, remembered and, in token mode, exact.

A `FileModel` lives in the loop of Ludus. Files talk to it through `server_view`. It has one model; text completions go
to the server's `/completions`, or, in token mode, to the engine.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from ludus.compat.atropos_env.call_journal import CallJournal, CallScope, get_scope
from ludus.encoding import to_json
from ludus.errors import BudgetExhausted, ConfigError, LudusError, ModelUnusable
from ludus.models import Model
from ludus.models.ledger import Ledger, MeteredModel
from ludus.models.openai import encode_body
from ludus.models.server import BadReply, Endpoint, ModelServer, Price, make_usage
from ludus.models.server_pool import ServerPool
from ludus.models.settings import OpenAISettings
from ludus.models.token_estimate import estimate_reply
from ludus.tokens import EngineFacts, Generation, find_token_model
from ludus.tokens.engines import make_headers, make_root_url
from ludus.types import Completion, Finish, JsonObject, Message, Sampling, ToolSpec, Usage

if TYPE_CHECKING:
    from ludus.tokens.model import TokenModel
    from ludus.tokens.session import TokenSession

ROLE = "agent"


@dataclass
class Fatal:
    """The first error after which no model call can succeed. Files may swallow it; the run ends with it."""

    error: LudusError | None = None


class FileModel:
    """One model of a file."""

    def __init__(
        self,
        model: Model,
        ledger: Ledger,
        journal: CallJournal,
        fatal: Fatal,
        *,
        sampling: Sampling = Sampling(),
        own: Mapping[str, Any] = MappingProxyType({}),
        text: Model | None = None,
        scorer: "PromptScorer | None" = None,
        eval_requests: int = 64,
        stop_ids: str = "",
    ) -> None:
        self.sampling = sampling
        self._own = own
        self.stop_ids = stop_ids
        """The field of requests for ids that end a reply; empty: the server takes texts only."""
        self._ledger = ledger
        self._scorer = scorer
        self._model = model
        self._journal = journal
        self._fatal = fatal
        self._text = MeteredModel(text, ledger, ROLE) if text is not None else None
        self._evals = asyncio.Semaphore(max(1, eval_requests))
        self._train = asyncio.Semaphore(2**30)
        self.token_model = find_token_model(model)
        if self.token_model is not None:
            self.token_model.engine = JournalEngine(self.token_model, ledger, journal)

    @property
    def name(self) -> str:
        return self._model.name

    def make_session(self) -> "TokenSession":
        """A conversation whose ids are kept. Only in token mode."""
        assert self.token_model is not None
        return self.token_model.make_tree()

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
        n: int = 1,
        *,
        split: str = "train",
        session: "TokenSession | None" = None,
    ) -> list[Completion]:
        """Sample `n` replies to a conversation."""
        scope = get_scope()
        messages, sampling = add_system(messages, scope.system), override_sampling(sampling, self._own)
        scope.sampling = scope.sampling or sampling
        async with self._guard(scope, split):
            if self.token_model is not None:
                return await self.token_model.sample(session or self.make_session(), messages, tools, sampling, n)
            samples = (self._sample(self._model, scope, messages, tools, sampling) for _ in range(n))
            return list(await asyncio.gather(*samples))

    async def complete_text(
        self, prompt: str | Sequence[int], sampling: Sampling, n: int = 1, *, split: str = "train"
    ) -> list[Generation]:
        """Sample `n` continuations of a text or, in token mode, of ids."""
        scope, sampling = get_scope(), override_sampling(sampling, self._own)
        async with self._guard(scope, split):
            if scope.system:
                raise ConfigError(
                    "agent.skill, agent.system: this file writes its prompts as text, which has no system message to "
                    "add them to: leave them out, or let the file use chat_completion"
                )
            if self.token_model is not None:
                await self.token_model.start()
                tokenizer = self.token_model.codec.tokenizer
                ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
                sampled = await self.token_model.engine.generate(ids, sampling, n)
                return [_add_text(each, self.token_model, tuple(ids)) for each in sampled]
            if not isinstance(prompt, str):
                raise ValueError("a prompt of ids needs a server in token mode: --openai.server_type vllm or sglang")
            asked = [Message("user", prompt)]
            model = self._text or self._model
            done = await asyncio.gather(*(self._sample(model, scope, asked, (), sampling) for _ in range(n)))
        return [
            Generation(ids=(), logprobs=(), finish=each.finish, text=each.message.content,
                       prompt_tokens=each.usage.prompt_tokens)
            for each in done
        ]  # fmt: skip

    async def score_prompt(self, ids: Sequence[int], k: int) -> list[JsonObject]:
        """The logprobs of the `k` likeliest ids at each place of a prompt, of a vLLM server."""
        if self._scorer is None:
            raise ConfigError("get_logprobs needs a vLLM server: --openai.server_type vllm")
        scope, scorer = get_scope(), self._scorer

        async def ask(number: int) -> PromptScores:
            async with self._ledger.reserve(ROLE, Usage()) as charge:
                found = await scorer.score(ids, k)
                charge.settle(Usage(len(ids)))
            return PromptScores(found)

        async with self._guard(scope, "eval"):
            return (await self._journal.remember(scope, ("score", self.name, ids, k), PromptScores, ask)).places

    async def _sample(
        self,
        model: Model,
        scope: CallScope,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        sampling: Sampling,
    ) -> Completion:
        kind = "text" if model is self._text else "chat"

        async def ask(number: int) -> Completion:
            return await model.complete(messages, tools, seed_call(sampling, scope, number))

        return await self._journal.remember(scope, (kind, self.name, messages, tools, sampling), Completion, ask)

    def _guard(self, scope: CallScope, split: str) -> "_Guard":
        return _Guard(self._fatal, scope, self._train if split == "train" else self._evals)

    async def close(self) -> None:
        await self._model.close()
        if self._text is not None:
            await self._text.close()
        if self._scorer is not None:
            await self._scorer.close()


class _Guard:
    """Around a call: a place among the requests, and a note of a failure."""

    def __init__(self, fatal: Fatal, scope: CallScope, places: asyncio.Semaphore) -> None:
        self._fatal, self._scope, self._places = fatal, scope, places

    async def __aenter__(self) -> None:
        if self._fatal.error is not None:
            raise self._fatal.error
        await self._places.acquire()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._places.release()
        if isinstance(error, BudgetExhausted | ModelUnusable) and self._fatal.error is None:
            self._fatal.error = error
        if isinstance(error, LudusError):
            self._scope.failures.append(error)


def seed_call(sampling: Sampling, scope: CallScope, number: int) -> Sampling:
    """The sampling of one call. Equal requests of one scope have different seeds."""
    seed = ((sampling.seed or 0) + scope.seed + number * 1_000_003) % 2**31
    return msgspec.structs.replace(sampling, seed=seed)


def override_sampling(sampling: Sampling, own: Mapping[str, Any]) -> Sampling:
    """The sampling of a call with what the user set in its place."""
    if not own:
        return sampling
    return msgspec.structs.replace(sampling, **{**own, "extra": {**sampling.extra, **own.get("extra", {})}})


def add_system(messages: Sequence[Message], text: str) -> Sequence[Message]:
    """The conversation with a text at the end of its system message."""
    if not text:
        return messages
    if messages and messages[0].role == "system":
        first = msgspec.structs.replace(messages[0], content=f"{messages[0].content}\n\n{text}".strip())
        return [first, *messages[1:]]
    return [Message("system", text), *messages]


def _add_text(sampled: Generation, model: "TokenModel", prompt: tuple[int, ...]) -> Generation:
    return msgspec.structs.replace(sampled, text=model.codec.decode_reply(sampled.ids), prompt=prompt)


class JournalEngine:
    """An engine whose samples are booked and remembered, one by one."""

    def __init__(self, model: "TokenModel", ledger: Ledger, journal: CallJournal) -> None:
        self._engine = model.engine
        self._price = model.price
        self._ledger = ledger
        self._journal = journal

    @property
    def name(self) -> str:
        return self._engine.name

    async def generate(self, ids: Sequence[int], sampling: Sampling, n: int = 1) -> Sequence[Generation]:
        scope = get_scope()
        request = ("ids", self.name, ids, sampling)

        async def ask(number: int) -> Generation:
            expected = Usage(len(ids), estimate_reply(sampling))
            limited = self._ledger.budget.tokens is not None or self._ledger.budget.dollars is not None
            async with self._ledger.reserve(ROLE, expected if limited else Usage()) as charge:
                (sampled,) = await self._engine.generate(ids, seed_call(sampling, scope, number))
                charge.settle(make_usage(self._price, len(ids), len(sampled.ids), sampled.cached_tokens))
            return sampled

        samples = (self._journal.remember(scope, request, Generation, ask) for _ in range(n))
        return await asyncio.gather(*samples)

    async def tokenize(self, text: str) -> Sequence[int] | None:
        return await self._engine.tokenize(text)

    async def get_facts(self) -> EngineFacts:
        return await self._engine.get_facts()

    async def close(self) -> None:
        await self._engine.close()


# ---- logprobs of a prompt -------------------------------------------------------------------------------------------


class PromptScores(Struct, frozen=True):
    """For each place of a prompt, the likeliest ids: `{"ids": […], "logprobs": […]}`."""

    places: list[JsonObject]


class PromptScorer:
    """Asks a vLLM server, or the /generate server of Atropos' trainers, for the logprobs of a prompt."""

    def __init__(self, settings: OpenAISettings, endpoints: Sequence[Endpoint]) -> None:
        self._generate = settings.engine == "atropos"
        self._name = settings.name
        path = "/generate" if self._generate else "/v1/completions"
        servers = [_make_score_server(settings, endpoint, path) for endpoint in endpoints]
        self._servers = ServerPool(servers, settings.retry)

    async def score(self, ids: Sequence[int], k: int) -> list[JsonObject]:
        fixed = {"prompt_logprobs": k, "max_tokens": 1, "temperature": 0.0, "top_p": 1.0, "n": 1}
        prompt = {"prompt": {"prompt_token_ids": ids}} if self._generate else {"prompt": ids, "model": self._name}
        body = to_json({**prompt, **fixed})
        return await self._servers.run_with_retries(
            lambda lane: lane.server.exchange(body, lambda data: read_prompt_scores(data, k))
        )

    async def close(self) -> None:
        await self._servers.close()


def read_prompt_scores(data: bytes, k: int) -> list[JsonObject]:
    """The likeliest ids of each place. Servers write a place as an object of ids, or as a list of such objects, with
    the logprob or an object that has one; the first place has none."""
    reply: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
    choices: list[dict[str, Any]] = reply.get("choices") or [{}]
    found: Any = reply.get("prompt_logprobs") or choices[0].get("prompt_logprobs")
    if not isinstance(found, list) or not found:
        raise BadReply("it has no prompt_logprobs; does the server support them?")
    places = cast(list[Any], found)
    if len(places) == 1 and isinstance(places[0], list) and any(each is None for each in cast(list[Any], places[0])):
        places = cast(list[Any], places[0])  # one list for each prompt
    return [_read_place(place, k) for place in places]


def _read_place(place: Any, k: int) -> JsonObject:
    parts: list[Any] = cast(list[Any], place) if isinstance(place, list) else [place] if place else []
    pairs: dict[int, float] = {}
    for part in parts:
        for id, value in cast(dict[str, Any], part or {}).items():
            number: Any = cast(dict[str, Any], value)["logprob"] if isinstance(value, dict) else value
            pairs[int(id)] = float(number)
    ordered = sorted(pairs.items(), key=lambda pair: -pair[1])[:k]
    return {"ids": [id for id, _ in ordered], "logprobs": [value for _, value in ordered]}


def _make_score_server(settings: OpenAISettings, endpoint: Endpoint, path: str) -> ModelServer:
    def refuse(*_: object) -> Any:
        raise AssertionError("this server gets no conversations")

    url = make_root_url(endpoint) + path
    return ModelServer(settings, endpoint, url=url, headers=make_headers(endpoint), encode=refuse, parse=refuse)


# ---- text completions of a chat server ----------------------------------------------------------------------------


class _TextChoice(Struct, gc=False):
    text: str = ""
    finish_reason: str | None = None


class _TextUsage(Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _TextReply(Struct, gc=False):
    choices: list[_TextChoice]
    usage: _TextUsage | None = None


_TEXT = msgspec.json.Decoder(_TextReply)


def make_text_model(settings: OpenAISettings, endpoints: Sequence[Endpoint]) -> Model:
    """The `/completions` of a server as a model: the prompt is the content of the last message."""
    return ServerPool([_make_text_server(settings, endpoint) for endpoint in endpoints], settings.retry)


def _make_text_server(settings: OpenAISettings, endpoint: Endpoint) -> ModelServer:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"

    def encode(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> bytes:
        body: JsonObject = {"model": settings.name, "prompt": messages[-1].content}
        given: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop": sampling.stop or None,
            "seed": sampling.seed,
        }
        return encode_body(body | {k: v for k, v in given.items() if v is not None}, sampling, settings.omit)

    return ModelServer(
        settings,
        endpoint,
        url=f"{endpoint.base_url.rstrip('/')}/completions",
        headers=headers,
        encode=encode,
        parse=lambda data: _parse_text(data, settings.price),
    )


def _parse_text(data: bytes, price: Price) -> Completion:
    reply = _TEXT.decode(data)
    if not reply.choices:
        raise BadReply("it has no choices")
    choice, used = reply.choices[0], reply.usage or _TextUsage()
    finish = Finish.LENGTH if choice.finish_reason == "length" else Finish.STOP
    usage = make_usage(price, used.prompt_tokens, used.completion_tokens, 0)
    return Completion(Message("assistant", choice.text), finish, usage)
