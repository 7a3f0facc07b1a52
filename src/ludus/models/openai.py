"""OpenAI-compatible chat endpoints: OpenAI, Azure OpenAI, OpenRouter, vLLM, SGLang, llama.cpp and others.

`build_request` and `parse_reply` are the dialect, as pure functions. Parsing is lenient where servers differ: content
that is null or a list of parts, arguments that are an object, calls without ids, a missing usage, an unknown finish
reason. A body that cannot be read as a completion at all raises `BadReply`.

Reasoning is read from `reasoning_details`, `reasoning_content`, `reasoning`, or a think block at the start of the
content. It is sent back in the same field; think blocks are sent back letter by letter. The rest of the history is sent
unchanged, with two exceptions, because servers refuse the whole request otherwise: call arguments that are not a JSON
object are wrapped in one, and characters that no server allows are replaced in tool names that the model made up. The
record keeps the originals.

Text that only looks like a tool call stays in the content. Only token mode parses it (`ludus.parsers`).
"""

import re
import zlib
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, cast

import msgspec
from msgspec import Struct

from ludus.chat_form import read_arguments, write_call, write_content, write_image, write_tools
from ludus.encoding import to_json
from ludus.models.reply_pieces import Piece, PieceStream, ThinkSplitter
from ludus.models.server import BadReply, Endpoint, ModelServer, Price, make_endpoints, make_usage
from ludus.models.server_pool import ServerPool, Tell, Timing
from ludus.models.settings import AzureSettings, OpenAISettings
from ludus.types import Call, Completion, Finish, JsonObject, Message, Reasoning, Sampling, ToolSpec, Usage


class ChatModel(ServerPool):
    """A model behind one or several OpenAI-compatible servers. Without endpoints, the servers of the settings are
    reached without a key.

    >>> model = ChatModel(OpenAISettings(base_url="http://127.0.0.1:8000/v1", name="qwen"))
    >>> model = ChatModel(OpenAISettings(name="gpt-5"), Endpoint("https://api.openai.com/v1", api_key=key))
    """

    def __init__(
        self,
        settings: OpenAISettings | AzureSettings,
        *endpoints: Endpoint,
        timing: Timing = Timing(),
        tell: Tell | None = None,
    ) -> None:
        servers = [make_chat_server(settings, endpoint) for endpoint in endpoints or make_endpoints(settings)]
        super().__init__(servers, settings.retry, timing, tell)


def make_chat_server(settings: OpenAISettings | AzureSettings, endpoint: Endpoint) -> ModelServer:
    """One server of the model."""
    base = endpoint.base_url.rstrip("/")
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if isinstance(settings, AzureSettings):
        url = f"{base}/openai/deployments/{settings.name}/chat/completions?api-version={settings.api_version}"
        key = {"api-key": endpoint.api_key}
    else:
        url = f"{base}/chat/completions"
        key = {"Authorization": f"Bearer {endpoint.api_key}"}
    if endpoint.api_key:
        headers |= key
    build = partial(build_request, model=settings.name, max_tokens_field=settings.max_tokens_field, omit=settings.omit)
    return ModelServer(
        settings,
        endpoint,
        url=url,
        headers=headers,
        encode=build,
        parse=lambda data: parse_reply(data, settings.price),
        streaming=(partial(build, stream=True), lambda reply_stream: ChatStreamReader(settings.price, reply_stream)),
    )


# ---- requests -----------------------------------------------------------------------------------------------------


def build_request(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    sampling: Sampling,
    model: str,
    *,
    max_tokens_field: str = "max_tokens",
    omit: Sequence[str] = (),
    stream: bool = False,
) -> bytes:
    """The JSON body of a chat request. Fields of `sampling.extra` replace all others."""
    offered = {tool.name for tool in tools}
    body: JsonObject = {"model": model, "messages": _write_messages(messages, offered)}
    if tools:
        body["tools"] = write_tools(tools)
        if sampling.tool_choice is not None:
            body["tool_choice"] = sampling.tool_choice
    if sampling.temperature is not None:
        body["temperature"] = sampling.temperature
    if sampling.top_p is not None:
        body["top_p"] = sampling.top_p
    if sampling.max_tokens is not None:
        body[max_tokens_field] = sampling.max_tokens
    if sampling.stop:
        body["stop"] = sampling.stop
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return encode_body(body, sampling, omit)


