"""Anthropic's messages API.

Blocks become messages: a tool result is a message of its own, and the text beside it is a user message. Blocks of
system text are joined. Two things are left out and listed in `ParsedRequest.ignored`: tools that the provider would run
itself, and the billing header that Claude Code puts into the system text. The header changes with every request, so
every request would start a new conversation.
"""

from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from ludus.gateway.chat_api import NO_PARAMETERS, read_limit
from ludus.gateway.dialect import (
    Answer,
    BadRequest,
    Dialect,
    ErrorReply,
    FieldRules,
    ParsedRequest,
    ReadCache,
    StreamWriter,
    check_image,
    decode,
    decode_known,
    drop_unset,
    write_event,
)
from ludus.models.openai import sanitize_arguments
from ludus.models.reply_pieces import Piece
from ludus.types import Call, Completion, Finish, Image, JsonObject, Message, Reasoning, Sampling, ToolSpec, Usage

# ---- requests -----------------------------------------------------------------------------------------------------


class _Message(Struct, gc=False):
    role: str
    content: str | list[JsonObject]


class _Choice(Struct, gc=False):
    type: str = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(Struct, gc=False):
    type: str = ""


class _Format(Struct, gc=False):
    type: str = ""
    schema: JsonObject | None = None


class _OutputConfig(Struct, gc=False):
    format: _Format | None = None
    effort: str | None = None


class _Request(Struct, gc=False, forbid_unknown_fields=True):
    messages: list[_Message]
    system: str | list[JsonObject] | None = None
    tools: Raw = Raw()
    tool_choice: _Choice | None = None
    stream: bool | None = None
    thinking: _Thinking | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    model: Any = None
    cache_control: Any = None
    container: Any = None
    context_management: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    metadata: Any = None
    output_config: _OutputConfig | None = None
    output_format: _Format | None = None
    service_tier: Any = None
    speed: Any = None
    betas: Any = None


class _LenientRequest(_Request, gc=False, forbid_unknown_fields=False):
    """The same with fields that the API does not have."""


RULES = FieldRules(
    refused={"mcp_servers": "this gateway calls no MCP servers; offer their tools as tools of the client"},
    ignored=(
        "betas", "cache_control", "container", "context_management", "inference_geo", "metadata", "service_tier",
        "speed",
    ),
)  # fmt: skip


class _Tool(Struct, gc=False):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: JsonObject | None = None


_REQUEST = msgspec.json.Decoder(_Request)
_LENIENT = msgspec.json.Decoder(_LenientRequest)
_TOOLS = msgspec.json.Decoder(list[_Tool] | None)
_HIDDEN = "x-anthropic-billing-header:"


def read(body: bytes, cache: ReadCache) -> ParsedRequest:
    """Parse a request.

    Raises:
        BadRequest: it is not a valid request.
    """
    wire, unknown = decode_known(_REQUEST, _LENIENT, body)
    if not wire.messages:
        raise BadRequest("messages: at least one message is needed")
    dropped = RULES.apply(wire)
    system, ignored = _read_system(wire.system)
    tools, left_out = cache.get(_read_tools, bytes(wire.tools)) if wire.tools else ((), ())
    choice, tools = _read_choice(wire.tool_choice, tools)
    messages = [Message("system", system)] if system else []
    for index, message in enumerate(wire.messages):
        messages += _read_message(message, f"messages[{index}]")
    return ParsedRequest(
        messages,
        tools,
        Sampling(
            temperature=wire.temperature,
            top_p=wire.top_p,
            max_tokens=read_limit(wire.max_tokens, "max_tokens"),
            stop=tuple(wire.stop_sequences or ()),
            tool_choice=choice,
            extra=drop_unset(top_k=wire.top_k, response_format=_read_format(wire)),
        ),
        stream=bool(wire.stream),
        thinking=wire.thinking is not None and wire.thinking.type in ("enabled", "adaptive"),
        ignored=(*dropped, *_list_ignored(wire), *unknown, *ignored, *left_out),
        parallel_calls=False if wire.tool_choice is not None and wire.tool_choice.disable_parallel_tool_use else None,
    )


