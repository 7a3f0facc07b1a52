"""The Anthropic Messages API.

`build_request` and `parse_reply` are the dialect, as pure functions. The system text is a field of its own. Calls are
`tool_use` blocks of the assistant, their results are `tool_result` blocks of the user, and consecutive messages of one
side are joined. Thinking blocks are recorded with their signatures and sent back unchanged, as the server requires.
Reasoning of another dialect has no signature and is left out of the history.

Two blocks of every request are marked for the server's prompt cache (`cache=False` turns this off): the last one,
because an agent sends its conversation again with every request, and the system text, which rollouts of different tasks
share with the tools before it. The server has only what ends at a mark. The API has no seed: `Sampling.seed` is not
sent.
"""

from collections.abc import Collection, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from ludus.images import decode_url, split_parts
from ludus.models.openai import encode_body, sanitize_arguments, sanitize_name
from ludus.models.reply_pieces import Piece
from ludus.models.server import BadReply, Endpoint, ModelServer, Price, make_endpoints, make_usage
from ludus.models.server_pool import ServerPool, Tell, Timing
from ludus.models.settings import AnthropicSettings
from ludus.types import (
    RESPONSE_FORMAT,
    Call,
    Completion,
    Finish,
    JsonObject,
    Message,
    Reasoning,
    Sampling,
    ToolSpec,
    Usage,
)

DEFAULT_MAX_TOKENS = 8192
"""The API requires a limit. This one is used if the sampling sets none."""


class AnthropicModel(ServerPool):
    """A model behind the Messages API, at one or several servers. Without endpoints, the servers of the settings are
    reached without a key."""

    def __init__(
        self,
        settings: AnthropicSettings,
        *endpoints: Endpoint,
        timing: Timing = Timing(),
        tell: Tell | None = None,
    ) -> None:
        servers = [make_anthropic_server(settings, endpoint) for endpoint in endpoints or make_endpoints(settings)]
        super().__init__(servers, settings.retry, timing, tell)


def make_anthropic_server(settings: AnthropicSettings, endpoint: Endpoint) -> ModelServer:
    """One server of the model."""
    headers = {"Content-Type": "application/json", "anthropic-version": settings.version}
    if endpoint.api_key:
        headers["x-api-key"] = endpoint.api_key
    return ModelServer(
        settings,
        endpoint,
        url=f"{endpoint.base_url.rstrip('/')}/v1/messages",
        headers=headers,
        encode=lambda messages, tools, sampling: build_request(
            messages, tools, sampling, settings.name, cache=settings.cache, omit=settings.omit
        ),
        parse=lambda data: parse_reply(data, settings.price),
        streaming=(
            lambda messages, tools, sampling: build_request(
                messages, tools, sampling, settings.name, cache=settings.cache, omit=settings.omit, stream=True
            ),
            lambda _: MessageStreamReader(settings.price),
        ),
    )


# ---- requests -----------------------------------------------------------------------------------------------------


def build_request(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    sampling: Sampling,
    model: str,
    *,
    cache: bool = True,
    omit: Sequence[str] = (),
    stream: bool = False,
) -> bytes:
    """The JSON body of a Messages request. Fields of `sampling.extra` replace all others."""
    max_tokens = DEFAULT_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
    turns = _write_turns(messages, {tool.name for tool in tools})
    if cache and turns and turns[-1]["content"][-1]["type"] not in _THINKING:
        turns[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    body: JsonObject = {"model": model, "max_tokens": max_tokens, "messages": turns}
    system = "\n\n".join(m.content for m in messages if m.role == "system" and m.content)
    if system:
        body["system"] = [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}] if cache else system
    if tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters} for tool in tools
        ]
        if sampling.tool_choice is not None:
            body["tool_choice"] = {"type": "any" if sampling.tool_choice == "required" else sampling.tool_choice}
    if sampling.temperature is not None:
        body["temperature"] = sampling.temperature
    if sampling.top_p is not None:
        body["top_p"] = sampling.top_p
    if sampling.stop:
        body["stop_sequences"] = sampling.stop
    if stream:
        body["stream"] = True
    extra = dict(sampling.extra)
    form = extra.pop(RESPONSE_FORMAT, None)
    if form is not None:
        body |= _write_format(form)
        sampling = msgspec.structs.replace(sampling, extra=extra)
    return encode_body(body, sampling, omit)


