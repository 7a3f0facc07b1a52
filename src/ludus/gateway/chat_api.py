"""OpenAI's chat completions."""

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ludus.gateway.dialect import (
    Answer,
    BadRequest,
    Dialect,
    ErrorReply,
    ParsedRequest,
    ReadCache,
    decode,
    drop_unset,
    read_text,
    write_event,
)
from ludus.types import Call, Completion, Finish, JsonObject, Message, Reasoning, Role, Sampling, ToolSpec, Usage

# ---- requests -----------------------------------------------------------------------------------------------------


class _Function(Struct, gc=False):
    name: str = ""
    arguments: Any = ""


class _Call(Struct, gc=False):
    id: str = ""
    function: _Function | None = None
    custom: Any = None


class _Message(Struct, gc=False):
    role: str
    content: Any = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


class _Request(Struct, gc=False):
    messages: list[_Message]
    tools: Raw = Raw()
    tool_choice: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: Any = None
    reasoning_effort: Any = None
    chat_template_kwargs: Any = None


class _ToolFunction(Struct, gc=False):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None


class _Tool(Struct, gc=False):
    type: str = "function"
    function: _ToolFunction | UnsetType = UNSET


_REQUEST = msgspec.json.Decoder(_Request)
_TOOLS = msgspec.json.Decoder(list[_Tool] | None)
NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


def read(body: bytes, cache: ReadCache) -> ParsedRequest:
    """Parse a request.

    Raises:
        BadRequest: it is not a valid request.
    """
    wire = decode(_REQUEST, body)
    if not wire.messages:
        raise BadRequest("messages: at least one message is needed")
    tools = cache.get(read_tools, bytes(wire.tools)) if wire.tools else ()
    choice, tools = read_choice(wire.tool_choice, tools)
    return ParsedRequest(
        [read_message(message, f"messages[{index}]") for index, message in enumerate(wire.messages)],
        tools,
        _read_sampling(wire, choice),
        n=read_n(wire.n),
        stream=bool(wire.stream),
        usage=wire.stream_options is not None and bool(wire.stream_options.include_usage),
    )


def _read_sampling(wire: _Request, choice: Any) -> Sampling:
    limit = wire.max_tokens if wire.max_completion_tokens is None else wire.max_completion_tokens
    return Sampling(
        temperature=wire.temperature,
        top_p=wire.top_p,
        max_tokens=read_limit(limit, "max_tokens"),
        stop=read_stop(wire.stop),
        seed=wire.seed,
        tool_choice=choice,
        extra=drop_unset(
            frequency_penalty=wire.frequency_penalty,
            presence_penalty=wire.presence_penalty,
            repetition_penalty=wire.repetition_penalty,
            top_k=wire.top_k,
            min_p=wire.min_p,
            logit_bias=wire.logit_bias,
            response_format=wire.response_format,
            reasoning_effort=wire.reasoning_effort,
            chat_template_kwargs=wire.chat_template_kwargs,
        ),
    )


def read_n(n: int | None) -> int:
    if n is not None and not 1 <= n <= 128:
        raise BadRequest(f"n: {n} is not between 1 and 128")
    return n or 1


def read_limit(limit: int | None, name: str) -> int | None:
    if limit is not None and limit < 1:
        raise BadRequest(f"{name}: {limit} is less than 1")
    return limit


def read_stop(stop: str | list[str] | None) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def read_tools(raw: bytes) -> tuple[ToolSpec, ...]:
    """Parse the offered tools."""
    specs: list[ToolSpec] = []
    for index, tool in enumerate(decode(_TOOLS, raw, "tools") or ()):
        if tool.function is UNSET:
            raise BadRequest(f"tools[{index}]: only functions can be offered, not '{tool.type}'")
        function = tool.function
        specs.append(ToolSpec(function.name, function.description or "", function.parameters or NO_PARAMETERS))
    return tuple(specs)