def _list_ignored(wire: _Request) -> tuple[str, ...]:
    return ("output_config.effort",) if wire.output_config and wire.output_config.effort else ()


def _read_format(wire: _Request) -> JsonObject | None:
    """The form of the reply, as the chat API writes it; None for plain text."""
    form = (wire.output_config.format if wire.output_config else None) or wire.output_format
    if form is None:
        return None
    if form.type != "json_schema" or form.schema is None:
        raise BadRequest("output_config.format: expected {'type': 'json_schema', 'schema': …}")
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": form.schema}}


def _read_system(system: str | list[JsonObject] | None) -> tuple[str, tuple[str, ...]]:
    if not isinstance(system, list):
        return system or "", ()
    texts = [_read_text(block, f"system[{index}]") for index, block in enumerate(system)]
    kept = [text for text in texts if not text.startswith(_HIDDEN)]
    ignored = ("system: a billing header",) if len(kept) < len(texts) else ()
    return "\n\n".join(kept), ignored


def _read_tools(raw: bytes) -> tuple[tuple[ToolSpec, ...], tuple[str, ...]]:
    """The tools that the client runs, and the types of those that the provider would run."""
    tools = decode(_TOOLS, raw, "tools") or ()
    own = (tool for tool in tools if tool.type in (None, "custom") or tool.input_schema is not None)
    specs = tuple(ToolSpec(tool.name, tool.description or "", tool.input_schema or NO_PARAMETERS) for tool in own)
    names = {spec.name for spec in specs}
    return specs, tuple(f"tools: {tool.type}" for tool in tools if tool.name not in names)


def _read_choice(choice: _Choice | None, tools: tuple[ToolSpec, ...]) -> tuple[Any, tuple[ToolSpec, ...]]:
    if choice is None:
        return None, tools
    match choice.type:
        case "auto" | "none":
            return choice.type, tools
        case "any":
            return "required", tools
        case "tool":
            only = tuple(tool for tool in tools if tool.name == choice.name)
            if only:
                return "required", only
            raise BadRequest(f"tool_choice.name: no tool is called '{choice.name}'")
        case other:
            raise BadRequest(f"tool_choice.type: '{other}' is none of auto, any, tool, none")


def _read_message(wire: _Message, where: str) -> list[Message]:
    match wire.role:
        case "assistant":
            return [_read_assistant(_make_blocks(wire.content), where)]
        case "user":
            return _read_user(_make_blocks(wire.content), where)
        case "system":
            return [
                Message("system", "\n\n".join(_read_text(b, f"{where}.content") for b in _make_blocks(wire.content)))
            ]
        case other:
            raise BadRequest(f"{where}.role: '{other}' is none of user, assistant, system")


def _make_blocks(content: str | list[JsonObject]) -> list[JsonObject]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _read_text(block: JsonObject, where: str) -> str:
    if block.get("type", "text") != "text":
        raise BadRequest(f"{where}: only text can be sent to this model, not '{block.get('type')}'")
    text = block.get("text")
    if not isinstance(text, str):
        raise BadRequest(f"{where}.text: expected str")
    return text


def _read_user(blocks: Sequence[JsonObject], where: str) -> list[Message]:
    messages: list[Message] = []
    waiting: list[tuple[JsonObject, str]] = []

    def flush() -> None:
        if waiting:
            text, images = _join_blocks(waiting, "\n\n")
            messages.append(Message("user", text, images=images))
            waiting.clear()

    for index, block in enumerate(blocks):
        place = f"{where}.content[{index}]"
        if block.get("type") != "tool_result":
            waiting.append((block, place))
            continue
        flush()
        content: Any = block.get("content") or ""
        parts = _make_blocks(cast("str | list[JsonObject]", content)) if isinstance(content, str | list) else None
        if parts is None:
            raise BadRequest(f"{place}.content: expected a text or a list of blocks")
        text, images = _join_blocks([(part, f"{place}.content[{i}]") for i, part in enumerate(parts)], "\n")
        messages.append(Message("tool", text, call_id=str(block.get("tool_use_id", "")), images=images))
    flush()
    return messages or [Message("user")]


