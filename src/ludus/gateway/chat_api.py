"""OpenAI's chat completions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ludus.chat_form import FINISH_NAMES, ROLES, read_arguments, write_call
from ludus.gateway.custom_tools import make_custom_tool, read_custom_input, write_custom_arguments
from ludus.gateway.dialect import (
    Answer,
    BadRequest,
    Dialect,
    ErrorReply,
    FieldRules,
    ParsedRequest,
    ReadCache,
    StreamWriter,
    decode,
    decode_known,
    drop_unset,
    read_content,
    write_event,
)
from ludus.models.reply_pieces import Piece
from ludus.types import Call, Completion, JsonObject, Message, Reasoning, Sampling, ToolSpec, Usage

# ---- requests -----------------------------------------------------------------------------------------------------


class _Function(Struct, gc=False):
    name: str = ""
    arguments: Any = ""


class _CustomCall(Struct, gc=False):
    name: str = ""
    input: str = ""


class _Call(Struct, gc=False):
    id: str = ""
    function: _Function | None = None
    custom: _CustomCall | None = None


class _Message(Struct, gc=False):
    role: str
    content: Any = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _StreamOptions(Struct, gc=False):
    include_usage: bool | None = None


class SampledRequest(Struct, gc=False, kw_only=True):
    """What requests for chat completions and for completions share: how replies are sampled and sent."""

    model: Any = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    logit_bias: dict[str, float] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the number of tokens."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def read_sampling(self, limit: int | None, choice: Any = None, **more: Any) -> Sampling:
        """The sampling with the longest reply, the tool choice and further fields of the API."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=read_limit(limit, "max_tokens"),
            stop=read_stop(self.stop),
            seed=self.seed,
            tool_choice=choice,
            extra=drop_unset(
                frequency_penalty=self.frequency_penalty,
                presence_penalty=self.presence_penalty,
                repetition_penalty=self.repetition_penalty,
                top_k=self.top_k,
                min_p=self.min_p,
                logit_bias=self.logit_bias,
                **more,
            ),
        )


class _Request(SampledRequest, gc=False, kw_only=True, forbid_unknown_fields=True):
    messages: list[_Message]
    tools: Raw = Raw()
    tool_choice: Any = None
    max_completion_tokens: int | None = None
    response_format: Any = None
    reasoning_effort: Any = None
    chat_template_kwargs: Any = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    metadata: Any = None
    modalities: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    user: Any = None
    verbosity: Any = None
    web_search_options: Any = None


RULES = FieldRules(
    refused={
        "audio": "this gateway serves text only",
        "functions": "this form is deprecated; send 'tools'",
        "function_call": "this form is deprecated; send 'tool_choice'",
        "web_search_options": "this gateway does not search the web; offer a tool that does",
    },
    ignored=(
        "metadata", "modalities", "prediction", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
        "service_tier", "store", "user", "verbosity",
    ),
)  # fmt: skip


class _ToolFunction(Struct, gc=False):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None


class _CustomFormat(Struct, gc=False):
    grammar: JsonObject | None = None


class _CustomTool(Struct, gc=False):
    name: str
    description: str | None = None
    format: _CustomFormat | None = None


class _Tool(Struct, gc=False):
    type: str = "function"
    function: _ToolFunction | UnsetType = UNSET
    custom: _CustomTool | UnsetType = UNSET


class ChatTools(NamedTuple):
    """The tools of a request, and which of them are custom ones."""

    specs: tuple[ToolSpec, ...] = ()
    kinds: dict[str, str] = {}  # noqa: RUF012  # never modified


class _LenientRequest(_Request, gc=False, forbid_unknown_fields=False):
    """The same with fields that the API does not have."""


_REQUEST = msgspec.json.Decoder(_Request)
_LENIENT = msgspec.json.Decoder(_LenientRequest)
_TOOLS = msgspec.json.Decoder(list[_Tool] | None)
NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}}


def read(body: bytes, cache: ReadCache) -> ParsedRequest:
    """Parse a request.

    Raises:
        BadRequest: it is not a valid request.
    """
    wire, unknown = decode_known(_REQUEST, _LENIENT, body)
    if not wire.messages:
        raise BadRequest("messages: at least one message is needed")
    ignored = RULES.apply(wire)
    offered = cache.get(read_tools, bytes(wire.tools)) if wire.tools else ChatTools()
    choice, tools = read_choice(wire.tool_choice, offered.specs)
    return ParsedRequest(
        [_read_message(message, index) for index, message in enumerate(wire.messages)],
        tools,
        _read_sampling(wire, choice),
        n=read_n(wire.n),
        stream=bool(wire.stream),
        usage=wire.wants_usage,
        kinds=offered.kinds,
        ignored=ignored + unknown,
        parallel_calls=wire.parallel_tool_calls,
        logprobs=(wire.top_logprobs or 0) if wire.logprobs else None,
    )