def read_choice(choice: Any, tools: tuple[ToolSpec, ...]) -> tuple[Any, tuple[ToolSpec, ...]]:
    """The tool choice, and the tools to offer. A tool that must be called is the only one offered."""
    if choice is None or choice in ("auto", "required", "none"):
        return choice, tools
    if isinstance(choice, dict):
        wanted: Any = choice.get("function", choice)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        name: Any = wanted.get("name") if isinstance(wanted, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        only = tuple(tool for tool in tools if tool.name == name)
        if only:
            return "required", only
        raise BadRequest(f"tool_choice: no tool is called '{name}'")
    raise BadRequest(f"tool_choice: expected 'auto', 'required', 'none' or a tool, got {choice!r}")


_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def read_message(wire: _Message, where: str) -> Message:
    role = _ROLES.get(wire.role)
    if role is None:
        raise BadRequest(f"{where}.role: '{wire.role}' is none of {', '.join(_ROLES)}")
    content = wire.content
    if not isinstance(content, str):
        content = read_text(content, f"{where}.content")
    if role == "tool":
        return Message("tool", content, call_id=wire.tool_call_id or "")
    if role != "assistant":
        return Message(role, content)
    calls = tuple(_read_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(wire.tool_calls or ()))
    reasoning = None
    if wire.reasoning_content:
        reasoning = Reasoning(wire.reasoning_content, "reasoning_content")
    elif wire.reasoning:
        reasoning = Reasoning(wire.reasoning, "reasoning")
    return Message(role, content, calls, reasoning=reasoning)


def _read_call(wire: _Call, where: str) -> Call:
    if wire.function is None:
        raise BadRequest(f"{where}.function: only function calls are supported")
    arguments = wire.function.arguments
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else msgspec.json.encode(arguments).decode()
    return Call(wire.id, wire.function.name, arguments)


# ---- replies ------------------------------------------------------------------------------------------------------

_FINISH = {
    Finish.STOP: "stop",
    Finish.CALLS: "tool_calls",
    Finish.LENGTH: "length",
    Finish.FILTER: "content_filter",
    Finish.OTHER: "stop",
}


class _OutFunction(Struct, gc=False):
    name: str
    arguments: str


class _OutCall(Struct, gc=False):
    id: str
    function: _OutFunction
    type: str = "function"


class _OutChoice(Struct, gc=False):
    index: int
    message: Any
    finish_reason: str
    logprobs: None = None


class _OutCached(Struct, gc=False):
    cached_tokens: int


class _OutUsage(Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _OutCached


class _OutReply(Struct, gc=False):
    id: str
    created: int
    model: str
    choices: list[_OutChoice]
    usage: _OutUsage
    object: str = "chat.completion"


_encode = msgspec.json.Encoder().encode


def write(answer: Answer) -> bytes:
    choices = [
        _OutChoice(index, _write_message(completion.message, answer.request.thinking), _FINISH[completion.finish])
        for index, completion in enumerate(answer.completions)
    ]
    spent = write_usage(answer.completions)
    return _encode(_OutReply(f"chatcmpl-{answer.id}", answer.created, answer.model, choices, spent))


def _write_message(message: Message, thinking: bool) -> JsonObject:
    wire: JsonObject = {"role": "assistant", "content": message.content or (None if message.calls else "")}
    if thinking and message.reasoning is not None and message.reasoning.text:
        wire["reasoning_content"] = message.reasoning.text
    if message.calls:
        wire["tool_calls"] = [_OutCall(call.id, _OutFunction(call.name, call.arguments)) for call in message.calls]
    return wire


def write_usage(completions: Any) -> _OutUsage:
    """The usage of an answer. Several replies share one prompt, which counts once."""
    many: list[Completion] = list(completions)
    first = many[0].usage if many else Usage()
    drawn = sum(completion.usage.completion_tokens for completion in many)
    return _OutUsage(first.prompt_tokens, drawn, first.prompt_tokens + drawn, _OutCached(first.cached_tokens))


def stream(answer: Answer) -> bytes:
    start = b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":%d,"model":%b,"choices":[' % (
        answer.id.encode(),
        answer.created,
        _encode(answer.model),
    )
    events: list[bytes] = []
    for index, completion in enumerate(answer.completions):
        for delta in _write_deltas(completion.message, answer.request.thinking):
            events.append(b'%b{"index":%d,"delta":%b,"finish_reason":null}]}\n\n' % (start, index, _encode(delta)))
        finish = _FINISH[completion.finish].encode()
        events.append(b'%b{"index":%d,"delta":{},"finish_reason":"%b"}]}\n\n' % (start, index, finish))
    if answer.request.usage:
        events.append(b'%b],"usage":%b}\n\n' % (start, _encode(write_usage(answer.completions))))
    events.append(b"data: [DONE]\n\n")
    return b"".join(events)


def _write_deltas(message: Message, thinking: bool) -> list[JsonObject]:
    """The message as stream deltas: role, reasoning, content, and two deltas per call."""
    deltas: list[JsonObject] = [{"role": "assistant", "content": ""}]
    if thinking and message.reasoning is not None and message.reasoning.text:
        deltas.append({"reasoning_content": message.reasoning.text})
    if message.content:
        deltas.append({"content": message.content})
    for index, call in enumerate(message.calls):
        start = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        deltas.append({"tool_calls": [start]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]})
    return deltas


# ---- errors -------------------------------------------------------------------------------------------------------

_KINDS = {
    "request": ("invalid_request_error", None),
    "key": ("authentication_error", "invalid_api_key"),
    "budget": ("insufficient_quota", "insufficient_quota"),
    "context": ("invalid_request_error", "context_length_exceeded"),
    "model": ("server_error", "model_error"),
    "missing": ("invalid_request_error", "not_found"),
    "closed": ("server_error", "unavailable"),
}


def write_error(error: ErrorReply) -> bytes:
    kind, code = _KINDS[error.kind]
    return _encode({"error": {"message": error.message, "type": kind, "param": None, "code": code}})


def write_late_error(error: ErrorReply) -> bytes:
    return write_event(write_error(error)) + b"data: [DONE]\n\n"


CHAT = Dialect("chat", read, write, stream, write_error, write_late_error, b": waiting for the model\n\n")
