"""A model in this process: no key, no account, no server to start.

`EmbeddedServer` runs llama.cpp's HTTP server inside this process, on a free loopback port with a random key.
`EmbeddedModel` is a chat client of it (`ChatModel`). Tools are handled here, as text: the template of the default model
drops them silently, and that of the other one makes longer prompts, after which it answers less often.

    tools           ──> one line each in the system text
    earlier calls   ──> the text that the model would have written
    their results   ──> user messages
    a reply in JSON ──> `Completion.message.calls`, as with any other model

The models differ in how a call gets into the reply (`Weights.fenced`):

- `smollm2-135m` is too small to have learnt tool calls. A grammar allows one well-formed call, or a text answer. It
  guarantees that a call is valid JSON, names an existing tool and has its required arguments. It does not make the
  model call a tool: for that the conversation needs example calls (`Env.opening`).
- `qwen2.5-coder-1.5b` writes calls in fenced blocks, some text around them, sometimes several. A parser reads them
  (`CallReader`: parsers are another part, which `config` passes in). The grammar is used only to demand a call.

A seed gives the same reply to the same sequence of requests. Prompt caching and other requests that are computed at the
same time change rounding, and that can change a token. With `run.concurrency: 1` a run sends the same sequence each
time. `extra: {cache_prompt: false}` and one slot make a reply independent of other requests, at four times the cost.
"""

import asyncio
import importlib
import json
import os
import secrets
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError, LudusError, ModelError
from ludus.images import refuse_images
from ludus.models.json_grammar import COMMON_RULES, build_object_rule, quote_literal, split_parameters
from ludus.models.openai import ChatModel
from ludus.models.server import Endpoint, Retry
from ludus.models.settings import EmbeddedSettings, OpenAISettings
from ludus.models.weights import NAMED, Tell, find_weights
from ludus.types import Call, Completion, Finish, JsonObject, Message, Sampling, ToolSpec

QUEUE_SECONDS = 30.0
"""How long the server may take to serve the small request before it is stopped."""


class EmbeddedRuntime(Struct, frozen=True):
    """The folder for weights, and how many conversations there are. Not settings: only tests change the sizes."""

    cache: Path
    """Where fetched weights are kept."""
    slots: int = 4
    """Conversations that are computed at the same time. Further requests wait."""
    reply_tokens: int = 512
    """The longest reply if the sampling sets no limit."""


# ---- the server ---------------------------------------------------------------------------------------------------


@dataclass
class _Running:
    engine: Any
    endpoint: Endpoint
    """Its `base_url` has no path."""

    def stop(self) -> None:
        """Drop the last reference. This ends the server's threads and frees its memory.

        llama.cpp hangs if it is stopped before its task queue runs, so a small request is served first.
        """
        _wait_for_queue(self.endpoint)
        self.engine = None


class EmbeddedServer:
    """llama.cpp's server in this process. The first `start` loads it."""

    def __init__(self, settings: EmbeddedSettings, runtime: EmbeddedRuntime, tell: Tell = lambda _: None) -> None:
        self._settings = settings
        self._runtime = runtime
        self._tell = tell
        self._loading: asyncio.Future[_Running] | None = None
        self._closed = False

    async def start(self) -> Endpoint:
        """Load the model, fetching its weights if needed, and return its endpoint. Only the first call loads.

        Raises:
            ConfigError: the engine is not installed, there are no weights, or it cannot load them.
        """
        if self._closed:
            raise ModelError("the embedded model was closed", retryable=False)
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
        # Shielded: all callers share one loading, so a caller that is cancelled must not cancel it for the others.
        return (await asyncio.shield(self._loading)).endpoint

    async def close(self) -> None:
        """Stop the server. All requests must have ended before: the engine waits for them."""
        self._closed = True
        if self._loading is None:
            return
        with suppress(LudusError):  # the caller of `start` has seen the failure
            running = await asyncio.shield(self._loading)
            await asyncio.to_thread(running.stop)

    def _load(self) -> _Running:
        engine = import_engine()
        settings = self._settings
        weights = find_weights(
            settings.weights_path, self._runtime.cache, weights=NAMED[settings.name], tell=self._tell
        )
        key = secrets.token_hex(16)
        try:
            server = engine.Server(_make_parameters(engine, settings, self._runtime.slots, weights, key))
        except RuntimeError as error:
            raise ConfigError(f"model.weights: llama.cpp cannot load {weights}: {error}") from error
        return _Running(server, Endpoint(server.listening_address, api_key=key))


def _wait_for_queue(endpoint: Endpoint) -> None:
    """Send the smallest request that passes through the server's task queue. Blocks until it is served."""
    connection = HTTPConnection(endpoint.base_url.partition("://")[2], timeout=QUEUE_SECONDS)
    headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
    with closing(connection), suppress(OSError, HTTPException):
        connection.request("POST", "/completion", b'{"prompt": "a", "n_predict": 1}', headers)
        connection.getresponse().read()