def encode_body(body: JsonObject, sampling: Sampling, omit: Sequence[str]) -> bytes:
    """The body as JSON, with the user's extra fields and without the fields that the server refuses."""
    if sampling.extra:
        body.update(sampling.extra)
    for name in omit:
        body.pop(name, None)
    return to_json(body)


def _write_messages(messages: Sequence[Message], offered: Collection[str]) -> list[JsonObject]:
    """The conversation. Servers take no pictures in results of tools: a user message after the results has them."""
    written: list[JsonObject] = []
    waiting: list[JsonObject] = []
    for message in messages:
        if waiting and message.role != "tool":
            written.append({"role": "user", "content": waiting})
            waiting = []
        written.append(_write_message(message, offered))
        if message.images and message.role == "tool":
            waiting += [write_image(image.url) for image in message.images]
    return [*written, {"role": "user", "content": waiting}] if waiting else written


def _write_message(message: Message, offered: Collection[str]) -> JsonObject:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    wire: JsonObject = {"role": message.role, "content": write_content(message)}
    if message.reasoning is not None:
        _add_reasoning(wire, message.reasoning)
    if message.calls:
        wire["tool_calls"] = [
            write_call(call.id, sanitize_name(call.name, offered), sanitize_arguments(call.arguments))
            for call in message.calls
        ]
    return wire


def _add_reasoning(wire: JsonObject, reasoning: Reasoning) -> None:
    """Send reasoning back in the form it came in. Signed blocks of another dialect are left out."""
    match reasoning.source:
        case "think":
            wire["content"] = write_think(reasoning) + wire["content"]
        case "reasoning_details":
            wire["reasoning_details"] = reasoning.raw
        case "reasoning_content" | "reasoning":
            wire[reasoning.source] = reasoning.text
        case "thinking":
            pass


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ARGUMENTS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def sanitize_name(name: str, offered: Collection[str]) -> str:
    """The name, with characters replaced if the model made up a name that servers refuse."""
    if name in offered or _NAME.fullmatch(name):
        return name
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"


def sanitize_arguments(arguments: str) -> str:
    """The arguments if they are a JSON object; otherwise an object that contains them as text."""
    try:
        _ARGUMENTS.decode(arguments)
    except (ValueError, RecursionError):
        return to_json({"invalid_json": arguments}).decode() if arguments else "{}"
    return arguments


# ---- replies ------------------------------------------------------------------------------------------------------


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class _Call(Struct, gc=False):
    id: str | None = None
    function: _Function | None = None


class _Text(Struct, gc=False):
    """What a message and a piece of one have in common."""

    content: str | list[Any] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: str | None = None


class _Message(_Text, gc=False):
    tool_calls: list[_Call] | None = None


class _Choice(Struct, gc=False):
    message: _Message | None = None
    finish_reason: Any = None
    error: Any = None


class _PromptDetails(Struct, gc=False):
    cached_tokens: int | float | None = None


class _Usage(Struct, gc=False):
    prompt_tokens: int | float | None = None
    """Some servers count in floats."""
    completion_tokens: int | float | None = None
    prompt_tokens_details: _PromptDetails | None = None
    """OpenAI and most others; vLLM needs `--enable-prompt-tokens-details`."""
    prompt_cache_hit_tokens: int | float | None = None
    """Cached tokens, as DeepSeek counts them."""
    cost: float | None = None
    """Dollars, as OpenRouter counts them."""