def _read_sampling(wire: _Request, choice: Any) -> Sampling:
    limit = wire.max_tokens if wire.max_completion_tokens is None else wire.max_completion_tokens
    return wire.read_sampling(
        limit,
        choice,
        response_format=wire.response_format,
        reasoning_effort=wire.reasoning_effort,
        chat_template_kwargs=wire.chat_template_kwargs,
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


def read_tools(raw: bytes) -> ChatTools:
    """Parse the offered tools."""
    specs: list[ToolSpec] = []
    kinds: dict[str, str] = {}
    for index, tool in enumerate(decode(_TOOLS, raw, "tools") or ()):
        if tool.custom is not UNSET:
            custom = tool.custom
            grammar: JsonObject = (custom.format.grammar if custom.format else None) or {}
            specs.append(make_custom_tool(custom.name, custom.description or "", grammar))
            kinds[custom.name] = "custom"
        elif tool.function is not UNSET:
            function = tool.function
            specs.append(ToolSpec(function.name, function.description or "", function.parameters or NO_PARAMETERS))
        else:
            raise BadRequest(f"tools[{index}]: only functions and custom tools can be offered, not '{tool.type}'")
    return ChatTools(tuple(specs), kinds)


def read_choice(choice: Any, tools: tuple[ToolSpec, ...]) -> tuple[Any, tuple[ToolSpec, ...]]:
    """The tool choice, and the tools to offer. A tool that must be called is the only one offered."""
    if choice is None or choice in ("auto", "required", "none"):
        return choice, tools
    if isinstance(choice, dict):
        wanted: Any = choice.get("function") or choice.get("custom") or choice  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        name: Any = wanted.get("name") if isinstance(wanted, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        only = tuple(tool for tool in tools if tool.name == name)
        if only:
            return "required", only
        raise BadRequest(f"tool_choice: no tool is called '{name}'")
    raise BadRequest(f"tool_choice: expected 'auto', 'required', 'none' or a tool, got {choice!r}")


def _read_message(wire: _Message, index: int) -> Message:
    role = ROLES.get(wire.role)
    if role is None:
        raise BadRequest(f"messages[{index}].role: '{wire.role}' is none of {', '.join(ROLES)}")
    content, images = wire.content, ()
    if not isinstance(content, str):
        content, images = read_content(content, f"messages[{index}].content")
    if images and role not in ("user", "tool"):
        raise BadRequest(f"messages[{index}].content: only messages of users and tools may have pictures")
    if role == "tool":
        return Message("tool", content, call_id=wire.tool_call_id or "", images=images)
    if role != "assistant":
        return Message(role, content, images=images)
    calls = () if wire.tool_calls is None else _read_calls(wire.tool_calls, index)
    reasoning = None
    if wire.reasoning_content:
        reasoning = Reasoning(wire.reasoning_content, "reasoning_content")
    elif wire.reasoning:
        reasoning = Reasoning(wire.reasoning, "reasoning")
    return Message(role, content, calls, reasoning=reasoning)


def _read_calls(wire: list[_Call], index: int) -> tuple[Call, ...]:
    calls: list[Call] = []
    for place, call in enumerate(wire):
        if call.custom is not None:
            calls.append(Call(call.id, call.custom.name, write_custom_arguments(call.custom.input)))
        elif call.function is not None:
            calls.append(Call(call.id, call.function.name, read_arguments(call.function.arguments)))
        else:
            raise BadRequest(f"messages[{index}].tool_calls[{place}].function: this field is needed")
    return tuple(calls)


# ---- replies ------------------------------------------------------------------------------------------------------


class _OutChoice(Struct, gc=False):
    index: int
    message: Any
    finish_reason: str
    logprobs: JsonObject | None = None


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
        _OutChoice(
            index,
            _write_message(completion.message, answer.request),
            FINISH_NAMES[completion.finish],
            _get_logprobs(answer, index),
        )
        for index, completion in enumerate(answer.completions)
    ]
    spent = write_usage(answer.completions)
    return _encode(_OutReply(f"chatcmpl-{answer.id}", answer.created, answer.model, choices, spent))


def _get_logprobs(answer: Answer, index: int) -> JsonObject | None:
    content = answer.logprobs[index] if index < len(answer.logprobs) else None
    return None if content is None else {"content": content, "refusal": None}


def _write_message(message: Message, request: ParsedRequest) -> JsonObject:
    wire: JsonObject = {"role": "assistant", "content": message.content or (None if message.calls else "")}
    if request.thinking and message.reasoning is not None and message.reasoning.text:
        wire["reasoning_content"] = message.reasoning.text
    if message.calls:
        wire["tool_calls"] = [_write_call(call, request.kinds) for call in message.calls]
    return wire


def _write_call(call: Call, kinds: Mapping[str, str]) -> JsonObject:
    if call.name in kinds:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": read_custom_input(call)}}
    return write_call(call.id, call.name, call.arguments)


def write_usage(completions: Any) -> _OutUsage:
    """The usage of an answer. Several replies share one prompt, which counts once."""
    many: list[Completion] = list(completions)
    first = many[0].usage if many else Usage()
    sampled = sum(completion.usage.completion_tokens for completion in many)
    return _OutUsage(first.prompt_tokens, sampled, first.prompt_tokens + sampled, _OutCached(first.cached_tokens))


class ChatStream(StreamWriter):
    """Writes chunks. A call that is no plain function is written when it is whole."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._head = (
            b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":%d,"model":%b,"choices":['
            % (
                answer.id.encode(),
                answer.created,
                _encode(answer.model),
            )
        )
        self._held: dict[tuple[int, int], Call] = {}
        """Custom calls that are not whole, by reply and number."""

    def start(self) -> bytes:
        return b"".join(self._write_delta(index, _ROLE_DELTA) for index in range(self.answer.request.n))

    def ping(self) -> bytes:
        return self._write_delta(0, b"{}")

    def fail(self, error: ErrorReply) -> bytes:
        return write_event(write_error(error)) + b"data: [DONE]\n\n"

    def _write_delta(self, index: int, delta: bytes) -> bytes:
        return b'%b{"index":%d,"delta":%b,"finish_reason":null}]}\n\n' % (self._head, index, delta)

    def _add(self, index: int, piece: Piece, out: list[bytes]) -> None:
        if piece.text:
            out.append(self._write_delta(index, b'{"content":%b}' % _encode(piece.text)))
        elif piece.thought:
            if self.answer.request.thinking:
                out.append(self._write_delta(index, b'{"reasoning_content":%b}' % _encode(piece.thought)))
        elif (index, piece.call) in self._held or piece.name in self.answer.request.kinds:
            self._hold(index, piece)
        else:
            out.append(self._write_delta(index, b'{"tool_calls":[%b]}' % _encode(_write_call_delta(piece))))

    def _hold(self, index: int, piece: Piece) -> None:
        held = self._held.get((index, piece.call), Call(piece.id, piece.name, ""))
        self._held[index, piece.call] = Call(held.id, held.name, held.arguments + piece.arguments)

    def _end_reply(self, index: int, completion: Completion, out: list[bytes]) -> None:
        for (reply, number), call in self._held.items():
            if reply == index:
                wire = {"index": number, **_write_call(call, self.answer.request.kinds)}
                out.append(self._write_delta(index, b'{"tool_calls":[%b]}' % _encode(wire)))
        logprobs = _get_logprobs(self.answer, index)
        shown = b"" if logprobs is None else b',"logprobs":%b' % _encode(logprobs)
        finish = FINISH_NAMES[completion.finish].encode()
        out.append(b'%b{"index":%d,"delta":{}%b,"finish_reason":"%b"}]}\n\n' % (self._head, index, shown, finish))

    def _end(self, out: list[bytes]) -> None:
        if self.answer.request.usage:
            out.append(b'%b],"usage":%b}\n\n' % (self._head, _encode(write_usage(self.answer.completions))))
        out.append(b"data: [DONE]\n\n")


_ROLE_DELTA = b'{"role":"assistant","content":""}'


def _write_call_delta(piece: Piece) -> JsonObject:
    if not piece.name:
        return {"index": piece.call, "function": {"arguments": piece.arguments}}
    return {"index": piece.call, **write_call(piece.id, piece.name, piece.arguments)}


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


CHAT = Dialect("chat", read, write, ChatStream, write_error)
