"""The toy engine behind HTTP, in the wire formats of vLLM, Atropos' `/generate`, SGLang and llama.cpp.

    async with StandIn(ToyEngine(tokenizer, ["Hello."])) as server:
        engine = VllmEngine(ServerSettings(base_url=server.url, name="toy"))

One server serves all formats: paths and request fields tell them apart. It follows the documented formats in everything
that Ludus sends and reads, with their quirks: llama.cpp cuts probabilities at a stop string, the text of vLLM lacks
special tokens that its ids have. Under a JSON schema it answers with a small value of it; grammars are not
followed. It refuses what the real servers refuse. `mangle` lets a test change a reply before it
is sent. vLLM's and llama.cpp's replies are streamed if the request asks for it, one id at a time; a client that closes
its connection ends the draw, and `cancelled` counts it. Loopback only; for tests and benchmarks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, cast

import httptools
import msgspec

from ludus.errors import ModelError
from ludus.tokens.codec import Codec
from ludus.tokens.toy_engine import ToyDraw, ToyEngine
from ludus.types import Call, Finish, JsonObject, Message, Sampling, ToolSpec

Pace = Callable[[], Awaitable[object]]
"""Awaited before each event of a stream."""

Mangle = Callable[[str, Any], Any]
"""Gets the path and the reply, and returns what to send instead. Bytes are sent as they are."""


class RequestRefused(Exception):
    """The real server would refuse this request."""


class StandIn:
    """A server on 127.0.0.1. With a `codec` it answers chat requests too. All requests are kept in `requests`."""

    def __init__(
        self,
        toy: ToyEngine,
        *,
        codec: Codec | None = None,
        context: int = 32768,
        mangle: Mangle | None = None,
        pace: Pace | None = None,
    ):
        self.toy = toy
        self.pace = pace
        self.cancelled = 0
        """Streams whose client went away before their end."""
        self.mangle = mangle
        self._codec = codec
        self._context = context
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Transport] = set()
        self.requests: list[tuple[str, JsonObject]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, self._open), "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for transport in tuple(self._open):
            transport.abort()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    # ---- answers --------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, data: bytes) -> "bytes | list[bytes]":
        """The response to a request: all of it, or the events of a stream."""
        body: JsonObject = msgspec.json.decode(data) if data else {}
        self.requests.append((path, body))
        try:
            reply = self._route(method, path, body)
        except RequestRefused as error:
            return _make_response({"error": {"message": str(error)}}, 400)
        except (ModelError, KeyError, TypeError) as error:
            return _make_response({"error": {"message": f"{type(error).__name__}: {error}"}}, 500)
        if reply is None:
            return _make_response({"error": {"message": "no such path"}}, 404)
        if self.mangle is not None:
            reply = self.mangle(path, msgspec.json.decode(msgspec.json.encode(reply)))
        if body.get("stream") and isinstance(reply, dict):
            return [b"data: %b\n\n" % event for event in _split_reply(path, cast(JsonObject, reply))]
        return _make_response(reply)

    def _route(self, method: str, path: str, body: JsonObject) -> Any:
        match path:
            case "/v1/completions":
                return self._answer_vllm(body)
            case "/v1/chat/completions" if self._codec is not None:
                return self._answer_vllm_chat(body, self._codec)
            case "/generate":
                return self._answer_sglang(body) if "sampling_params" in body else self._answer_atropos(body)
            case "/completion":
                return self._answer_llamacpp(body)
            case "/tokenize":
                return self._tokenize(body)
            case "/v1/models":
                meta = {"n_vocab": self.toy.tokenizer.size}
                return {"data": [{"id": "toy", "max_model_len": self._context, "meta": meta}]}
            case "/props":
                return {"default_generation_settings": {"n_ctx": self._context}}
            case "/get_server_info":
                return {"context_length": self._context}
            case _:
                return None

    def _tokenize(self, body: JsonObject) -> JsonObject:
        text = body["content"] if "content" in body else body["prompt"]
        return {"tokens": self.toy.tokenizer.encode(text)}

    def _draw_replies(self, ids: list[int], body: Mapping[str, Any], limit: str = "max_tokens") -> list[ToyDraw]:
        if not ids or not all(isinstance(number, int) for number in ids):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestRefused("the prompt must be a list of ids")
        longest = body.get(limit)
        if longest is None:
            raise RequestRefused(f"{limit} is missing")  # the real servers use a short default
        if len(ids) + 1 > self._context:
            raise RequestRefused(f"the prompt is longer than the context length of {self._context}")
        stop = tuple(body.get("stop") or ())
        form = _find_schema(body)
        text = None if form is None else msgspec.json.encode(_make_instance(form)).decode()
        return [self.toy.draw(ids, Sampling(max_tokens=longest, stop=stop), text) for _ in range(body.get("n") or 1)]

    def _answer_vllm(self, body: JsonObject) -> JsonObject:
        draws = self._draw_replies(body["prompt"], body)
        choices = [
            {
                "index": index,
                "text": draw.text,
                "finish_reason": draw.finish.value,
                "stop_reason": None,
                "logprobs": {
                    "tokens": [f"token_id:{number}" for number in draw.ids],
                    "token_logprobs": draw.logprobs,
                    "top_logprobs": [{f"token_id:{n}": p} for n, p in zip(draw.ids, draw.logprobs, strict=True)],
                    "text_offset": [0] * len(draw.ids),
                },
                "token_ids": draw.ids,
                "prompt_token_ids": draw.prompt,
            }
            for index, draw in enumerate(draws)
        ]
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": "toy",
            "choices": choices,
            "usage": _count_usage(draws),
        }

    def _answer_vllm_chat(self, body: JsonObject, codec: Codec) -> JsonObject:
        """Render and parse on the server, as vLLM does."""
        tools = [ToolSpec(**tool["function"]) for tool in body.get("tools") or ()]
        text = codec.renderer.render_prompt([_read_message(m) for m in body["messages"]], tools)
        draws = self._draw_replies(codec.tokenizer.encode(text), body)
        choices = [
            {
                "index": index,
                "message": _write_message(codec.parse_reply(codec.decode_reply(draw.ids), tools)),
                "finish_reason": draw.finish.value,
                "logprobs": {"content": [{"token": "", "logprob": value} for value in draw.logprobs]},
                "token_ids": draw.ids,
            }
            for index, draw in enumerate(draws)
        ]
        return {
            "id": "chatcmpl-1",
            "model": "toy",
            "choices": choices,
            "prompt_token_ids": draws[0].prompt,
            "usage": _count_usage(draws),
        }

    def _answer_atropos(self, body: JsonObject) -> JsonObject:
        unknown = body.keys() - _SAMPLING_PARAMS - {"prompt"}
        if unknown:
            raise TypeError(f"Unexpected keyword argument '{min(unknown)}'")
        prompt: Any = body["prompt"]
        ids = self.toy.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt["prompt_token_ids"]
        draws = self._draw_replies(ids, body)
        return {
            "text": [draw.text for draw in draws],
            "prompt": self.toy.tokenizer.decode(ids),
            "finish_reasons": [draw.finish.value for draw in draws],
            "logprobs": [
                [[{"0": -9.5, str(number): value}] for number, value in zip(draw.ids, draw.logprobs, strict=True)]
                for draw in draws
            ],
            "token_ids": [draw.ids for draw in draws],
            "prompt_token_ids": ids,
        }

    def _answer_sglang(self, body: JsonObject) -> Any:
        ids = body["input_ids"] if "input_ids" in body else self.toy.tokenizer.encode(body["text"])
        draws = self._draw_replies(ids, body["sampling_params"], "max_new_tokens")
        replies = [
            {
                "text": draw.text,
                "output_ids": draw.ids[:-1] if draw.finish is Finish.STOP else draw.ids,
                "meta_info": {
                    "output_token_logprobs": [[p, n, None] for n, p in zip(draw.ids, draw.logprobs, strict=True)],
                    "input_token_logprobs": [[None, number, None] for number in ids],
                    "finish_reason": {"type": draw.finish.value},
                    "prompt_tokens": len(ids),
                    "completion_tokens": len(draw.ids),
                    "cached_tokens": 0,
                },
            }
            for draw in draws
        ]
        return replies[0] if len(replies) == 1 else replies

    def _answer_llamacpp(self, body: JsonObject) -> JsonObject:
        draw = self._draw_replies(body["prompt"], body, "n_predict")[0]
        word = next((w for w in body.get("stop") or () if w in self.toy.tokenizer.decode(draw.ids)), "")
        cut = len(self.toy.tokenizer.encode(word)) if word else 0
        kept = max(0, len(draw.ids) - cut)
        places: list[JsonObject] = [
            {"id": number, "token": "", "bytes": [], "logprob": value, "top_logprobs": []}
            for number, value in zip(draw.ids[:kept], draw.logprobs, strict=False)
        ]
        return {
            "content": draw.text,
            "tokens": draw.ids if body.get("return_tokens") else [],
            "stop": True,
            "stop_type": "word" if word else "limit" if draw.finish is Finish.LENGTH else "eos",
            "stopping_word": word,
            "tokens_evaluated": len(draw.prompt),
            "tokens_predicted": len(draw.ids),
            "truncated": False,
            "completion_probabilities": places if body.get("n_probs") else None,
        }


_SAMPLING_PARAMS = {
    *("n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "logprobs", "prompt_logprobs"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "skip_special_tokens", "stop_token_ids"),
}


def _find_schema(body: Mapping[str, Any]) -> JsonObject | None:
    """The JSON schema of a guided request of any engine."""
    guided: JsonObject = body.get("structured_outputs") or {}
    schema: JsonObject | str | None = guided.get("json") or body.get("json_schema")
    return msgspec.json.decode(schema) if isinstance(schema, str) else schema


def _make_instance(schema: JsonObject) -> Any:
    """A small value of a JSON schema."""
    match schema.get("type"):
        case "object":
            return {name: _make_instance(part) for name, part in schema.get("properties", {}).items()}
        case "array":
            return []
        case "integer" | "number":
            return 0
        case "boolean":
            return True
        case _:
            return (schema.get("enum") or ["text"])[0]


def _count_usage(draws: list[ToyDraw]) -> JsonObject:
    return {"prompt_tokens": len(draws[0].prompt), "completion_tokens": sum(len(draw.ids) for draw in draws)}


def _read_message(wire: JsonObject) -> Message:
    calls = tuple(
        Call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in wire.get("tool_calls") or ()
    )
    return Message(wire["role"], wire.get("content") or "", calls, wire.get("tool_call_id", ""))


def _write_message(message: Message) -> JsonObject:
    wire: JsonObject = {"role": "assistant", "content": message.content}
    if message.reasoning is not None:
        wire["reasoning_content"] = message.reasoning.text
    if message.calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return wire


# ---- streams ------------------------------------------------------------------------------------------------------


def _split_reply(path: str, reply: JsonObject) -> list[bytes]:
    """The events of a reply, with one id each."""
    if path == "/completion":
        return [msgspec.json.encode(event) for event in _split_llamacpp(reply)]
    events = _split_vllm_chat(reply) if "chat" in path else _split_vllm(reply)
    return [*(msgspec.json.encode(event) for event in events), b"[DONE]"]


def _split_vllm(reply: JsonObject) -> list[JsonObject]:
    (choice,) = reply["choices"]
    ids, logprobs, text = choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["text"]
    events: list[JsonObject] = []
    for place, (number, value) in enumerate(zip(ids, logprobs, strict=True)):
        last = place == len(ids) - 1
        part: JsonObject = {"index": 0, "text": text if last else "", "token_ids": [number]}
        part["finish_reason"] = choice["finish_reason"] if last else None
        part["logprobs"] = {"tokens": [f"token_id:{number}"], "token_logprobs": [value]}
        part["prompt_token_ids"] = None if place else choice["prompt_token_ids"]
        events.append({"id": reply["id"], "object": "text_completion", "choices": [part], "usage": None})
    return [*events, {"id": reply["id"], "choices": [], "usage": reply["usage"]}]


def _split_vllm_chat(reply: JsonObject) -> list[JsonObject]:
    """The text comes in as many parts as there are ids, thoughts with the first id and calls with the last."""
    (choice,) = reply["choices"]
    message, ids, places = choice["message"], choice["token_ids"], choice["logprobs"]["content"]
    text: str = message["content"]
    first: JsonObject = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    events: list[JsonObject] = [{"choices": [first], "prompt_token_ids": reply["prompt_token_ids"], "model": "toy"}]
    for place, (number, shown) in enumerate(zip(ids, places, strict=True)):
        last = place == len(ids) - 1
        begin, end = (len(text) * i // len(ids) for i in (place, place + 1))
        delta: JsonObject = {"content": text[begin:end]} if begin < end else {}
        if not place and "reasoning_content" in message:
            delta["reasoning_content"] = message["reasoning_content"]
        if last and message.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
        finish = choice["finish_reason"] if last else None
        part: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish, "token_ids": [number]}
        events.append({"choices": [part | {"logprobs": {"content": [shown]}}], "model": "toy"})
    return [*events, {"choices": [], "usage": reply["usage"], "model": "toy"}]


def _split_llamacpp(reply: JsonObject) -> list[JsonObject]:
    places: list[JsonObject] = reply["completion_probabilities"] or []
    events: list[JsonObject] = [
        {"content": "", "tokens": [place["id"]], "stop": False, "completion_probabilities": [place]} for place in places
    ]
    return [*events, reply | {"tokens": [], "completion_probabilities": None}]


# ---- HTTP ---------------------------------------------------------------------------------------------------------


def _make_response(value: Any, status: int = 200) -> bytes:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    head = f"HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class _Connection(asyncio.Protocol):
    """One client. The `on_…` methods are called by the parser."""

    def __init__(self, server: StandIn, opened: set[asyncio.Transport]) -> None:
        self._server = server
        self._streaming: asyncio.Task[None] | None = None
        self._opened = opened
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._opened.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self._transport)
        if self._streaming is not None and not self._streaming.done():
            self._server.cancelled += 1
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url.decode(), b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        response = self._server.answer(self._parser.get_method().decode(), self._path, self._body)
        if isinstance(response, bytes):
            self._transport.write(response)
        else:
            self._streaming = asyncio.get_running_loop().create_task(self._stream(response))

    async def _stream(self, events: list[bytes]) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._transport.write(head)
        for event in events:
            if self._server.pace is not None:
                await self._server.pace()
            self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        self._transport.write(b"0\r\n\r\n")