class _Reply(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None


_REPLY = msgspec.json.Decoder(_Reply)
_FINISH: dict[Any, Finish] = {
    "stop": Finish.STOP,
    "tool_calls": Finish.CALLS,
    "function_call": Finish.CALLS,
    "length": Finish.LENGTH,
    "content_filter": Finish.FILTER,
}


def parse_reply(data: bytes, price: Price = Price()) -> Completion:
    """Read a chat completion.

    Raises:
        ValueError: it is not a completion; `BadReply` if it is JSON of another kind.
    """
    reply = _REPLY.decode(data)
    choice = reply.choices[0] if reply.choices else None
    if choice is None or choice.message is None or (choice.error and choice.finish_reason == "error"):
        raise _make_bad_reply(reply.error or (choice.error if choice else None))
    return _make_completion(choice.message, choice.finish_reason, reply, price, data)


def _make_completion(wire: "_Message", finish_reason: Any, reply: "_Reply", price: Price, data: bytes) -> Completion:
    calls = _read_calls(wire.tool_calls, data) if wire.tool_calls else ()
    reasoning, content = split_reasoning(wire)
    message = Message("assistant", content, calls, reasoning=reasoning)
    finish = _read_finish(finish_reason, bool(calls))
    return Completion(message, finish, _read_usage(reply.usage, price), reply.model or "")


def _make_bad_reply(error: Any) -> BadReply:
    if isinstance(error, dict):
        code: Any = error.get("code")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        status = code if isinstance(code, int) and 400 <= code < 600 else None
        return BadReply(str(error.get("message") or "an error"), status)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return BadReply(str(error) if error else "it holds no choices")


def _read_finish(reason: Any, calls: bool) -> Finish:
    """Why the reply ended. Servers differ here: with calls, a plain or unknown reason means `CALLS`."""
    finish = _FINISH.get(reason, Finish.OTHER) if isinstance(reason, str) else Finish.OTHER
    if calls and finish in (Finish.STOP, Finish.OTHER):
        return Finish.CALLS
    return finish


def _read_calls(wire: list[_Call], data: bytes) -> tuple[Call, ...]:
    """The calls, each with a unique id. A missing or repeated id is replaced by one derived from the reply."""
    calls: list[Call] = []
    seen: set[str] = set()
    for index, call in enumerate(wire):
        if call.function is None:
            continue
        id = call.id
        if not id or id in seen:
            id = f"call_{zlib.crc32(data, index):08x}"
        seen.add(id)
        calls.append(Call(id, call.function.name or "", read_arguments(call.function.arguments)))
    return tuple(calls)


def _read_usage(wire: _Usage | None, price: Price) -> Usage:
    if wire is None:
        return Usage()
    details = wire.prompt_tokens_details
    cached = int((details.cached_tokens if details is not None else None) or wire.prompt_cache_hit_tokens or 0)
    counted = make_usage(price, int(wire.prompt_tokens or 0), int(wire.completion_tokens or 0), cached)
    if wire.cost and not counted.dollars:
        return msgspec.structs.replace(counted, dollars=wire.cost)
    return counted


# ---- streams ------------------------------------------------------------------------------------------------------


class _DeltaCall(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(_Text, gc=False):
    tool_calls: list[_DeltaCall] | None = None


class _StreamChoice(Struct, gc=False):
    index: int = 0
    delta: _Delta | None = None
    finish_reason: Any = None
    error: Any = None
    logprobs: msgspec.Raw = msgspec.Raw()
    token_ids: list[int] | None = None


class _Chunk(Struct, gc=False):
    choices: list[_StreamChoice] | None = None
    usage: _Usage | None = None
    model: str | None = None
    error: Any = None
    prompt_token_ids: list[int] | None = None


_CHUNK = msgspec.json.Decoder(_Chunk)


class _StreamedCall:
    """A call, as far as it has come."""

    __slots__ = ("arguments", "id", "name", "shown")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.shown = False
        """Whether its beginning was passed on."""


class ChatStreamReader:
    """Reads a chat completion from the events of a stream. Only the first choice is read."""

    def __init__(self, price: Price, reply_stream: PieceStream) -> None:
        self._price = price
        self._reply_stream = reply_stream
        self._content: list[str] = []
        self._thoughts: list[str] = []
        self._thoughts_field = "reasoning_content"
        self._details: list[Any] = []
        self._refusal: list[str] = []
        self._calls: dict[int, _StreamedCall] = {}
        self._splitter: ThinkSplitter | None = ThinkSplitter()
        self._finish: Any = None
        self._usage: _Usage | None = None
        self._model = ""
        self._events = 0
        self.has_sampled: bool = False
        self.logprobs: list[msgspec.Raw] = []
        """The logprobs of each event, in the server's form."""
        self.ids: list[int] | None = None
        self.prompt_ids: list[int] | None = None

    def take(self, event: bytes) -> list[Piece]:
        chunk = _CHUNK.decode(event)
        self._events += 1
        if chunk.usage is not None:
            self._usage = chunk.usage
        if not self._model:
            self._model = chunk.model or ""
        if chunk.prompt_token_ids is not None:
            self.prompt_ids = chunk.prompt_token_ids
        choice = chunk.choices[0] if chunk.choices else None
        if chunk.error or (choice is not None and choice.error and choice.finish_reason == "error"):
            raise _make_bad_reply(chunk.error or (choice.error if choice else None))
        if choice is None or choice.index:
            return []
        if choice.finish_reason is not None:
            self._finish = choice.finish_reason
        if choice.token_ids is not None:
            self.ids = self.ids or []
            self.ids += choice.token_ids
        if choice.logprobs:
            self.logprobs.append(choice.logprobs)
        return [] if choice.delta is None else self._take_delta(choice.delta)

    def finish(self, *, cut: bool = False) -> Completion:
        if not self._events or (self._finish is None and not cut):
            raise BadReply("the stream ended before the reply did")
        content, thoughts = "".join(self._content), "".join(self._thoughts)
        message = _Message(
            content=content,
            refusal="".join(self._refusal),
            tool_calls=[_Call(call.id, _Function(call.name, "".join(call.arguments))) for call in self._calls.values()],
            reasoning_details=self._details or None,
            reasoning_content=thoughts if self._thoughts_field == "reasoning_content" else None,
            reasoning=thoughts if self._thoughts_field == "reasoning" else None,
        )
        if self._reply_stream.wants_logprobs:
            self._reply_stream.logprobs = read_logprobs(self.logprobs)
        reply = _Reply(usage=self._usage, model=self._model)
        return _make_completion(message, self._finish, reply, self._price, content.encode(errors="replace"))

    def _take_delta(self, delta: _Delta) -> list[Piece]:
        pieces: list[Piece] = []
        if delta.reasoning_content or delta.reasoning or delta.reasoning_details:
            self._take_thoughts(delta, pieces)
        content = delta.content if isinstance(delta.content, str) else _join_parts(delta.content)
        if content:
            self.has_sampled = True
            self._content.append(content)
            pieces += [Piece(content)] if self._splitter is None else self._splitter.feed(content)
        if delta.refusal:
            self.has_sampled = True
            self._refusal.append(delta.refusal)
        for place, call in enumerate(delta.tool_calls or ()):
            self._take_call(place if call.index is None else call.index, call, pieces)
        return pieces

    def _take_thoughts(self, delta: _Delta, pieces: list[Piece]) -> None:
        thought = _take_text(delta.reasoning_content) or _take_text(delta.reasoning)
        details = _take_list(delta.reasoning_details)
        if not thought and not details:
            return
        self.has_sampled = True
        self._splitter = None  # the server separates thoughts itself
        if thought:
            self._thoughts_field = "reasoning_content" if _take_text(delta.reasoning_content) else "reasoning"
            self._thoughts.append(thought)
        for detail in details:
            _join_detail(self._details, detail)
        shown = thought or _read_details(details)
        if shown:
            pieces.append(Piece(thought=shown))

    def _take_call(self, index: int, wire: _DeltaCall, pieces: list[Piece]) -> None:
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = _StreamedCall()
        self.has_sampled = True
        number = list(self._calls).index(index)
        if wire.id and not call.id:
            taken = any(other.id == wire.id for other in self._calls.values())
            call.id = "" if taken else wire.id
        function = wire.function
        written = "" if function is None else read_arguments(function.arguments)
        call.arguments.append(written)
        if function is not None and function.name and not call.name:
            call.name = function.name
        if call.shown:
            pieces.append(Piece(call=number, arguments=written))
        elif call.name:
            call.id = call.id or f"call_{zlib.crc32(call.name.encode(), number + self._events):08x}"
            call.shown = True
            pieces.append(Piece(call=number, id=call.id, name=call.name, arguments="".join(call.arguments)))


def read_logprobs(parts: Sequence[msgspec.Raw]) -> list[Any]:
    """The logprobs of all tokens. A server's logprobs of another form are left out."""
    found: list[Any] = []
    for part in parts:
        value = _take_object(msgspec.json.decode(part)).get("content")
        found += _take_list(value)
    return found


def _join_detail(details: list[Any], detail: Any) -> None:
    """Add a part of the reasoning details. Parts with the same index and type are one detail, in pieces."""
    last, new = _take_object(details[-1] if details else None), _take_object(detail)
    if not last or "index" not in new or any(last.get(key) != new.get(key) for key in ("type", "index")):
        details.append(detail)
        return
    joined: JsonObject = {**last, **{key: value for key, value in new.items() if value is not None}}
    for key in ("text", "summary", "data"):
        if isinstance(new.get(key), str):
            joined[key] = _take_text(last.get(key)) + new[key]
    details[-1] = joined


# ---- reasoning ----------------------------------------------------------------------------------------------------


def split_reasoning(wire: _Message) -> tuple[Reasoning | None, str]:
    """Split a message into its reasoning and its content."""
    content = wire.content if isinstance(wire.content, str) else _join_parts(wire.content)
    if not content and wire.refusal:
        content = wire.refusal
    plain = _take_text(wire.reasoning_content) or _take_text(wire.reasoning)
    if details := _take_list(wire.reasoning_details):
        return Reasoning(plain or _read_details(details), "reasoning_details", details), content
    if plain:
        return Reasoning(plain, "reasoning_content" if _take_text(wire.reasoning_content) else "reasoning"), content
    return split_think(content)


def split_think(content: str) -> tuple[Reasoning | None, str]:
    """Split off a think block at the start of a text.

    The opening tag may be missing, because many templates put it into the prompt. The closing tag may be missing if
    the reply was cut. `_write_think_block(text) + rest`, or `raw + rest`, is exactly the content.
    """
    end = content.find("</think>")
    start = content.find("<think>")
    opened = start >= 0 and not content[:start].strip()
    if not opened and (end < 0 or 0 <= start < end):
        return None, content
    if end < 0:
        return Reasoning(content[start + 7 :].strip(), "think", content), ""
    rest = content[end + 8 :].lstrip()
    block = content[: len(content) - len(rest)]
    text = content[start + 7 if opened else 0 : end].strip()
    return Reasoning(text, "think", None if block == _write_think_block(text) else block), rest


def write_think(reasoning: Reasoning) -> str:
    """A think block as the model wrote it."""
    return _write_think_block(reasoning.text) if reasoning.raw is None else reasoning.raw


def _write_think_block(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


def _take_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _take_object(value: Any) -> JsonObject:
    return cast(JsonObject, value) if isinstance(value, dict) else {}


def _take_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _join_parts(parts: list[Any] | None) -> str:
    return "".join(_take_text(p.get("text")) for p in parts or () if isinstance(p, dict))  # pyright: ignore[reportUnknownMemberType]


def _read_details(details: list[Any]) -> str:
    """The readable text of reasoning details. Encrypted details have none."""
    texts: list[str] = []
    for detail in details:
        if isinstance(detail, dict):
            texts.append(_take_text(detail.get("text")) or _take_text(detail.get("summary")))  # pyright: ignore[reportUnknownMemberType]
    return "\n".join(text for text in texts if text)
