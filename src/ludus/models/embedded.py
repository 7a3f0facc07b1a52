"""A small model in this process: no key, no account, no server to start. For trying Ludus, not for results.

`EmbeddedServer` runs llama.cpp's HTTP server inside this process, on a free loopback port and behind a random key;
`EmbeddedModel` is a chat client of it (`ChatModel`). The model that comes with Ludus is too small to have learnt to
call tools, and its chat template drops them without a word, so they are handled here, as text:

    tools           ──> a line each in the system text, and a grammar: one well-formed call, or an answer in words
    earlier calls   ──> the text that the model would have had to write
    their results   ──> the words of a user
    a reply in JSON ──> `Completion.message.calls`, like any other model's

The grammar guarantees that a call is valid JSON, names a tool that exists and has its required arguments. It does not
make the model call: for that it has to see example calls in the conversation (`Env.opening`), else it explains.

A seed gives the same reply to the same sequence of requests. How far the prompt was cached and what else is computed
at the same moment changes rounding, which can tip a token; `extra: {cache_prompt: false}` and one slot rule that out.
"""

import asyncio
import importlib
import json
import os
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError, LudusError, ModelError
from ludus.models.openai import ChatModel, OpenAISettings
from ludus.models.server import Endpoint, Retry
from ludus.models.weights import SMOLLM2, Tell, find
from ludus.settings import Settings
from ludus.types import Call, Completion, Count, Finish, JsonObject, Message, Sampling, ToolSpec


class EmbeddedSettings(Settings, frozen=True, tag_field="type", tag="embedded"):
    """A small model in this process, without key or account: for trying Ludus, not for results."""

    weights: str = ""
    """A GGUF file to use instead of the one that is fetched."""
    threads: Count = 2
    """How many cores it may use."""
    mode: Literal["chat", "token"] = "chat"
    """`chat`: the server renders and parses, and only text is recorded. `token`: Ludus does, and the exact ids, masks
    and logprobs are recorded, as RL needs them (`docs/tokens.md`)."""
    parser: str = "hermes"
    """In token mode, the format that the model writes tool calls in (`docs/parsers.md`)."""
    template: str = "chatml"
    """In token mode, the chat template: a file, or `chatml`; empty: the one in the weights."""
    history: Literal["template", "append"] = "template"
    """In token mode, what the model sees of its past: what the template makes of it, or replies as sampled."""

    @property
    def weights_path(self) -> Path | None:
        """The file of the user; None: the one that is fetched."""
        return Path(self.weights).expanduser() if self.weights else None

    @property
    def name(self) -> str:
        """The model's name: the stem of its weights file."""
        return Path(self.weights or SMOLLM2.file).stem


class EmbeddedRuntime(Struct, frozen=True):
    """The folder for weights, and how large the server is. Not settings: only tests change the sizes."""

    cache: Path
    """Where fetched weights are kept."""
    slots: int = 4
    """Conversations that are computed at the same time. Further requests wait."""
    context: int = 4096
    """Tokens of one conversation, the reply included."""
    reply_tokens: int = 512
    """The longest reply if the sampling sets no limit."""


# ---- the server ---------------------------------------------------------------------------------------------------


@dataclass
class _Running:
    engine: Any
    endpoint: Endpoint
    """Its `base_url` has no path."""

    def stop(self) -> None:
        """Dropping the last reference ends the server's threads and frees its memory."""
        self.engine = None


class EmbeddedServer:
    """llama.cpp's server in this process. It is loaded at the first `start`, and once."""

    def __init__(self, settings: EmbeddedSettings, runtime: EmbeddedRuntime, tell: Tell = lambda _: None) -> None:
        self._settings = settings
        self._runtime = runtime
        self._tell = tell
        self._loading: asyncio.Future[_Running] | None = None
        self._closed = False

    async def start(self) -> Endpoint:
        """Load the model, which may mean to fetch its weights first; after that, only tell where it is.

        Raises:
            ConfigError: the engine is not installed, or there are no weights, or it cannot load them.
        """
        if self._closed:
            raise ModelError("the embedded model was closed", retryable=False)
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
        # Shielded, because all who ask share one loading: the one that gives up must not take it from the others.
        return (await asyncio.shield(self._loading)).endpoint

    async def close(self) -> None:
        """Stop. Requests that are under way must have ended: the engine would wait for them."""
        self._closed = True
        if self._loading is None:
            return
        with suppress(LudusError):  # a failure to load was told to who asked
            running = await asyncio.shield(self._loading)
            await asyncio.to_thread(running.stop)

    def _load(self) -> _Running:
        engine = _engine()
        weights = find(self._settings.weights_path, self._runtime.cache, tell=self._tell)
        key = secrets.token_hex(16)
        try:
            server = engine.Server(_parameters(engine, self._settings, self._runtime, weights, key))
        except RuntimeError as error:
            raise ConfigError(f"model.weights: llama.cpp cannot load {weights}: {error}") from error
        return _Running(server, Endpoint(server.listening_address, api_key=key))


