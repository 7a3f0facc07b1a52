"""OpenAI's responses API, as Codex and the agents SDK use it.

A conversation is a list of items. One reply of the model (reasoning, text, calls) comes back as several items, which
are joined into one message. Instructions and the developer messages at the start are one system text. Later developer
messages become user messages, because most chat templates allow no system text there.

Tools that are not plain functions are offered as functions, and their calls are written in their own form: `custom`
tools take one text, `local_shell` takes a command, and tools of a `namespace` get its name as prefix. Tools that the
provider would run itself are left out and listed in `ParsedRequest.ignored`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Raw, Struct

from ludus.chat_form import decode_arguments
from ludus.gateway.chat_api import NO_PARAMETERS, read_choice, read_limit
from ludus.gateway.chat_api import write_error as write_error  # the same in both APIs
from ludus.gateway.custom_tools import (
    make_custom_tool,
    read_custom_input,
    write_custom_arguments,
)
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
from ludus.types import Call, Completion, Finish, Image, JsonObject, Message, Reasoning, Sampling, ToolSpec

# ---- requests -----------------------------------------------------------------------------------------------------


class _Reasoning(Struct, gc=False):
    effort: str | None = None


class _Request(Struct, gc=False, forbid_unknown_fields=True):
    input: str | list[JsonObject]
    model: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Raw = Raw()
    tool_choice: Any = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: _Reasoning | None = None
    text: JsonObject | None = None
    top_logprobs: int | None = None
    parallel_tool_calls: bool | None = None
    metadata: JsonObject | None = None
    include: list[str] | None = None
    background: bool | None = None
    conversation: Any = None
    context_management: Any = None
    client_metadata: Any = None
    max_tool_calls: Any = None
    prompt: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    stream_options: Any = None
    truncation: Any = None
    user: Any = None


class _LenientRequest(_Request, gc=False, forbid_unknown_fields=False):
    """The same with fields that the API does not have."""


RULES = FieldRules(
    refused={
        "conversation": "conversations are not stored; send the items, or previous_response_id",
        "prompt": "there are no stored prompts; send the text in 'instructions' and 'input'",
    },
    ignored=(
        "client_metadata", "context_management", "max_tool_calls", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "service_tier", "store", "stream_options", "truncation", "user",
    ),
)  # fmt: skip
_REQUEST = msgspec.json.Decoder(_Request)
_LENIENT = msgspec.json.Decoder(_LenientRequest)
_TOOLS = msgspec.json.Decoder(list[JsonObject] | None)


def read(body: bytes, cache: ReadCache) -> ParsedRequest:
    """Parse a request.

    Raises:
        BadRequest: it is not a valid request.
    """
    wire, unknown = decode_known(_REQUEST, _LENIENT, body)
    if wire.background:
        raise BadRequest("background: responses are sampled while the client waits; send 'stream': true for a long one")
    dropped = RULES.apply(wire)
    offered = cache.get(_read_tools, bytes(wire.tools)) if wire.tools else _OfferedTools()
    choice, specs = read_choice(_simplify_choice(wire.tool_choice), offered.specs)
    messages = _read_conversation(wire.input, wire.instructions or "")
    if not messages:
        raise BadRequest("input: at least one message is needed")
    return ParsedRequest(
        messages,
        specs,
        Sampling(
            temperature=wire.temperature,
            top_p=wire.top_p,
            max_tokens=read_limit(wire.max_output_tokens, "max_output_tokens"),
            tool_choice=choice,
            extra=drop_unset(
                reasoning_effort=wire.reasoning.effort if wire.reasoning else None,
                response_format=_read_format(wire.text or {}),
            ),
        ),
        stream=bool(wire.stream),
        kinds=offered.kinds,
        previous=(wire.previous_response_id or "").removeprefix("resp_"),
        echo=drop_unset(
            instructions=wire.instructions,
            previous_response_id=wire.previous_response_id,
            max_output_tokens=wire.max_output_tokens,
            temperature=wire.temperature,
            top_p=wire.top_p,
            tools=wire.tools or None,
            tool_choice=wire.tool_choice,
            parallel_tool_calls=wire.parallel_tool_calls,
            metadata=wire.metadata,
            text=wire.text,
        ),
        ignored=(*dropped, *_list_ignored(wire), *unknown, *offered.ignored),
        parallel_calls=wire.parallel_tool_calls,
        logprobs=(wire.top_logprobs or 0) if _LOGPROBS in (wire.include or ()) or wire.top_logprobs else None,
    )


_TEXT_PARTS = ("input_text", "output_text", "text")
_LOGPROBS = "message.output_text.logprobs"


def _list_ignored(wire: _Request) -> list[str]:
    """What is left out of fields that are otherwise honoured."""
    found = [f"include: {name}" for name in wire.include or () if name != _LOGPROBS]
    return found + (["text.verbosity"] if (wire.text or {}).get("verbosity") else [])


def _read_format(text: JsonObject) -> JsonObject | None:
    """The form of the reply, as the chat API writes it; None for plain text."""
    form: JsonObject = text.get("format") or {}
    if form.get("type") == "json_schema":
        return {"type": "json_schema", "json_schema": {key: form[key] for key in form if key != "type"}}
    return form if form.get("type") == "json_object" else None


def _simplify_choice(choice: Any) -> Any:
    """`allowed_tools` becomes its mode: the list of allowed tools is not enforced."""
    fields = cast(JsonObject, choice) if isinstance(choice, dict) else {}
    return fields.get("mode", "auto") if fields.get("type") == "allowed_tools" else cast(Any, choice)


class _OfferedTools(NamedTuple):
    specs: tuple[ToolSpec, ...] = ()
    kinds: dict[str, str] = {}  # noqa: RUF012  # never modified
    ignored: tuple[str, ...] = ()


_SHELL = ToolSpec(
    "local_shell",
    "Runs a command and returns what it printed.",
    {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."},
            "workdir": {"type": "string", "description": "The folder to run it in."},
            "timeout_ms": {"type": "number", "description": "The time limit in milliseconds."},
        },
        "required": ["command"],
    },
)


def _read_tools(raw: bytes) -> _OfferedTools:
    specs: list[ToolSpec] = []
    kinds: dict[str, str] = {}
    ignored: list[str] = []
    for index, tool in enumerate(decode(_TOOLS, raw, "tools") or ()):
        where = f"tools[{index}]"
        kind: Any = tool.get("type")
        match kind:
            case "function":
                specs.append(_read_function(tool, where))
            case "custom":
                specs.append(_read_custom(tool, where))
                kinds[specs[-1].name] = "custom"
            case "local_shell":
                specs.append(_SHELL)
                kinds[_SHELL.name] = "local_shell"
            case "namespace":
                space = str(tool.get("name", ""))
                for inner in cast(list[JsonObject], tool.get("tools") or []):
                    plain = _read_function(inner, f"{where}.tools")
                    specs.append(msgspec.structs.replace(plain, name=_join_name(space, plain.name)))
                    kinds[specs[-1].name] = f"namespace:{space}"
            case _:
                ignored.append(f"tools: {kind}")
    return _OfferedTools(tuple(specs), kinds, tuple(ignored))


def _read_function(tool: JsonObject, where: str) -> ToolSpec:
    return ToolSpec(
        _read_name(tool, where), str(tool.get("description") or ""), tool.get("parameters") or NO_PARAMETERS
    )


def _read_custom(tool: JsonObject, where: str) -> ToolSpec:
    return make_custom_tool(_read_name(tool, where), str(tool.get("description") or ""), tool.get("format") or {})


def _read_name(tool: JsonObject, where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"{where}.name: expected the tool's name")
    return name


def _join_name(space: str, name: str) -> str:
    return f"{space}{name}" if space.endswith("__") else f"{space}__{name}"


@dataclass
class _Reply:
    """A reply of the model, built from the items read so far."""

    thoughts: list[str] = field(default_factory=list[str])
    text: str | None = None
    calls: list[Call] = field(default_factory=list[Call])

    def make_message(self) -> Message:
        thinking = "\n".join(self.thoughts)
        reasoning = Reasoning(thinking, "reasoning_content") if thinking else None
        return Message("assistant", self.text or "", tuple(self.calls), reasoning=reasoning)


class _Reader:
    """Joins items into messages."""

    def __init__(self) -> None:
        self.system: list[str] = []
        self.messages: list[Message] = []
        self._reply: _Reply | None = None

    def take_item(self, item: JsonObject, where: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._take_message(item, where)
            case "reasoning":
                if self._reply is not None and (self._reply.text is not None or self._reply.calls):
                    self.flush()
                self._get_reply().thoughts += _read_thoughts(item)
            case "function_call":
                space = item.get("namespace")
                name = str(item.get("name", ""))
                full_name = _join_name(str(space), name) if space else name
                self._get_reply().calls.append(Call(_read_call_id(item), full_name, str(item.get("arguments") or "")))
            case "custom_tool_call":
                arguments = write_custom_arguments(str(item.get("input") or ""))
                self._get_reply().calls.append(Call(_read_call_id(item), str(item.get("name", "")), arguments))
            case "local_shell_call":
                self._get_reply().calls.append(Call(_read_call_id(item), _SHELL.name, _read_shell_call(item)))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                text, images = _read_output(item.get("output"), where)
                self._add(Message("tool", text, call_id=_read_call_id(item), images=images))
            case "item_reference":
                raise BadRequest(f"{where}: item references are not supported; send the items themselves")
            case other:
                raise BadRequest(f"{where}.type: '{other}' cannot be sent to this model")

    def flush(self) -> None:
        if self._reply is not None:
            self.messages.append(self._reply.make_message())
            self._reply = None

    def _get_reply(self) -> _Reply:
        if self._reply is None:
            self._reply = _Reply()
        return self._reply

    def _add(self, message: Message) -> None:
        self.flush()
        self.messages.append(message)

    def _take_message(self, item: JsonObject, where: str) -> None:
        text, images = read_content(item.get("content"), f"{where}.content", _TEXT_PARTS)
        if images and item.get("role") != "user":
            raise BadRequest(f"{where}.content: only messages of users and results of tools may have pictures")
        match item.get("role"):
            case "assistant":
                # Only results of its calls can follow a reply with calls. Text there belongs to the reply.
                if self._reply is not None and self._reply.text is not None and not self._reply.calls:
                    self.flush()
                reply = self._get_reply()
                reply.text = (reply.text or "") + text
            case "system" | "developer" if not self.messages and self._reply is None:
                self.system.append(text)
            case "user" | "system" | "developer":
                self._add(Message("user", text, images=images))
            case other:
                raise BadRequest(f"{where}.role: '{other}' is none of user, assistant, system, developer")


def _read_conversation(items: str | list[JsonObject], instructions: str) -> list[Message]:
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    reader = _Reader()
    if instructions:
        reader.system.append(instructions)
    for index, item in enumerate(items):
        reader.take_item(item, f"input[{index}]")
    reader.flush()
    system = [Message("system", "\n\n".join(reader.system))] if reader.system else []
    return [*system, *reader.messages]


def _read_call_id(item: JsonObject) -> str:
    return str(item.get("call_id") or item.get("id") or "")


def _read_thoughts(item: JsonObject) -> list[str]:
    """The readable texts of a reasoning item."""
    parts: list[JsonObject] = [*(item.get("summary") or ()), *(item.get("content") or ())]
    return [str(part["text"]) for part in parts if part.get("text")]


def _read_output(output: Any, where: str) -> tuple[str, tuple[Image, ...]]:
    if output is None or isinstance(output, str | list):
        return read_content(cast(Any, output), f"{where}.output", _TEXT_PARTS)
    return msgspec.json.encode(output).decode(), ()


def _read_shell_call(item: JsonObject) -> str:
    action: JsonObject = item.get("action") or {}
    fields = drop_unset(
        command=action.get("command"), workdir=action.get("working_directory"), timeout_ms=action.get("timeout_ms")
    )
    return msgspec.json.encode(fields).decode()


# ---- replies ------------------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_CUT = {Finish.LENGTH: "max_output_tokens", Finish.FILTER: "content_filter"}


def write(answer: Answer) -> bytes:
    return _encode(_write_response(answer, _write_items(answer), done=True))


def _write_response(answer: Answer, items: Sequence[JsonObject], *, done: bool) -> JsonObject:
    completion = answer.completions[0] if done else None
    cut = _CUT.get(completion.finish) if completion is not None else None
    status = "in_progress" if not done else "incomplete" if cut else "completed"
    echo = answer.request.echo
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": {"reason": cut} if cut else None,
        "instructions": echo.get("instructions"),
        "max_output_tokens": echo.get("max_output_tokens"),
        "model": answer.model,
        "output": items,
        "parallel_tool_calls": echo.get("parallel_tool_calls", True),
        "previous_response_id": echo.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": echo.get("temperature"),
        "text": {"format": {"type": "text"}, **echo.get("text", {})},
        "tool_choice": echo.get("tool_choice", "auto"),
        "tools": echo.get("tools", []),
        "top_p": echo.get("top_p"),
        "truncation": "disabled",
        "usage": None if completion is None else _write_usage(completion),
        "user": None,
        "metadata": echo.get("metadata", {}),
    }


def _write_usage(completion: Completion) -> JsonObject:
    spent = completion.usage
    return {
        "input_tokens": spent.prompt_tokens,
        "input_tokens_details": {"cached_tokens": spent.cached_tokens},
        "output_tokens": spent.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.tokens,
    }


def write_count(tokens: int) -> bytes:
    return _encode({"object": "response.input_tokens", "input_tokens": tokens})


def _write_thought(text: str, name: str) -> JsonObject:
    return {"type": "reasoning", "id": f"rs_{name}", "summary": [{"type": "summary_text", "text": text}]}


def _write_text(text: str, name: str, logprobs: list[Any] | None = None) -> JsonObject:
    part: JsonObject = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}
    head: JsonObject = {"type": "message", "id": f"msg_{name}", "status": "completed", "role": "assistant"}
    return head | {"content": [part]}


def _write_items(answer: Answer) -> list[JsonObject]:
    """A reply as items: reasoning, text, calls."""
    message = answer.completions[0].message
    items: list[JsonObject] = []
    if message.reasoning is not None and message.reasoning.text:
        items.append(_write_thought(message.reasoning.text, answer.id))
    if message.content or not message.calls:
        items.append(_write_text(message.content, answer.id, answer.logprobs[0] if answer.logprobs else None))
    for number, call in enumerate(message.calls):
        items.append(_write_call(call, answer.request.kinds.get(call.name, ""), f"{answer.id}_{number}"))
    return items


def _write_call(call: Call, kind: str, name: str) -> JsonObject:
    common: JsonObject = {"call_id": call.id, "status": "completed"}
    if kind == "custom":
        return {
            "type": "custom_tool_call",
            "id": f"ctc_{name}",
            **common,
            "name": call.name,
            "input": read_custom_input(call),
        }
    if kind == "local_shell":
        fields = decode_arguments(call.arguments) or {}
        action: JsonObject = {
            "type": "exec",
            "command": fields.get("command", []),
            "timeout_ms": fields.get("timeout_ms"),
            "working_directory": fields.get("workdir"),
            "env": {},
        }
        return {"type": "local_shell_call", "id": f"lsh_{name}", **common, "action": action}
    item = {"type": "function_call", "id": f"fc_{name}", **common, "name": call.name, "arguments": call.arguments}
    if kind.startswith("namespace:"):
        space = kind.removeprefix("namespace:")
        item |= {"namespace": space, "name": call.name.removeprefix(_join_name(space, ""))}
    return item


@dataclass
class _OpenItem:
    """An item of a stream that is not complete."""

    kind: str
    """`message`, `reasoning`, or `call`."""
    name: str
    """The end of its id."""
    parts: list[str] = field(default_factory=list[str])
    """Its text, or the arguments of the call."""
    call: Piece = Piece()
    """The first piece of the call."""
    announced: bool = False
    """Whether its beginning was written. Calls that are no plain functions are written when they are whole."""


class ResponseStream(StreamWriter):
    """Writes items, one after the other. Every event has a number."""

    overlap = False

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._number = 0
        self._items: list[JsonObject] = []
        """The items that are complete."""
        self._open: _OpenItem | None = None

    def start(self) -> bytes:
        response = _write_response(self.answer, (), done=False)
        created = self._write("response.created", response=response)
        return created + self._write("response.in_progress", response=response)

    def ping(self) -> bytes:
        return self._write("response.in_progress", response=_write_response(self.answer, (), done=False))

    def fail(self, error: ErrorReply) -> bytes:
        response = _write_response(self.answer, self._items, done=False)
        problem = {"code": _CODES.get(error.kind, "server_error"), "message": error.message}
        return self._write("response.failed", response=response | {"status": "failed", "error": problem})

    def _write(self, kind: str, **fields: Any) -> bytes:
        event = write_event(_encode({"type": kind, "sequence_number": self._number, **fields}), kind)
        self._number += 1
        return event

    def _add(self, index: int, piece: Piece, out: list[bytes]) -> None:
        if piece.text:
            self._enter("message", out).parts.append(piece.text)
            self._fill("response.output_text.delta", out, content_index=0, delta=piece.text, logprobs=[])
        elif piece.thought:
            self._enter("reasoning", out).parts.append(piece.thought)
            self._fill("response.reasoning_summary_text.delta", out, summary_index=0, delta=piece.thought)
        else:
            self._add_call(piece, out)

    def _add_call(self, piece: Piece, out: list[bytes]) -> None:
        if piece.name:
            self._enter("call", out, piece)
        item = self._open
        if item is None or item.call.call != piece.call:
            return
        item.parts.append(piece.arguments)
        if item.announced and piece.arguments:
            self._fill("response.function_call_arguments.delta", out, delta=piece.arguments)

    def _enter(self, kind: str, out: list[bytes], call: Piece = Piece()) -> _OpenItem:
        """The open item of this kind. A new one is announced."""
        if self._open is not None and self._open.kind == kind and kind != "call":
            return self._open
        self._leave(out)
        count = sum(item["type"] == kind for item in self._items)
        name = f"{self.answer.id}_{call.call}" if kind == "call" else self.answer.id + (f"_{count}" if count else "")
        item = self._open = _OpenItem(kind, name, call=call)
        item.announced = self.answer.request.kinds.get(call.name, "") not in ("custom", "local_shell")
        if item.announced:
            self._announce(self._make_item(item, ""), out)
        return item

    def _announce(self, item: JsonObject, out: list[bytes]) -> None:
        place = len(self._items)
        out.append(self._write("response.output_item.added", output_index=place, item=_make_empty(item)))
        for kind, fields in _list_openings(item):
            out.append(self._write(kind, output_index=place, item_id=item["id"], **fields))

    def _fill(self, kind: str, out: list[bytes], **fields: Any) -> None:
        if self._open is not None:
            name = self._make_item(self._open, "")["id"]
            out.append(self._write(kind, output_index=len(self._items), item_id=name, **fields))

    def _leave(self, out: list[bytes], logprobs: list[Any] | None = None) -> None:
        """Complete the open item."""
        if self._open is None:
            return
        item = self._make_item(self._open, "".join(self._open.parts), logprobs)
        if not self._open.announced:
            self._announce(item, out)
        place = len(self._items)
        for kind, fields in _list_endings(item):
            out.append(self._write(kind, output_index=place, item_id=item["id"], **fields))
        out.append(self._write("response.output_item.done", output_index=place, item=item))
        self._items.append(item)
        self._open = None

    def _make_item(self, item: _OpenItem, text: str, logprobs: list[Any] | None = None) -> JsonObject:
        if item.kind == "message":
            return _write_text(text, item.name, logprobs)
        if item.kind == "reasoning":
            return _write_thought(text, item.name)
        call = Call(item.call.id, item.call.name, text)
        return _write_call(call, self.answer.request.kinds.get(call.name, ""), item.name)

    def _end_reply(self, index: int, completion: Completion, out: list[bytes]) -> None:
        if self._open is None and not self._items:
            self._enter("message", out)
        self._leave(out, self.answer.logprobs[0] if self.answer.logprobs else None)

    def _end(self, out: list[bytes]) -> None:
        response = _write_response(self.answer, self._items, done=True)
        out.append(self._write(f"response.{response['status']}", response=response))


def _make_empty(item: JsonObject) -> JsonObject:
    """The item before its deltas."""
    blank: JsonObject = {"content": [], "arguments": "", "input": "", "summary": []}
    start = {key: blank.get(key, value) for key, value in item.items()}
    return start | {"status": "in_progress"} if "status" in item else start


def _list_openings(item: JsonObject) -> list[tuple[str, JsonObject]]:
    """The events after which an item is filled."""
    match item["type"]:
        case "message":
            return [("response.content_part.added", {"content_index": 0, "part": {**item["content"][0], "text": ""}})]
        case "reasoning":
            part = {**item["summary"][0], "text": ""}
            return [("response.reasoning_summary_part.added", {"summary_index": 0, "part": part})]
        case "custom_tool_call":
            return [("response.custom_tool_call_input.delta", {"delta": item["input"]})]
        case _:
            return []


def _list_endings(item: JsonObject) -> list[tuple[str, JsonObject]]:
    """The events that close what an item is filled with."""
    match item["type"]:
        case "message":
            text, place = item["content"][0], {"content_index": 0}
            return [
                ("response.output_text.done", {**place, "text": text["text"], "logprobs": text["logprobs"]}),
                ("response.content_part.done", {**place, "part": text}),
            ]
        case "reasoning":
            part, place = item["summary"][0], {"summary_index": 0}
            return [
                ("response.reasoning_summary_text.done", {**place, "text": part["text"]}),
                ("response.reasoning_summary_part.done", {**place, "part": part}),
            ]
        case "function_call":
            return [
                ("response.function_call_arguments.done", {"arguments": item["arguments"], "name": item["name"]}),
            ]
        case "custom_tool_call":
            return [("response.custom_tool_call_input.done", {"input": item["input"]})]
        case _:
            return []


# ---- errors -------------------------------------------------------------------------------------------------------

_CODES = {"budget": "insufficient_quota", "context": "context_length_exceeded", "request": "invalid_prompt"}


RESPONSES = Dialect("responses", read, write, ResponseStream, write_error)