def _join_blocks(blocks: Sequence[tuple[JsonObject, str]], between: str) -> tuple[str, tuple[Image, ...]]:
    """The texts of blocks, and their pictures with their places in it. Each block comes with its own place."""
    text: str | None = None
    images: list[Image] = []
    for block, where in blocks:
        if block.get("type") == "image":
            images.append(Image(_read_source(block.get("source"), f"{where}.source"), len(text or "")))
        else:
            own = _read_text(block, where)
            text = own if text is None else text + between + own
    return text or "", tuple(images)


def _read_source(source: Any, where: str) -> str:
    """The URL of a picture."""
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return check_image(f"data:{kind};base64,{data}", where)
        case {"type": "url", "url": str(url)}:
            return check_image(url, where)
        case _:
            raise BadRequest(f"{where}: expected the type 'base64' with media_type and data, or 'url' with url")


_THINKING = ("thinking", "redacted_thinking")


def _read_assistant(blocks: Sequence[JsonObject], where: str) -> Message:
    texts: list[str] = []
    calls: list[Call] = []
    thoughts: list[JsonObject] = []
    for index, block in enumerate(blocks):
        match block.get("type"):
            case "tool_use":
                calls.append(_read_call(block))
            case "thinking" | "redacted_thinking":
                thoughts.append(block)
            case _:
                texts.append(_read_text(block, f"{where}.content[{index}]"))
    return Message("assistant", "".join(texts), tuple(calls), reasoning=_read_reasoning(thoughts))


def _read_call(block: JsonObject) -> Call:
    """A call as the model wrote it. Arguments that are not a JSON object were sent wrapped in one and are unwrapped."""
    value: Any = block.get("input", {})
    if isinstance(value, dict):
        fields = cast(dict[str, Any], value)
        wrapped = fields.get("invalid_json")
        if isinstance(wrapped, str) and len(fields) == 1:
            return Call(str(block.get("id", "")), str(block.get("name", "")), wrapped)
    return Call(str(block.get("id", "")), str(block.get("name", "")), msgspec.json.encode(value).decode())


def _read_reasoning(thoughts: Sequence[JsonObject]) -> Reasoning | None:
    if not thoughts:
        return None
    text = "\n".join(str(block["thinking"]) for block in thoughts if block.get("thinking"))
    return Reasoning(text, "thinking", list(thoughts))


# ---- replies ------------------------------------------------------------------------------------------------------

_FINISH = {
    Finish.STOP: "end_turn",
    Finish.CALLS: "tool_use",
    Finish.LENGTH: "max_tokens",
    Finish.FILTER: "refusal",
    Finish.OTHER: "end_turn",
}
SIGNATURE = "unsigned"
"""The signature of thinking that no provider signed. Clients require one; the gateway does not check it."""

_encode = msgspec.json.Encoder().encode
_PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def write_count(tokens: int) -> bytes:
    return _encode({"input_tokens": tokens})


def write(answer: Answer) -> bytes:
    completion = answer.completions[0]
    content = _write_content(completion.message, answer.request.thinking)
    return _encode(
        _write_head(answer, completion.usage) | {"content": content, "stop_reason": _FINISH[completion.finish]},
    )


def _write_head(answer: Answer, usage: Usage) -> JsonObject:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _write_usage(usage),
    }


def _write_usage(spent: Usage) -> JsonObject:
    """The API counts cached tokens separately. Here they are part of the prompt."""
    return {
        "input_tokens": spent.prompt_tokens - spent.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": spent.cached_tokens,
        "output_tokens": spent.completion_tokens,
    }