def _engine() -> Any:
    try:
        with _short_spins():
            return importlib.import_module("xllamacpp")
    except ModuleNotFoundError as error:
        raise ConfigError("the embedded model needs an engine: pip install 'ludus[local]'") from error
    except ImportError as error:
        raise ConfigError(
            f"the embedded model's engine cannot be loaded: {error}. If it is libgomp that is missing: "
            "apt-get install libgomp1"
        ) from error


@contextmanager
def _short_spins() -> Generator[None]:
    """Let OpenMP's threads spin only briefly before they sleep, unless the user has a wish.

    By default they spin for milliseconds, and on cores that are shared with anything else (the agents' own commands, to
    begin with) most of the time goes into spinning: 60 s instead of 4 s for one reply, measured on two cores with two
    busy neighbours, at no gain on idle ones. OpenMP reads this variable once, when it is loaded.
    """
    name = "GOMP_SPINCOUNT"
    if name in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ[name] = "1000"
    try:
        yield
    finally:
        del os.environ[name]


def _parameters(engine: Any, settings: EmbeddedSettings, runtime: EmbeddedRuntime, weights: Path, key: str) -> Any:
    parameters = engine.CommonParams()
    parameters.model.path = str(weights)
    parameters.model_alias = {settings.name}  # else replies carry the path
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [key]
    parameters.n_parallel = runtime.slots
    parameters.n_ctx = runtime.slots * runtime.context
    parameters.cache_ram_mib = 0  # slots keep their prompts; a second cache would take up to 8 GB
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings.threads
    parameters.ui = False
    parameters.warmup = False
    parameters.verbosity = -1
    return parameters


# ---- the model ----------------------------------------------------------------------------------------------------


class EmbeddedModel:
    """A `Model` on an `EmbeddedServer` of its own."""

    def __init__(self, settings: EmbeddedSettings, runtime: EmbeddedRuntime, tell: Tell = lambda _: None) -> None:
        self._settings = settings
        self._runtime = runtime
        self._server = EmbeddedServer(settings, runtime, tell)
        self._chat: ChatModel | None = None

    @property
    def name(self) -> str:
        return self._settings.name

    async def start(self) -> None:
        """Load the model ahead of the first `complete`, whose caller may be in a hurry."""
        await self._client()

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        chat = await self._client()
        extra: JsonObject = {"grammar": grammar(tools, sampling.tool_choice)} if tools else {}
        reply = await chat.complete(
            as_text(messages, tools),
            (),
            msgspec.structs.replace(
                sampling,
                max_tokens=sampling.max_tokens or self._runtime.reply_tokens,
                extra={**extra, **sampling.extra},
            ),
        )
        return with_call(reply, f"call_{sum(len(m.calls) for m in messages) + 1}") if tools else reply

    async def close(self) -> None:
        try:
            if self._chat is not None:
                await self._chat.close()  # first: hanging up is what makes the engine drop what it computes
        finally:
            await self._server.close()

    async def _client(self) -> ChatModel:
        endpoint = await self._server.start()
        if self._chat is None:
            settings = OpenAISettings(name=self.name, concurrency=self._runtime.slots, retry=Retry(retries=1))
            self._chat = ChatModel(settings, Endpoint(f"{endpoint.base_url}/v1", api_key=endpoint.api_key))
        return self._chat


# ---- tools as text ------------------------------------------------------------------------------------------------


def as_text(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[Message]:
    """The conversation in the three roles that the model knows: system, user, assistant."""
    system = [m.content for m in messages if m.role == "system"]
    if tools:
        system.append(_listing(tools))
    spoken = [_spoken(m) for m in messages if m.role != "system"]
    return [Message("system", "\n\n".join(system)), *spoken] if system else spoken


def _listing(tools: Sequence[ToolSpec]) -> str:
    """A line per tool. Whole schemas take four times the tokens and lead this model astray more often."""
    lines = [f"{tool.name}({', '.join(_parameter_names(tool))}): {_first_sentence(tool.description)}" for tool in tools]
    call = '{"name": "...", "arguments": {...}}'
    return "\n".join(["You have these tools:", *lines, f"To call a tool, write: {call}"])


def _parameter_names(tool: ToolSpec) -> list[str]:
    required, optional = _split_parameters(tool.parameters)
    return [*required, *(f"{name}?" for name in optional)]


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].split("\n")[0].rstrip(".") + "."