def import_engine() -> Any:
    """llama.cpp's bindings. Raises `ConfigError` if they are not installed."""
    try:
        with _limit_spinning():
            return importlib.import_module("xllamacpp")
    except ModuleNotFoundError as error:
        raise ConfigError("the embedded model needs an engine: pip install 'ludus-train[local]'") from error
    except ImportError as error:
        raise ConfigError(
            f"the embedded model's engine cannot be loaded: {error}. If it is libgomp that is missing: "
            "apt-get install libgomp1"
        ) from error


@contextmanager
def _limit_spinning() -> Generator[None]:
    """Let OpenMP's threads spin only briefly before they sleep, unless the user has configured OpenMP.

    By default they spin for milliseconds. On cores that other programs use too, such as the agents' commands, most of
    the time goes into spinning: one reply took 60 s instead of 4 s, measured on two cores with two busy programs. On
    idle cores spinning gains nothing. OpenMP reads this variable once, when it is loaded.
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


def _make_parameters(engine: Any, settings: EmbeddedSettings, slots: int, weights: Path, key: str) -> Any:
    parameters = engine.CommonParams()
    parameters.model.path = str(weights)
    parameters.model_alias = {settings.recorded_name}  # otherwise replies contain the path
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [key]
    parameters.n_parallel = slots
    parameters.n_ctx = slots * settings.context
    parameters.cache_ram_mib = 0  # slots cache their prompts; a second cache would take up to 8 GB
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings.threads
    parameters.ui = False
    parameters.warmup = False
    parameters.verbosity = -1
    return parameters


# ---- the model ----------------------------------------------------------------------------------------------------


class ReadReply(Protocol):
    """What was read from a reply."""

    @property
    def content(self) -> str: ...
    @property
    def calls(self) -> tuple[Call, ...]: ...


class CallReader(Protocol):
    """Reads the calls in a reply (`ludus.parsers.ReplyParser`)."""

    def parse(self, text: str, tools: Sequence[ToolSpec], *, thinking: bool = False, first: int = 0) -> ReadReply: ...


class EmbeddedModel:
    """A `Model` on an `EmbeddedServer` of its own. `reader` reads the calls of a model that writes them by itself."""

    def __init__(
        self,
        settings: EmbeddedSettings,
        runtime: EmbeddedRuntime,
        tell: Tell = lambda _: None,
        reader: CallReader | None = None,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._server = EmbeddedServer(settings, runtime, tell)
        self._reader = reader
        self._fenced = NAMED[settings.name].fenced
        self._chat: ChatModel | None = None

    @property
    def name(self) -> str:
        return self._settings.recorded_name

    async def start(self) -> None:
        """Load the model before the first `complete`, so that the time does not count as part of that call."""
        await self._connect()

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        refuse_images(messages, "the embedded model")
        chat = await self._connect()
        reply = await chat.complete(
            flatten_messages(messages, tools, fenced=self._fenced),
            (),
            msgspec.structs.replace(
                sampling,
                max_tokens=sampling.max_tokens or self._runtime.reply_tokens,
                extra={**self._constrain(tools, sampling.tool_choice), **sampling.extra},
            ),
        )
        if not tools or sampling.tool_choice == "none":
            return reply
        first = sum(len(m.calls) for m in messages) + 1
        if not self._fenced:
            return parse_call(reply, f"call_{first}")
        assert self._reader is not None, "a model that writes calls needs a reader of them"
        return read_calls(reply, tools, self._reader, first)

    def _constrain(self, tools: Sequence[ToolSpec], choice: str | None) -> JsonObject:
        """What the server has to enforce about tools."""
        if not tools or (self._fenced and choice != "required"):
            return {}
        return {"grammar": build_grammar(tools, choice, fenced=self._fenced)}

    async def close(self) -> None:
        try:
            if self._chat is not None:
                await self._chat.close()  # first: closing connections makes the engine stop its work
        finally:
            await self._server.close()

    async def _connect(self) -> ChatModel:
        endpoint = await self._server.start()
        if self._chat is None:
            settings = OpenAISettings(name=self.name, concurrency=self._runtime.slots, retry=Retry(retries=1))
            self._chat = ChatModel(settings, Endpoint(f"{endpoint.base_url}/v1", api_key=endpoint.api_key))
        return self._chat


# ---- tools as text ------------------------------------------------------------------------------------------------


def flatten_messages(messages: Sequence[Message], tools: Sequence[ToolSpec], *, fenced: bool = False) -> list[Message]:
    """The conversation in the three roles that the model knows (system, user, assistant), with tools as text."""
    system = [m.content for m in messages if m.role == "system"]
    if tools:
        system.append(_list_tools(tools, fenced))
    others = [_flatten_message(m, fenced) for m in messages if m.role != "system"]
    return [Message("system", "\n\n".join(system)), *others] if system else others


_CALL = '{"name": "...", "arguments": {...}}'


def _list_tools(tools: Sequence[ToolSpec], fenced: bool) -> str:
    """One line per tool. Whole schemas take four times the tokens and confuse the small model more often."""
    lines = [
        f"{tool.name}({', '.join(_list_parameters(tool))}): {_take_first_sentence(tool.description)}" for tool in tools
    ]
    how = f"To call a tool, write: {_CALL}"
    if fenced:
        how = (
            f"To call a tool, write only a block like this:\n{_fence(_show_call(tools[0]))}\n"
            "You then get its result. Answer in plain text when no more calls are needed."
        )
    return "\n".join(["You have these tools:", *lines, how])


def _show_call(tool: ToolSpec) -> str:
    """A call of this tool without its values. With a form that names no tool, models call what else is listed."""
    required, _ = split_parameters(tool.parameters)
    return _dump_call(tool.name, dict.fromkeys(required, "..."))


def _fence(text: str) -> str:
    return f"{FENCE}{text}{FENCE_END}"


def _list_parameters(tool: ToolSpec) -> list[str]:
    required, optional = split_parameters(tool.parameters)
    return [*required, *(f"{name}?" for name in optional)]


def _take_first_sentence(text: str) -> str:
    return text.split(". ")[0].split("\n")[0].rstrip(".") + "."


def _flatten_message(message: Message, fenced: bool) -> Message:
    if message.role == "tool":
        return Message("user", f"Result:\n{message.content}" if fenced else message.content)
    lines = [message.content] if message.content else []
    written = [_write_call(call) for call in message.calls]
    return Message(message.role, "\n".join([*lines, *(map(_fence, written) if fenced else written)]))


def _write_call(call: Call) -> str:
    """A call in the form of the grammar."""
    try:
        return _dump_call(call.name, json.loads(call.arguments or "{}"))
    except (ValueError, RecursionError):
        return _dump_call(call.name, call.arguments)


def _dump_call(name: str, arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


class _WrittenCall(Struct):
    name: str
    arguments: msgspec.Raw


_WRITTEN_CALL = msgspec.json.Decoder(_WrittenCall)


def parse_call(reply: Completion, id: str) -> Completion:
    """The reply with the call in its text parsed. A call that was cut stays text: the reply is unfinished."""
    try:
        call = _WRITTEN_CALL.decode(reply.message.content)
    except ValueError:
        return reply
    message = Message("assistant", calls=(Call(id, call.name, bytes(call.arguments).decode()),))
    return msgspec.structs.replace(reply, message=message, finish=Finish.CALLS)


def read_calls(reply: Completion, tools: Sequence[ToolSpec], reader: CallReader, first: int) -> Completion:
    """The reply with the calls in its text parsed. Text that is no call stays."""
    found = reader.parse(reply.message.content, tools, first=first)
    content, calls = found.content, found.calls
    if not calls:
        content, calls = _read_misnamed_call(reply.message.content, f"call_{first}")
    if not calls:
        return reply
    message = msgspec.structs.replace(reply.message, content=content, calls=calls)
    finish = Finish.CALLS if reply.finish is Finish.STOP else reply.finish
    return msgspec.structs.replace(reply, message=message, finish=finish)


class _FormCall(Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any]


_FORM_CALL = msgspec.json.Decoder(_FormCall)


def _read_misnamed_call(text: str, id: str) -> tuple[str, tuple[Call, ...]]:
    """A call of a tool that does not exist, if it has the very form that was asked for, and the text before it. As a
    call it is an error that the agent sees and can correct; as a text it would be its answer."""
    before, begin, rest = text.partition(FENCE)
    written = rest.partition(FENCE_END)[0] if begin else text
    try:
        call = _FORM_CALL.decode(written)
    except (ValueError, RecursionError):
        return text, ()
    made = Call(id, call.name, json.dumps(call.arguments, ensure_ascii=False))
    return before.strip() if begin else "", (made,)


# ---- the grammar --------------------------------------------------------------------------------------------------

_ANSWER = r"[^{] [^\x00]*"
FENCE, FENCE_END = "```json\n", "\n```"


def build_grammar(tools: Sequence[ToolSpec], choice: str | None = None, *, fenced: bool = False) -> str:
    """What the model may write, in llama.cpp's notation: one call, a text, or either, as the choice says."""
    calls = " | ".join(_build_call_rule(tool, fenced) for tool in tools)
    root = {"required": calls, "none": "answer"}.get(choice or "", f"{calls} | answer")
    return f"root ::= {root}\nanswer ::= {_ANSWER}{COMMON_RULES}"


def _build_call_rule(tool: ToolSpec, fenced: bool) -> str:
    begin, end = (FENCE, FENCE_END) if fenced else ("", "")
    head = f'{begin}{{"name": {json.dumps(tool.name)}, "arguments": '
    return f"{quote_literal(head)} {build_object_rule(tool.parameters)} {quote_literal('}' + end)}"
