"""Any OpenAI-compatible chat endpoint: OpenAI, Azure OpenAI, OpenRouter, vLLM, SGLang, llama.cpp, …

`request_body` and `parse_reply` are the dialect, as pure functions. Reading is lenient where servers differ: content
that is null or a list of parts, arguments that are an object, calls without ids, a missing usage, an unknown finish
reason. What cannot be read as a completion at all is a `BadReply`.

Reasoning is taken from `reasoning_details`, `reasoning_content`, `reasoning`, or a think block that opens the content,
and goes back into the history in the same field and, for think blocks, letter by letter. History is otherwise sent as
it was, with two exceptions, because servers refuse the whole request over them: call arguments that are no JSON object
are wrapped in one, and a made-up tool name loses the characters that no server allows. The record keeps the originals.

Text that only looks like a tool call is left in the content: parsing it is the business of token-exact models.
"""

import re
import zlib
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ludus.models.server import BadReply, Endpoint, ModelServer, Price, ServerSettings, open_endpoints, usage
from ludus.models.server_pool import ServerPool, Waits
from ludus.types import Call, Completion, Finish, JsonObject, Message, Reasoning, Sampling, ToolSpec, Usage, to_json


class OpenAISettings(ServerSettings, frozen=True, tag_field="type", tag="openai"):
    """Any server that speaks OpenAI's chat completions: OpenAI, OpenRouter, vLLM, SGLang, llama.cpp and others.
    `base_url` most often ends in `/v1`."""

    max_tokens_field: str = "max_tokens"
    """How the server calls the limit; OpenAI's reasoning models want `max_completion_tokens`."""
    mode: Literal["chat", "token"] = "chat"
    """`chat`: the server renders and parses, and only text is recorded. `token`: Ludus does, and the exact ids, masks
    and logprobs are recorded, as RL needs them (`docs/tokens.md`)."""
    engine: Literal["vllm", "sglang", "llamacpp", "atropos", "vllm_chat"] = "vllm"
    """In token mode, what the server is. `atropos`: the `/generate` server of its trainers; `vllm_chat`: vLLM renders
    and parses itself and tells the ids, so drift costs rows."""
    tokenizer: str = ""
    """In token mode: a `tokenizer.json`, a folder, a GGUF file, or `owner/name` on the hub; empty: what `model.name`
    says."""
    parser: str = "auto"
    """In token mode, the format that the model writes tool calls in (`docs/parsers.md`)."""
    template: str = ""
    """In token mode, a chat template in place of the model's own: a file, or `chatml`."""
    history: Literal["template", "append"] = "template"
    """In token mode, what the model sees of its past: what the template makes of it, or replies as sampled."""


class AzureSettings(ServerSettings, frozen=True, tag_field="type", tag="azure"):
    """Azure OpenAI. `base_url` is the resource (`https://<name>.openai.azure.com`), `name` the deployment."""

    api_key_var: str = "AZURE_OPENAI_API_KEY"
    """The NAME of the environment variable that holds the key."""
    api_version: str = "2024-10-21"
    """The version of the API."""
    max_tokens_field: str = "max_tokens"
    """How the server calls the limit; OpenAI's reasoning models want `max_completion_tokens`."""


class ChatModel(ServerPool):
    """A model behind one or several OpenAI-compatible servers. Without endpoints, the servers of the settings are
    reached without a key.

    >>> model = ChatModel(OpenAISettings(base_url="http://127.0.0.1:8000/v1", name="qwen"))
    >>> model = ChatModel(OpenAISettings(name="gpt-5"), Endpoint("https://api.openai.com/v1", api_key=key))
    """

    def __init__(self, settings: OpenAISettings | AzureSettings, *endpoints: Endpoint, waits: Waits = Waits()) -> None:
        servers = [chat_server(settings, endpoint) for endpoint in endpoints or open_endpoints(settings)]
        super().__init__(servers, settings.retry, waits)


def chat_server(settings: OpenAISettings | AzureSettings, endpoint: Endpoint) -> ModelServer:
    """A server that speaks the dialect."""
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
    return ModelServer(
        settings,
        endpoint,
        url=url,
        headers=headers,
        encode=lambda messages, tools, sampling: request_body(
            messages,
            tools,
            sampling,
            settings.name,
            max_tokens_field=settings.max_tokens_field,
            omit=settings.omit,
        ),
        parse=lambda data: parse_reply(data, settings.price),
    )


# ---- what is sent -------------------------------------------------------------------------------------------------


def request_body(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    sampling: Sampling,
    model: str,
    *,
    max_tokens_field: str = "max_tokens",
    omit: Sequence[str] = (),
) -> bytes:
    """The JSON of a chat request. `sampling.extra` has the last word."""
    offered = {tool.name for tool in tools}
    body: JsonObject = {"model": model, "messages": [_message(m, offered) for m in messages]}
    if tools:
        body["tools"] = [{"type": "function", "function": tool} for tool in tools]
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
    return encode_body(body, sampling, omit)


def encode_body(body: JsonObject, sampling: Sampling, omit: Sequence[str]) -> bytes:
    """The body as JSON, with what the user adds and without what the server refuses."""
    if sampling.extra:
        body.update(sampling.extra)
    for name in omit:
        body.pop(name, None)
    try:
        return to_json(body)
    except UnicodeEncodeError:  # half of a surrogate pair, as some programs print: not text, so not JSON
        return to_json(_mended(body))