def _spoken(message: Message) -> Message:
    if message.role == "tool":
        return Message("user", message.content)
    lines = [message.content] if message.content else []
    return Message(message.role, "\n".join([*lines, *(_call_text(call) for call in message.calls)]))


def _call_text(call: Call) -> str:
    """A call as the grammar would have it, whoever wrote it."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = call.arguments
    return json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)


class _WrittenCall(Struct):
    name: str
    arguments: msgspec.Raw


_WRITTEN_CALL = msgspec.json.Decoder(_WrittenCall)


def with_call(reply: Completion, id: str) -> Completion:
    """The reply with its call as a call. One that was cut in the middle stays text: it is an unfinished reply."""
    try:
        call = _WRITTEN_CALL.decode(reply.message.content)
    except ValueError:
        return reply
    message = Message("assistant", calls=(Call(id, call.name, bytes(call.arguments).decode()),))
    return msgspec.structs.replace(reply, message=message, finish=Finish.CALLS)


# ---- the grammar --------------------------------------------------------------------------------------------------

_COMMON = r"""
answer ::= [^{] [^\x00]*
value ::= string | number | boolean | "null" | array | object
array ::= "[" (value (", " value)*)? "]"
object ::= "{" (string ": " value (", " string ": " value)*)? "}"
string ::= "\"" ([^"\\\x00-\x1F\x7F] | "\\" ["\\bfnrt])* "\""
integer ::= "-"? [0-9]{1,15}
number ::= integer ("." [0-9]{1,15})?
boolean ::= "true" | "false"
"""


def grammar(tools: Sequence[ToolSpec], choice: str | None = None) -> str:
    """What the model may write, in llama.cpp's notation: one call of one tool, or words, or only one of both."""
    calls = " | ".join(_call_rule(tool) for tool in tools)
    root = {"required": calls, "none": "answer"}.get(choice or "", f"{calls} | answer")
    return f"root ::= {root}{_COMMON}"


def _call_rule(tool: ToolSpec) -> str:
    head = f'{{"name": {json.dumps(tool.name)}, "arguments": '
    return f'{_literal(head)} {_object_rule(tool.parameters)} "}}"'


def _object_rule(schema: JsonObject) -> str:
    """Required members in the order of the schema, then any of the optional ones, in that order too."""
    required, optional = _split_parameters(schema)
    pairs = [_pair_rule(name, schema) for name in required]
    rest = [_pair_rule(name, schema) for name in optional]
    if pairs:
        inside = ' ", " '.join(pairs) + _each_optional(rest)
    else:
        starts = [f"{pair}{_each_optional(rest[i + 1 :])}" for i, pair in enumerate(rest)]
        inside = f"({' | '.join(starts)})?" if starts else ""
    return f'"{{" {inside} "}}"'


def _split_parameters(schema: JsonObject) -> tuple[list[str], list[str]]:
    names: list[str] = list(schema.get("properties", {}))
    required = schema.get("required", [])
    return [n for n in names if n in required], [n for n in names if n not in required]


def _each_optional(pairs: Sequence[str]) -> str:
    return "".join(f' (", " {pair})?' for pair in pairs)


def _pair_rule(name: str, schema: JsonObject) -> str:
    return f"{_literal(json.dumps(name) + ': ')} {_value_rule(schema['properties'][name])}"


def _value_rule(schema: JsonObject) -> str:
    """Types and choices are kept to; finer points (patterns, bounds, references) are left to the loop's check."""
    match schema:
        case {"enum": [*choices]}:
            return f"({' | '.join(_literal(json.dumps(choice)) for choice in choices)})"
        case {"type": "string" | "integer" | "number" | "boolean" as kind}:
            return kind
        case {"type": "array", "items": _}:
            item = _value_rule(schema["items"])
            return f'"[" ({item} (", " {item})*)? "]"'
        case {"type": "object", "properties": _}:
            return _object_rule(schema)
        case _:
            return "value"


def _literal(text: str) -> str:
    """The text in the grammar's own quotes, which follow JSON's rules."""
    return json.dumps(text)