def _write_content(message: Message, thinking: bool) -> list[JsonObject]:
    blocks = _write_thoughts(message.reasoning) if thinking else []
    if message.content or not message.calls:
        blocks.append({"type": "text", "text": message.content})
    for call in message.calls:
        value = Raw(sanitize_arguments(call.arguments).encode())
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": value})
    return blocks


def _write_thoughts(reasoning: Reasoning | None) -> list[JsonObject]:
    if reasoning is None:
        return []
    if reasoning.source == "thinking" and reasoning.raw:
        return [dict(block) for block in reasoning.raw if block.get("type") in _THINKING]
    return [{"type": "thinking", "thinking": reasoning.text, "signature": SIGNATURE}] if reasoning.text else []


class MessageStream(StreamWriter):
    """Writes content blocks, one after the other. Thoughts that no provider signed end with a stand-in for a
    signature."""

    overlap = False

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._blocks = 0
        self._open = ""
        """The open block: `text`, `thinking`, or the number of a call."""

    def start(self) -> bytes:
        head = _write_head(self.answer, Usage(completion_tokens=1))
        return _write_event("message_start", message=head)

    def ping(self) -> bytes:
        return _PING

    def fail(self, error: ErrorReply) -> bytes:
        return write_event(write_error(error), "error")

    def _add(self, index: int, piece: Piece, out: list[bytes]) -> None:
        if piece.text:
            self._enter("text", {"type": "text", "text": ""}, out)
            self._fill({"type": "text_delta", "text": piece.text}, out)
        elif piece.thought:
            if self.answer.request.thinking:
                self._enter("thinking", {"type": "thinking", "thinking": "", "signature": ""}, out)
                self._fill({"type": "thinking_delta", "thinking": piece.thought}, out)
        else:
            self._add_call(piece, out)

    def _add_call(self, piece: Piece, out: list[bytes]) -> None:
        if piece.name:
            block: JsonObject = {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}
            self._enter(str(piece.call), block, out)
        written = sanitize_arguments(piece.arguments) if piece.is_whole else piece.arguments
        if written and self._open == str(piece.call):
            self._fill({"type": "input_json_delta", "partial_json": written}, out)

    def _enter(self, name: str, block: JsonObject, out: list[bytes]) -> None:
        """Open a block, unless it is open."""
        if self._open != name:
            self._leave(out)
            self._open = name
            out.append(_write_event("content_block_start", index=self._blocks, content_block=block))

    def _fill(self, delta: JsonObject, out: list[bytes]) -> None:
        out.append(_write_event("content_block_delta", index=self._blocks, delta=delta))

    def _leave(self, out: list[bytes]) -> None:
        if not self._open:
            return
        if self._open == "thinking":
            self._fill({"type": "signature_delta", "signature": SIGNATURE}, out)
        out.append(_write_event("content_block_stop", index=self._blocks))
        self._blocks += 1
        self._open = ""

    def _end_reply(self, index: int, completion: Completion, out: list[bytes]) -> None:
        self._leave(out)
        if not self._blocks:
            self._enter("text", {"type": "text", "text": ""}, out)
            self._leave(out)
        finish = {"stop_reason": _FINISH[completion.finish], "stop_sequence": None}
        out.append(_write_event("message_delta", delta=finish, usage=_write_usage(completion.usage)))

    def _end(self, out: list[bytes]) -> None:
        out.append(_write_event("message_stop"))


def _write_event(name: str, **fields: Any) -> bytes:
    return write_event(_encode({"type": name, **fields}), name)


# ---- errors -------------------------------------------------------------------------------------------------------

_KINDS = {
    "request": "invalid_request_error",
    "key": "authentication_error",
    "budget": "rate_limit_error",
    "context": "invalid_request_error",
    "model": "api_error",
    "missing": "not_found_error",
    "closed": "overloaded_error",
}


def write_error(error: ErrorReply) -> bytes:
    return _encode({"type": "error", "error": {"type": _KINDS[error.kind], "message": error.message}})


MESSAGES = Dialect("messages", read, write, MessageStream, write_error)
