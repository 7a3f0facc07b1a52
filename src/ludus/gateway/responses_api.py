"""OpenAI's responses, as Codex and the agents SDK speak them.

A conversation is a list of items: what one reply of the model was (thoughts, words, calls) comes back as several items
and is put together again. Instructions and the developer's messages at the start are one system text; the developer's
later messages are told as the user's, because most chat templates know no system text further down.

Tools that are no plain functions are offered as functions and their calls written back in their own form: `custom`
tools take one text, `local_shell` a command, tools of a `namespace` have its name before theirs. Tools that the
provider would run itself are left out, and said to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import msgspec
from msgspec import Raw, Struct

from ludus.gateway.chat_api import NO_PARAMETERS, read_choice, read_limit
from ludus.gateway.chat_api import error as error  # the same in both APIs
from ludus.gateway.dialect import (
    Answer,
    Asked,
    BadRequest,
    Dialect,
    Known,
    Trouble,
    decode,
    event,
    given,
    text_of,
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


def read(body: bytes, known: Known) -> Asked:
    """Read a request.

    Raises:
        BadRequest: it is none.
    """
    asked = decode(_REQUEST, body)
    offered = known.get(_tools, bytes(asked.tools)) if asked.tools else _Offered()
    choice, specs = read_choice(_plain_choice(asked.tool_choice), offered.specs)
    messages = _conversation(asked.input, asked.instructions or "")
    if not messages:
        raise BadRequest("input: at least one message is needed")
    return Asked(
        messages,
        specs,
        Sampling(
            temperature=asked.temperature,
            top_p=asked.top_p,
            max_tokens=read_limit(asked.max_output_tokens, "max_output_tokens"),
            tool_choice=choice,
            extra=given(reasoning_effort=asked.reasoning.effort if asked.reasoning else None),
        ),
        stream=bool(asked.stream),
        kinds=offered.kinds,
        previous=(asked.previous_response_id or "").removeprefix("resp_"),
        echo=given(
            instructions=asked.instructions,
            previous_response_id=asked.previous_response_id,
            max_output_tokens=asked.max_output_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            tools=asked.tools or None,
            tool_choice=asked.tool_choice,
        ),
        ignored=offered.ignored,
    )


def _plain_choice(choice: Any) -> Any:
    """A choice among several allowed tools is a free choice here."""
    fields = cast(JsonObject, choice) if isinstance(choice, dict) else {}
    return fields.get("mode", "auto") if fields.get("type") == "allowed_tools" else cast(Any, choice)


class _Offered(NamedTuple):
    specs: tuple[ToolSpec, ...] = ()
    kinds: dict[str, str] = {}  # noqa: RUF012  # never changed
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


def _tools(raw: bytes) -> _Offered:
    specs: list[ToolSpec] = []
    kinds: dict[str, str] = {}
    ignored: list[str] = []
    for index, tool in enumerate(decode(_TOOLS, raw, "tools") or ()):
        where = f"tools[{index}]"
        kind: Any = tool.get("type")
        match kind:
            case "function":
                specs.append(_function(tool, where))
            case "custom":
                specs.append(_custom(tool, where))
                kinds[specs[-1].name] = "custom"
            case "local_shell":
                specs.append(_SHELL)
                kinds[_SHELL.name] = "local_shell"
            case "namespace":
                space = str(tool.get("name", ""))
                for inner in cast(list[JsonObject], tool.get("tools") or []):
                    plain = _function(inner, f"{where}.tools")
                    specs.append(msgspec.structs.replace(plain, name=_joined(space, plain.name)))
                    kinds[specs[-1].name] = f"namespace:{space}"
            case _:
                ignored.append(f"tools: {kind}")
    return _Offered(tuple(specs), kinds, tuple(ignored))


def _function(tool: JsonObject, where: str) -> ToolSpec:
    return ToolSpec(_name(tool, where), str(tool.get("description") or ""), tool.get("parameters") or NO_PARAMETERS)


def _custom(tool: JsonObject, where: str) -> ToolSpec:
    description = str(tool.get("description") or "")
    form: JsonObject = tool.get("format") or {}
    if form.get("definition"):
        description += f"\n\nThe input follows this {form.get('syntax', '')} grammar:\n{form['definition']}"
    parameters: JsonObject = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": "The whole input, as plain text."}},
        "required": ["input"],
    }
    return ToolSpec(_name(tool, where), description, parameters)


def _name(tool: JsonObject, where: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise BadRequest(f"{where}.name: expected the tool's name")
    return name


def _joined(space: str, name: str) -> str:
    return f"{space}{name}" if space.endswith("__") else f"{space}__{name}"


@dataclass
class _Reply:
    """A reply of the model, as far as its items have been seen."""

    thoughts: list[str] = field(default_factory=list[str])
    words: str | None = None
    calls: list[Call] = field(default_factory=list[Call])

    def message(self) -> Message:
        thought = "\n".join(self.thoughts)
        reasoning = Reasoning(thought, "reasoning_content") if thought else None
        return Message("assistant", self.words or "", tuple(self.calls), reasoning=reasoning)


class _Reader:
    """Puts items together into messages."""

    def __init__(self) -> None:
        self.system: list[str] = []
        self.messages: list[Message] = []
        self._reply: _Reply | None = None

    def take(self, item: JsonObject, where: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._message(item, where)
            case "reasoning":
                if self._reply is not None and (self._reply.words is not None or self._reply.calls):
                    self.flush()
                self._current().thoughts += _thoughts(item)
            case "function_call":
                space = item.get("namespace")
                name = str(item.get("name", ""))
                named = _joined(str(space), name) if space else name
                self._current().calls.append(Call(_call_id(item), named, str(item.get("arguments") or "")))
            case "custom_tool_call":
                arguments = msgspec.json.encode({"input": str(item.get("input") or "")}).decode()
                self._current().calls.append(Call(_call_id(item), str(item.get("name", "")), arguments))
            case "local_shell_call":
                self._current().calls.append(Call(_call_id(item), _SHELL.name, _shell_arguments(item)))
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                self._say(Message("tool", _output(item.get("output"), where), call_id=_call_id(item)))
            case "item_reference":
                raise BadRequest(f"{where}: references to items are not kept here; send the items themselves")
            case other:
                raise BadRequest(f"{where}.type: '{other}' cannot be sent to this model")

    def flush(self) -> None:
        if self._reply is not None:
            self.messages.append(self._reply.message())
            self._reply = None

    def _current(self) -> _Reply:
        if self._reply is None:
            self._reply = _Reply()
        return self._reply

    def _say(self, message: Message) -> None:
        self.flush()
        self.messages.append(message)

    def _message(self, item: JsonObject, where: str) -> None:
        text = text_of(item.get("content"), f"{where}.content", ("input_text", "output_text", "text"))
        match item.get("role"):
            case "assistant":
                if self._reply is not None and (self._reply.words is not None or self._reply.calls):
                    self.flush()
                self._current().words = text
            case "system" | "developer" if not self.messages and self._reply is None:
                self.system.append(text)
            case "user" | "system" | "developer":
                self._say(Message("user", text))
            case other:
                raise BadRequest(f"{where}.role: '{other}' is none of user, assistant, system, developer")


def _conversation(items: str | list[JsonObject], instructions: str) -> list[Message]:
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    reader = _Reader()
    if instructions:
        reader.system.append(instructions)
    for index, item in enumerate(items):
        reader.take(item, f"input[{index}]")
    reader.flush()
    system = [Message("system", "\n\n".join(reader.system))] if reader.system else []
    return [*system, *reader.messages]


def _call_id(item: JsonObject) -> str:
    return str(item.get("call_id") or item.get("id") or "")


def _thoughts(item: JsonObject) -> list[str]:
    """The readable part of a reasoning item."""
    parts: list[JsonObject] = [*(item.get("summary") or ()), *(item.get("content") or ())]
    return [str(part["text"]) for part in parts if part.get("text")]


def _output(output: Any, where: str) -> str:
    if isinstance(output, str):
        return output
    if isinstance(output, list):
        return text_of(cast(Any, output), f"{where}.output", ("input_text", "output_text", "text"))
    return "" if output is None else msgspec.json.encode(output).decode()


def _shell_arguments(item: JsonObject) -> str:
    action: JsonObject = item.get("action") or {}
    fields = given(
        command=action.get("command"), workdir=action.get("working_directory"), timeout_ms=action.get("timeout_ms")
    )
    return msgspec.json.encode(fields).decode()


# ---- replies ------------------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_CUT = {Finish.LENGTH: "max_output_tokens", Finish.FILTER: "content_filter"}


def write(answer: Answer) -> bytes:
    return _encode(_response(answer, _items(answer), done=True))


def _response(answer: Answer, items: Sequence[JsonObject], *, done: bool) -> JsonObject:
    completion = answer.completions[0]
    cut = _CUT.get(completion.finish) if done else None
    status = "in_progress" if not done else "incomplete" if cut else "completed"
    echo = answer.asked.echo
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
        "usage": _usage(completion) if done else None,
        "user": None,
        "metadata": {},
    }


def _usage(completion: Completion) -> JsonObject:
    spent = completion.usage
    return {
        "input_tokens": spent.prompt_tokens,
        "input_tokens_details": {"cached_tokens": spent.cached_tokens},
        "output_tokens": spent.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": spent.tokens,
    }


def _items(answer: Answer) -> list[JsonObject]:
    """A reply as items: thoughts, words, calls."""
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
        items.append(_call_item(call, answer.asked.kinds.get(call.name, ""), f"{answer.id}_{number}"))
    return items


def _call_item(call: Call, kind: str, name: str) -> JsonObject:
    common: JsonObject = {"call_id": call.id, "status": "completed"}
    if kind == "custom":
        return {"type": "custom_tool_call", "id": f"ctc_{name}", **common, "name": call.name, "input": _input(call)}
    if kind == "local_shell":
        fields = _fields(call)
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
        item |= {"namespace": space, "name": call.name.removeprefix(_joined(space, ""))}
    return item


def _fields(call: Call) -> JsonObject:
    try:
        value = msgspec.json.decode(call.arguments)
    except ValueError:
        return {}
    return cast(JsonObject, value) if isinstance(value, dict) else {}


def _input(call: Call) -> str:
    """The text for a custom tool; what the model wrote, if it did not write it as it was told to."""
    value = _fields(call).get("input")
    return value if isinstance(value, str) else call.arguments


def stream(answer: Answer) -> bytes:
    events: list[bytes] = []

    def add(kind: str, **fields: Any) -> None:
        events.append(event(_encode({"type": kind, "sequence_number": len(events), **fields}), kind))

    begun = _response(answer, (), done=False)
    add("response.created", response=begun)
    add("response.in_progress", response=begun)
    items = _items(answer)
    for index, item in enumerate(items):
        where = {"output_index": index, "item_id": item["id"]}
        add("response.output_item.added", output_index=index, item=_empty(item))
        for kind, fields in _pieces(item):
            add(kind, **where, **fields)
        add("response.output_item.done", output_index=index, item=item)
    response = _response(answer, items, done=True)
    add(f"response.{response['status']}", response=response)
    return b"".join(events)


def _empty(item: JsonObject) -> JsonObject:
    """An item as it begins."""
    hollow: JsonObject = {"content": [], "arguments": "", "input": "", "summary": []}
    begun = {key: hollow.get(key, value) for key, value in item.items()}
    return begun | {"status": "in_progress"} if "status" in item else begun


def _pieces(item: JsonObject) -> list[tuple[str, JsonObject]]:
    """What fills an item."""
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


def late_error(trouble: Trouble) -> bytes:
    code = _CODES.get(trouble.kind, "server_error")
    response: JsonObject = {"id": "resp_failed", "object": "response", "status": "failed", "output": [], "usage": None}
    failed = response | {"error": {"code": code, "message": trouble.words}}
    kind = "response.failed"
    return event(_encode({"type": kind, "sequence_number": 0, "response": failed}), kind)


RESPONSES = Dialect("responses", read, write, stream, error, late_error, b": waiting for the model\n\n")