def _write_format(form: JsonObject) -> JsonObject:
    """The form of the reply. The API has no JSON without a schema: any object is allowed then."""
    if form.get("type") == "text":
        return {}
    schema = form.get("json_schema", {}).get("schema", {"type": "object"})
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def _write_turns(messages: Sequence[Message], offered: Collection[str]) -> list[JsonObject]:
    """The conversation as alternating messages of blocks. Empty messages are left out, as the API requires."""
    turns: list[JsonObject] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _write_blocks(message, offered)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return turns


def _write_blocks(message: Message, offered: Collection[str]) -> list[JsonObject]:
    if message.role == "tool":
        content = _write_parts(message) if message.images else message.content
        return [{"type": "tool_result", "tool_use_id": message.call_id, "content": content}]
    thinking = _restore_thinking(message.reasoning)
    if any(block.get("type") not in _THINKING for block in thinking):
        return thinking
    text = _write_parts(message)
    calls = [
        {
            "type": "tool_use",
            "id": call.id,
            "name": sanitize_name(call.name, offered),
            "input": msgspec.Raw(sanitize_arguments(call.arguments)),
        }
        for call in message.calls
    ]
    return [*thinking, *text, *calls]


def _write_parts(message: Message) -> list[JsonObject]:
    """The text and the pictures of a message."""
    return [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "source": _write_source(part.url)}
        for part in split_parts(message)
    ]


def _write_source(url: str) -> JsonObject:
    image = decode_url(url)
    if image is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": image.media_type, "data": image.data}


_THINKING = ("thinking", "redacted_thinking")


def _restore_thinking(reasoning: Reasoning | None) -> list[JsonObject]:
    if reasoning is None or reasoning.source != "thinking" or not reasoning.raw:
        return []
    return [dict(block) for block in reasoning.raw]


# ---- replies ------------------------------------------------------------------------------------------------------


