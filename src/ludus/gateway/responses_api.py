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

from ludus.gateway.chat_api import NO_PARAMETERS, read_choice, read_limit
from ludus.gateway.chat_api import write_error as write_error  # the same in both APIs
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
from ludus.types import Call, Completion, Finish, JsonObject, Message, Reasoning, Sampling, ToolSpec

# ---- requests -----------------------------------------------------------------------------------------------------


class _Reasoning(Struct, gc=False):
    effort: str | None = None


class _Request(Struct, gc=False):
    input: str | list[JsonObject]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Raw = Raw()
    tool_choice: Any = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    reasoning: _Reasoning | None = None


_REQUEST = msgspec.json.Decoder(_Request)
_TOOLS = msgspec.json.Decoder(list[JsonObject] | None)


def read(body: bytes, cache: ReadCache) -> ParsedRequest:
    """Parse a request.

    Raises:
        BadRequest: it is not a valid request.
    """
    wire = decode(_REQUEST, body)
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
            extra=drop_unset(reasoning_effort=wire.reasoning.effort if wire.reasoning else None),
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
        ),
        ignored=offered.ignored,
    )


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
    description = str(tool.get("description") or "")
    form: JsonObject = tool.get("format") or {}
    if form.get("definition"):
        description += f"\n\nThe input follows this {form.get('syntax', '')} grammar:\n{form['definition']}"
    parameters: JsonObject = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The whole input, as plain text."}},
        "required": ["input"],
    }
    return ToolSpec(_read_name(tool, where), description, parameters)


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
                arguments = msgspec.json.encode({"input": str(item.get("input") or "")}).decode()
                self._get_reply().calls.append(Call(_read_call_id(item), str(item.get("name", "")), arguments))
            case "local_shell_call":
                self._get_reply().calls.append(Call(_read_call_id(item), _SHELL.name, _read_shell_call(item)))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                self._add(Message("tool", _read_output(item.get("output"), where), call_id=_read_call_id(item)))
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
        text = read_text(item.get("content"), f"{where}.content", ("input_text", "output_text", "text"))
        match item.get("role"):
            case "assistant":
                if self._reply is not None and (self._reply.text is not None or self._reply.calls):
                    self.flush()
                self._get_reply().text = text
            case "system" | "developer" if not self.messages and self._reply is None:
                self.system.append(text)
            case "user" | "system" | "developer":
                self._add(Message("user", text))
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


def _read_output(output: Any, where: str) -> str:
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return read_text(cast(Any, output), f"{where}.output", ("input_text", "output_text", "text"))
    return "" if output is None else msgspec.json.encode(output).decode()


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
    completion = answer.completions[0]
    cut = _CUT.get(completion.finish) if done else None
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
        "output": items if done else [],
        "parallel_tool_calls": True,
        "previous_response_id": echo.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": echo.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": echo.get("tool_choice", "auto"),
        "tools": echo.get("tools", []),
        "top_p": echo.get("top_p"),
        "truncation": "disabled",
        "usage": _write_usage(completion) if done else None,
        "user": None,
        "metadata": {},
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


def _write_items(answer: Answer) -> list[JsonObject]:
    """A reply as items: reasoning, text, calls."""
    message = answer.completions[0].message
    items: list[JsonObject] = []
    if message.reasoning is not None and message.reasoning.text:
        summary = [{"type": "summary_text", "text": message.reasoning.text}]
        items.append({"type": "reasoning", "id": f"rs_{answer.id}", "summary": summary})
    if message.content or not message.calls:
        text: JsonObject = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        head: JsonObject = {"type": "message", "id": f"msg_{answer.id}", "status": "completed", "role": "assistant"}
        items.append(head | {"content": [text]})
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
            "input": _read_input(call),
        }
    if kind == "local_shell":
        fields = _read_fields(call)
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


def _read_fields(call: Call) -> JsonObject:
    try:
        value = msgspec.json.decode(call.arguments)
    except (ValueError, RecursionError):
        return {}
    return cast(JsonObject, value) if isinstance(value, dict) else {}


def _read_input(call: Call) -> str:
    """The input text of a custom tool. If the arguments have another form, they are the input."""
    value = _read_fields(call).get("input")
    return value if isinstance(value, str) else call.arguments


def stream(answer: Answer) -> bytes:
    events: list[bytes] = []

    def add(kind: str, **fields: Any) -> None:
        events.append(write_event(_encode({"type": kind, "sequence_number": len(events), **fields}), kind))

    start = _write_response(answer, (), done=False)
    add("response.created", response=start)
    add("response.in_progress", response=start)
    items = _write_items(answer)
    for index, item in enumerate(items):
        where = {"output_index": index, "item_id": item["id"]}
        add("response.output_item.added", output_index=index, item=_make_empty(item))
        for kind, fields in _split_item(item):
            add(kind, **where, **fields)
        add("response.output_item.done", output_index=index, item=item)
    response = _write_response(answer, items, done=True)
    add(f"response.{response['status']}", response=response)
    return b"".join(events)


def _make_empty(item: JsonObject) -> JsonObject:
    """The item before its deltas."""
    blank: JsonObject = {"content": [], "arguments": "", "input": "", "summary": []}
    start = {key: blank.get(key, value) for key, value in item.items()}
    return start | {"status": "in_progress"} if "status" in item else start


def _split_item(item: JsonObject) -> list[tuple[str, JsonObject]]:
    """The deltas that fill an item."""
    match item["type"]:
        case "message":
            text, place = item["content"][0], {"content_index": 0}
            return [
                ("response.content_part.added", {**place, "part": {**text, "text": ""}}),
                ("response.output_text.delta", {**place, "delta": text["text"], "logprobs": []}),
                ("response.output_text.done", {**place, "text": text["text"], "logprobs": []}),
                ("response.content_part.done", {**place, "part": text}),
            ]
        case "reasoning":
            part, place = item["summary"][0], {"summary_index": 0}
            return [
                ("response.reasoning_summary_part.added", {**place, "part": {**part, "text": ""}}),
                ("response.reasoning_summary_text.delta", {**place, "delta": part["text"]}),
                ("response.reasoning_summary_text.done", {**place, "text": part["text"]}),
                ("response.reasoning_summary_part.done", {**place, "part": part}),
            ]
        case "function_call":
            written = item["arguments"]
            return [
                ("response.function_call_arguments.delta", {"delta": written}),
                ("response.function_call_arguments.done", {"arguments": written, "name": item["name"]}),
            ]
        case "custom_tool_call":
            return [
                ("response.custom_tool_call_input.delta", {"delta": item["input"]}),
                ("response.custom_tool_call_input.done", {"input": item["input"]}),
            ]
        case _:
            return []


# ---- errors -------------------------------------------------------------------------------------------------------

_CODES = {"budget": "insufficient_quota", "context": "context_length_exceeded", "request": "invalid_prompt"}


def write_late_error(error: ErrorReply) -> bytes:
    code = _CODES.get(error.kind, "server_error")
    response: JsonObject = {"id": "resp_failed", "object": "response", "status": "failed", "output": [], "usage": None}
    failed = response | {"error": {"code": code, "message": error.message}}
    kind = "response.failed"
    return write_event(_encode({"type": kind, "sequence_number": 0, "response": failed}), kind)


RESPONSES = Dialect("responses", read, write, stream, write_error, write_late_error, b": waiting for the model\n\n")
