"""The toy engine behind HTTP, in the wire formats of vLLM, Atropos' `/generate`, SGLang and llama.cpp.

    async with StandIn(ToyEngine(tokenizer, ["Hello."])) as server:
        engine = VllmEngine(ServerSettings(base_url=server.url, name="toy"))

One server serves all formats: paths and request fields tell them apart. It follows the documented formats in everything
that Ludus sends and reads, with their quirks: llama.cpp cuts probabilities at a stop string, the text of vLLM lacks
special tokens that its ids have. It refuses what the real servers refuse. `mangle` lets a test change a reply before it
is sent. Loopback only; for tests and benchmarks.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Self, cast

import httptools
import msgspec

from ludus.errors import ModelError
from ludus.tokens.codec import Codec
from ludus.tokens.toy_engine import ToyDraw, ToyEngine
from ludus.types import Call, Finish, JsonObject, Message, Sampling, ToolSpec

Mangle = Callable[[str, Any], Any]
"""Gets the path and the reply, and returns what to send instead. Bytes are sent as they are."""


class RequestRefused(Exception):
    """The real server would refuse this request."""


class StandIn:
    """A server on 127.0.0.1. With a `codec` it answers chat requests too. All requests are kept in `requests`."""

    def __init__(
        self, toy: ToyEngine, *, codec: Codec | None = None, context: int = 32768, mangle: Mangle | None = None
    ):
        self.toy = toy
        self.mangle = mangle
        self._codec = codec
        self._context = context
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Transport] = set()
        self.requests: list[tuple[str, JsonObject]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self._answer, self._open), "127.0.0.1", 0)
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

    def _answer(self, method: str, path: str, data: bytes) -> bytes:
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
        return [self.toy.draw(ids, Sampling(max_tokens=longest, stop=stop)) for _ in range(body.get("n") or 1)]

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
    if message.calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    return wire


# ---- HTTP ---------------------------------------------------------------------------------------------------------


def _make_response(value: Any, status: int = 200) -> bytes:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    head = f"HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


class _Connection(asyncio.Protocol):
    """One client. The `on_…` methods are called by the parser."""

    def __init__(self, answer: Callable[[str, str, bytes], bytes], opened: set[asyncio.Transport]) -> None:
        self._answer = answer
        self._opened = opened
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._opened.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path, self._body = url.decode(), b""

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        self._transport.write(self._answer(self._parser.get_method().decode(), self._path, self._body))