def _mended(value: Any) -> Any:
    """The value with every half surrogate pair replaced."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mended(k): _mended(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_mended(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _message(message: Message, offered: Collection[str]) -> JsonObject:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    wire: JsonObject = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        _add_reasoning(wire, message.reasoning)
    if message.calls:
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": safe_name(call.name, offered), "arguments": safe_arguments(call.arguments)},
            }
            for call in message.calls
        ]
    return wire


def _add_reasoning(wire: JsonObject, reasoning: Reasoning) -> None:
    """Return reasoning the way it came. Another dialect's signed blocks mean nothing here and are left out."""
    match reasoning.source:
        case "think":
            block = _think_block(reasoning.text) if reasoning.raw is None else reasoning.raw
            wire["content"] = block + wire["content"]
        case "reasoning_details":
            wire["reasoning_details"] = reasoning.raw
        case "reasoning_content" | "reasoning":
            wire[reasoning.source] = reasoning.text
        case "thinking":
            pass


_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ARGUMENTS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def safe_name(name: str, offered: Collection[str]) -> str:
    """The name, unless the model made one up that a server would refuse."""
    if name in offered or _NAME.fullmatch(name):
        return name
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64] or "unnamed"


def safe_arguments(arguments: str) -> str:
    """The arguments if they are a JSON object, else an object that shows the model what it wrote."""
    try:
        _ARGUMENTS.decode(arguments)
    except ValueError:
        return to_json({"invalid_json": _mended(arguments)}).decode() if arguments else "{}"
    return arguments


# ---- what comes back ----------------------------------------------------------------------------------------------


class _Function(Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class _Call(Struct, gc=False):
    id: str | None = None
    function: _Function | None = None


class _Message(Struct, gc=False):
    content: str | list[Any] | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    reasoning_details: Any = None
    refusal: str | None = None


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
        ValueError: it is none; a `BadReply` if it is JSON that says so.
    """
    reply = _REPLY.decode(data)
    choice = reply.choices[0] if reply.choices else None
    if choice is None or choice.message is None or (choice.error and choice.finish_reason == "error"):
        raise _bad_reply(reply.error or (choice.error if choice else None))
    wire = choice.message
    calls = _calls(wire.tool_calls, data) if wire.tool_calls else ()
    reasoning, content = split_reasoning(wire)
    message = Message("assistant", content, calls, reasoning=reasoning)
    finish = _finish(choice.finish_reason, bool(calls))
    return Completion(message, finish, _usage(reply.usage, price), reply.model or "")


def _bad_reply(error: Any) -> BadReply:
    if isinstance(error, dict):
        code: Any = error.get("code")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        status = code if isinstance(code, int) and 400 <= code < 600 else None
        return BadReply(str(error.get("message") or "an error"), status)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return BadReply(str(error) if error else "it holds no choices")


def _finish(reason: Any, calls: bool) -> Finish:
    """Why it ended. With calls, a plain or unknown end means "to call": servers differ in what they put there."""
    finish = _FINISH.get(reason, Finish.OTHER) if isinstance(reason, str) else Finish.OTHER
    if calls and finish in (Finish.STOP, Finish.OTHER):
        return Finish.CALLS
    return finish


def _calls(wire: list[_Call], data: bytes) -> tuple[Call, ...]:
    """The calls, each with an id of its own: what a server leaves out or repeats is derived from the reply."""
    calls: list[Call] = []
    seen: set[str] = set()
    for index, call in enumerate(wire):
        if call.function is None:
            continue
        name = call.id
        if not name or name in seen:
            name = f"call_{zlib.crc32(data, index):08x}"
        seen.add(name)
        calls.append(Call(name, call.function.name or "", _arguments(call.function.arguments)))
    return tuple(calls)


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _usage(wire: _Usage | None, price: Price) -> Usage:
    if wire is None:
        return Usage()
    details = wire.prompt_tokens_details
    cached = int(details.cached_tokens or 0) if details is not None else 0
    counted = usage(price, int(wire.prompt_tokens or 0), int(wire.completion_tokens or 0), cached)
    if wire.cost and not counted.dollars:
        return msgspec.structs.replace(counted, dollars=wire.cost)
    return counted


# ---- reasoning ----------------------------------------------------------------------------------------------------


def split_reasoning(wire: _Message) -> tuple[Reasoning | None, str]:
    """Reasoning and what is left as content."""
    content = wire.content if isinstance(wire.content, str) else _joined(wire.content)
    if not content and wire.refusal:
        content = wire.refusal
    plain = _text(wire.reasoning_content) or _text(wire.reasoning)
    if details := _list(wire.reasoning_details):
        return Reasoning(plain or _details_text(details), "reasoning_details", details), content
    if plain:
        return Reasoning(plain, "reasoning_content" if _text(wire.reasoning_content) else "reasoning"), content
    return split_think(content)


def split_think(content: str) -> tuple[Reasoning | None, str]:
    """Split off a think block at the start of a text.

    The opening tag may be missing, because many templates put it into the prompt; so may the closing one, when the
    reply was cut while thinking. `_think_block(text) + rest`, or `raw + rest`, is the content, letter by letter.
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
    return Reasoning(text, "think", None if block == _think_block(text) else block), rest


def _think_block(text: str) -> str:
    return f"<think>\n{text}\n</think>\n\n"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]


def _joined(parts: list[Any] | None) -> str:
    return "".join(_text(p.get("text")) for p in parts or () if isinstance(p, dict))  # pyright: ignore[reportUnknownMemberType]


def _details_text(details: list[Any]) -> str:
    """The readable part of reasoning details; encrypted ones have none."""
    texts: list[str] = []
    for detail in details:
        if isinstance(detail, dict):
            texts.append(_text(detail.get("text")) or _text(detail.get("summary")))  # pyright: ignore[reportUnknownMemberType]
    return "\n".join(text for text in texts if text)