class _Block(Struct, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class _Usage(Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _Reply(Struct, gc=False):
    content: list[msgspec.Raw] | None = None
    stop_reason: str | None = None
    usage: _Usage | None = None
    model: str = ""


_REPLY = msgspec.json.Decoder(_Reply)
_BLOCK = msgspec.json.Decoder(_Block)
_FINISH = {
    "end_turn": Finish.STOP,
    "stop_sequence": Finish.STOP,
    "tool_use": Finish.CALLS,
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "refusal": Finish.FILTER,
}


def parse_reply(data: bytes, price: Price = Price()) -> Completion:
    """Read a Messages reply.

    Raises:
        ValueError: it is not a reply; `BadReply` if it is JSON of another kind.
    """
    reply = _REPLY.decode(data)
    if reply.content is None:
        raise BadReply("it holds no content")
    return _make_completion(reply.content, reply, price)


def _make_completion(content: Sequence[msgspec.Raw], reply: _Reply, price: Price) -> Completion:
    blocks = [_BLOCK.decode(raw) for raw in content]
    calls = tuple(Call(b.id, b.name, bytes(b.input).decode()) for b in blocks if b.type == "tool_use")
    text = "".join(block.text for block in blocks if block.type == "text")
    message = Message("assistant", text, calls, reasoning=_read_reasoning(blocks, content))
    finish = _FINISH.get(reply.stop_reason or "", Finish.CALLS if calls else Finish.OTHER)
    return Completion(message, finish, _read_usage(reply.usage, price), reply.model)


def _read_reasoning(blocks: Sequence[_Block], raw: Sequence[msgspec.Raw]) -> Reasoning | None:
    """The thinking and its blocks. If there are other blocks before or between them, all blocks are kept: their order
    is signed too."""
    places = [index for index, block in enumerate(blocks) if block.type in _THINKING]
    if not places:
        return None
    leads = places == list(range(len(places)))
    kept = [msgspec.json.decode(item) for item in (raw[: len(places)] if leads else raw)]
    return Reasoning("\n".join(b.thinking for b in blocks if b.thinking), "thinking", kept)


def _read_usage(wire: _Usage | None, price: Price) -> Usage:
    """The API counts cached tokens separately. Here they are part of the prompt."""
    if wire is None:
        return Usage()
    written, cached = wire.cache_creation_input_tokens or 0, wire.cache_read_input_tokens or 0
    return make_usage(price, (wire.input_tokens or 0) + written + cached, wire.output_tokens or 0, cached, written)


# ---- streams ------------------------------------------------------------------------------------------------------


class _StreamDelta(Struct, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: str | None = None


class _StreamEvent(Struct, gc=False):
    type: str = ""
    index: int = 0
    message: _Reply | None = None
    content_block: JsonObject | None = None
    delta: _StreamDelta | None = None
    usage: _Usage | None = None
    error: Any = None


_EVENT = msgspec.json.Decoder(_StreamEvent)
_FILLED = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""The field of a block that a delta adds to."""


class MessageStreamReader:
    """Reads a Messages reply from the events of a stream: blocks come one after the other, each in pieces."""

    def __init__(self, price: Price) -> None:
        self._price = price
        self._blocks: dict[int, JsonObject] = {}
        self._inputs: dict[int, list[str]] = {}
        """The written arguments of each call."""
        self._reply = _Reply()
        self._ended = False
        self.has_sampled: bool = False

    def take(self, event: bytes) -> list[Piece]:
        value = _EVENT.decode(event)
        match value.type:
            case "message_start" if value.message is not None:
                self._reply = value.message
            case "content_block_start" if value.content_block is not None:
                return self._start_block(value.index, value.content_block)
            case "content_block_delta" if value.delta is not None:
                return self._fill_block(value.index, value.delta)
            case "message_delta" if value.delta is not None:
                self._reply.stop_reason = value.delta.stop_reason
                self._reply.usage = _join_usage(self._reply.usage, value.usage)
            case "message_stop":
                self._ended = True
            case "error":
                raise make_error_reply(value.error)
            case _:
                pass
        return []

    def finish(self, *, cut: bool = False) -> Completion:
        if not self._ended and not cut:
            raise BadReply("the stream ended before the reply did")
        content = [self._write_block(index, block) for index, block in sorted(self._blocks.items())]
        return _make_completion(content, self._reply, self._price)

    def _start_block(self, index: int, block: JsonObject) -> list[Piece]:
        self._blocks[index] = block
        self.has_sampled = True
        if block.get("type") != "tool_use":
            again = (
                block.get("type") == "thinking" and sum(b.get("type") == "thinking" for b in self._blocks.values()) > 1
            )
            return [Piece(thought="\n")] if again else []
        number = len(self._inputs)
        self._inputs[index] = []
        return [Piece(call=number, id=str(block.get("id", "")), name=str(block.get("name", "")))]

    def _fill_block(self, index: int, delta: _StreamDelta) -> list[Piece]:
        block = self._blocks.setdefault(index, {"type": "text", "text": ""})
        if delta.type == "input_json_delta":
            if index not in self._inputs:
                return []
            self._inputs[index].append(delta.partial_json)
            return [Piece(call=list(self._inputs).index(index), arguments=delta.partial_json)]
        name = _FILLED.get(delta.type)
        if name is None:
            return []
        added: str = getattr(delta, name)
        block[name] = str(block.get(name) or "") + added
        return [Piece(added)] if name == "text" else [Piece(thought=added)] if name == "thinking" else []

    def _write_block(self, index: int, block: JsonObject) -> msgspec.Raw:
        written = "".join(self._inputs.get(index, ()))
        if block.get("type") == "tool_use" and written:
            return msgspec.Raw(msgspec.json.encode({**block, "input": msgspec.Raw(sanitize_arguments(written))}))
        return msgspec.Raw(msgspec.json.encode(block))


def make_error_reply(error: Any) -> BadReply:
    """The error of an event. The API names its statuses."""
    fields: JsonObject = cast(JsonObject, error) if isinstance(error, dict) else {}
    statuses = {"overloaded_error": 529, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504}
    return BadReply(str(fields.get("message") or "an error"), statuses.get(str(fields.get("type"))))


def _join_usage(start: _Usage | None, end: _Usage | None) -> _Usage | None:
    """The counts at the end, with those of the start where the end has none."""
    if start is None or end is None:
        return end or start
    return _Usage(
        *(later if later is not None else first for first, later in zip(_list(start), _list(end), strict=True))
    )


def _list(usage: _Usage) -> tuple[int | None, ...]:
    return msgspec.structs.astuple(usage)
