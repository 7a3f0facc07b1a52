"""The client of a rollout: it asks the policy's model at the gateway, in the form of OpenAI's chat API."""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import importlib
from typing import Any

import msgspec

from ludus.compat.verifiers_env.v0_standin.errors import EmptyModelResponseError, ModelError, OverlongPromptError
from ludus.compat.verifiers_env.v0_standin.parsers import read_text
from ludus.compat.verifiers_env.v0_standin.values import Response, ResponseMessage, ToolCall, Usage, Value
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.http_client import Client, HttpError
from ludus.types import JsonObject

_TOO_LONG = ("context length", "context_length", "prompt_too_long", "maximum model length", "exceeded model")
_THOUGHTS = ("reasoning", "reasoning_content", "reasoning_details")


class SessionClient:
    """A client for one session of the gateway."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http = Client()

    async def get_response(
        self, prompt: list[Any], model: str, sampling_args: Any, tools: list[Any] | None = None, **_: Any
    ) -> Response:
        """The model's reply to a conversation.

        Raises:
            OverlongPromptError: the conversation is longer than the model's context.
            ModelError: there is no reply.
        """
        body: JsonObject = {"model": model, "messages": [write_message(message) for message in prompt]}
        if tools:
            body["tools"] = [_write_tool(tool) for tool in tools]
        body |= _read_sampling(sampling_args or {})
        headers = (("Content-Type", "application/json"),)
        try:
            reply = await self._http.request("POST", f"{self.url}/chat/completions", headers, to_json(body))
        except HttpError as error:
            raise ModelError(str(error)) from error
        if reply.status != 200:
            text = reply.body.decode(errors="replace")
            too_long = reply.status == 400 and any(words in text.lower() for words in _TOO_LONG)
            raise (OverlongPromptError if too_long else ModelError)(text)
        return read_reply(msgspec.json.decode(reply.body))

    @property
    def client(self) -> Any:
        """A client of the package openai for the same model."""
        try:
            openai: Any = importlib.import_module("openai")
        except ImportError as error:
            raise ConfigError("env.id: the environment uses the client of openai itself: pip install openai") from error
        return openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0)

    async def close(self) -> None:
        await self._http.close()


def _read_sampling(given: Any) -> JsonObject:
    """The request fields of sampling arguments. The gateway puts the policy's own over them."""
    named = {name: value for name, value in dict(given).items() if value is not None and name != "extra_body"}
    if "max_tokens" in named:
        named["max_completion_tokens"] = named.pop("max_tokens")
    return {**named, **(given.get("extra_body") or {})}


def write_message(message: Any) -> JsonObject:
    """A message in the form of the chat API."""
    content = message.content
    if isinstance(content, list):
        content = [part.model_dump() if isinstance(part, Value) else dict(part) for part in content]
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": content}
    if message.role != "assistant":
        return {"role": "user" if message.role == "text" else message.role, "content": content}
    calls = [_write_call(call) for call in message.tool_calls or ()]
    written: JsonObject = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
    thoughts = message.get("reasoning_content")
    return {**written, "reasoning_content": thoughts} if thoughts else written


def _write_call(call: Any) -> JsonObject:
    return {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}


def _write_tool(tool: Any) -> JsonObject:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function if tool.strict is None else {**function, "strict": tool.strict}}


def read_reply(raw: JsonObject) -> Response:
    """A reply of the chat API.

    Raises:
        EmptyModelResponseError: there is nothing in it.
    """
    choice = (raw.get("choices") or [{}])[0]
    said, finish = choice.get("message") or {}, choice.get("finish_reason")
    thoughts = next((said[name] for name in _THOUGHTS if isinstance(said.get(name), str)), None)
    calls = [ToolCall(id=call["id"], **call["function"]) for call in said.get("tool_calls") or ()]
    if not (read_text(said.get("content")) or calls or thoughts):
        raise EmptyModelResponseError("the model said nothing: no text, no thoughts, no call")
    message = ResponseMessage(
        content=said.get("content"),
        reasoning_content=thoughts,
        tool_calls=calls or None,
        finish_reason=finish if finish in ("stop", "length", "tool_calls") else None,
        is_truncated=finish == "length",
    )
    used = raw.get("usage") or {}
    named = {name: used.get(name) or 0 for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    model = str(raw.get("model") or "")
    return Response(id=str(raw.get("id") or ""), model=model, usage=Usage(**named), message=message)
