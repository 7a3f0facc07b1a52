"""The toy engine behind HTTP, in the wire formats of vLLM, Atropos' `/generate`, SGLang and llama.cpp.

    async with StandIn(ToyEngine(tokenizer, ["Hello."])) as server:
        engine = VllmEngine(ServerSettings(base_url=server.url, name="toy"))

One server serves all formats: paths and request fields tell them apart. It follows the documented formats in everything
that Ludus sends and reads, with their quirks: llama.cpp cuts probabilities at a stop string, the text of vLLM lacks
special tokens that its ids have. Under a JSON schema it answers with a small value of it; grammars are not
followed. It refuses what the real servers refuse. `mangle` lets a test change a reply before it
is sent. vLLM's and llama.cpp's replies are streamed if the request asks for it, one id at a time; a client that closes
its connection ends the sample, and `cancelled` counts it. Loopback only; for tests and benchmarks.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Self, cast

import msgspec

from ludus.chat_form import read_messages, read_tools, write_message
from ludus.errors import ModelError
from ludus.http_server import EVENTS, JSON, Connection, Listener, Responder, close_connections
from ludus.tokens.codec import Codec
from ludus.tokens.toy_engine import ToyEngine, ToySample
from ludus.types import Finish, JsonObject, Sampling

BODY_BYTES = 2**30
"""The longest request that is read."""

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
        self._listener: Listener | None = None
        self._connections: set[Connection] = set()
        self._streams: set[asyncio.Task[None]] = set()
        self.requests: list[tuple[str, JsonObject]] = []

    async def __aenter__(self) -> Self:
        self._listener = Listener(socket.create_server(("127.0.0.1", 0)), self._accept)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._listener is not None
        await self._listener.close()
        await close_connections(self._connections, 0.0)
        await asyncio.gather(*self._streams, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._listener is not None
        return f"http://127.0.0.1:{self._listener.socket.getsockname()[1]}"

    # ---- HTTP -----------------------------------------------------------------------------------------------------

    def _accept(self) -> Connection:
        return Connection(self._connections, self._serve, lambda _, message: _write_error(message), BODY_BYTES)

    def _serve(self, responder: Responder) -> None:
        path, data = responder.request.path, responder.request.body
        body: JsonObject = msgspec.json.decode(data) if data else {}
        self.requests.append((path, body))
        try:
            reply = self._route(path, body)
        except RequestRefused as error:
            responder.send(400, JSON, _write_error(str(error)))
        except (ModelError, KeyError, TypeError) as error:
            responder.send(500, JSON, _write_error(f"{type(error).__name__}: {error}"))
        else:
            self._reply(responder, body, reply)

    def _reply(self, responder: Responder, body: JsonObject, reply: Any) -> None:
        path = responder.request.path
        if reply is None:
            responder.send(404, JSON, _write_error("no such path"))
            return
        if self.mangle is not None:
            reply = self.mangle(path, msgspec.json.decode(msgspec.json.encode(reply)))
        if body.get("stream") and isinstance(reply, dict):
            streaming = asyncio.create_task(self._stream(responder, _split_reply(path, cast(JsonObject, reply))))
            responder.on_lost = partial(self._stop, streaming)
            self._streams.add(streaming)
            streaming.add_done_callback(self._streams.discard)
        else:
            responder.send(200, JSON, reply if isinstance(reply, bytes) else msgspec.json.encode(reply))

    async def _stream(self, responder: Responder, events: list[bytes]) -> None:
        responder.begin(EVENTS, b"")
        for event in events:
            if self.pace is not None:
                await self.pace()
            responder.feed(b"data: %b\n\n" % event)
        responder.end(b"")

    def _stop(self, streaming: asyncio.Task[None]) -> None:
        self.cancelled += 1
        streaming.cancel()

    # ---- answers --------------------------------------------------------------------------------------------------

    def _route(self, path: str, body: JsonObject) -> Any:
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

    def _sample_replies(self, ids: list[int], body: Mapping[str, Any], limit: str = "max_tokens") -> list[ToySample]:
        if not ids or not all(isinstance(number, int) for number in ids):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestRefused("the prompt must be a list of ids")
        longest = body.get(limit)
        if longest is None:
            raise RequestRefused(f"{limit} is missing")  # the real servers use a short default
        if len(ids) + 1 > self._context:
            raise RequestRefused(f"the prompt is longer than the context length of {self._context}")
        stop = tuple(word for word in body.get("stop") or () if isinstance(word, str))  # copies of it take ids, too
        form = _find_schema(body)
        text = None if form is None else msgspec.json.encode(_make_instance(form)).decode()
        return [self.toy.sample(ids, Sampling(max_tokens=longest, stop=stop), text) for _ in range(body.get("n") or 1)]

    def _answer_vllm(self, body: JsonObject) -> JsonObject:
        samples = self._sample_replies(body["prompt"], body)
        choices = [
            {
                "index": index,
                "text": sample.text,
                "finish_reason": sample.finish.value,
                "stop_reason": None,
                "logprobs": {
                    "tokens": [f"token_id:{number}" for number in sample.ids],
                    "token_logprobs": sample.logprobs,
                    "top_logprobs": [{f"token_id:{n}": p} for n, p in zip(sample.ids, sample.logprobs, strict=True)],
                    "text_offset": [0] * len(sample.ids),
                },
                "token_ids": sample.ids,
                "prompt_token_ids": sample.prompt,
            }
            for index, sample in enumerate(samples)
        ]
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": "toy",
            "choices": choices,
            "usage": _count_usage(samples),
        }

    def _answer_vllm_chat(self, body: JsonObject, codec: Codec) -> JsonObject:
        """Render and parse on the server, as vLLM does. Reasoning in the history is not rendered: not every server
        takes it from a client."""
        tools = read_tools(body.get("tools"))
        messages = [msgspec.structs.replace(m, reasoning=None) for m in read_messages(body["messages"])]
        text = codec.renderer.render_prompt(messages, tools)
        samples = self._sample_replies(codec.tokenizer.encode(text), body)
        choices = [
            {
                "index": index,
                "message": write_message(codec.parse_reply(codec.decode_reply(sample.ids), tools)),
                "finish_reason": sample.finish.value,
                "logprobs": {"content": [{"token": "", "logprob": value} for value in sample.logprobs]},
                "token_ids": sample.ids,
            }
            for index, sample in enumerate(samples)
        ]
        return {
            "id": "chatcmpl-1",
            "model": "toy",
            "choices": choices,
            "prompt_token_ids": samples[0].prompt,
            "usage": _count_usage(samples),
        }

    def _answer_atropos(self, body: JsonObject) -> JsonObject:
        unknown = body.keys() - _SAMPLING_PARAMS - {"prompt"}
        if unknown:
            raise TypeError(f"Unexpected keyword argument '{min(unknown)}'")
        prompt: Any = body["prompt"]
        ids = self.toy.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt["prompt_token_ids"]
        samples = self._sample_replies(ids, body)
        return {
            "text": [sample.text for sample in samples],
            "prompt": self.toy.tokenizer.decode(ids),
            "finish_reasons": [sample.finish.value for sample in samples],
            "logprobs": [
                [[{"0": -9.5, str(number): value}] for number, value in zip(sample.ids, sample.logprobs, strict=True)]
                for sample in samples
            ],
            "token_ids": [sample.ids for sample in samples],
            "prompt_token_ids": ids,
        }

    def _answer_sglang(self, body: JsonObject) -> Any:
        ids = body["input_ids"] if "input_ids" in body else self.toy.tokenizer.encode(body["text"])
        samples = self._sample_replies(ids, body["sampling_params"], "max_new_tokens")
        replies = [
            {
                "text": sample.text,
                "output_ids": sample.ids[:-1] if sample.finish is Finish.STOP else sample.ids,
                "meta_info": {
                    "output_token_logprobs": [[p, n, None] for n, p in zip(sample.ids, sample.logprobs, strict=True)],
                    "input_token_logprobs": [[None, number, None] for number in ids],
                    "finish_reason": {"type": sample.finish.value},
                    "prompt_tokens": len(ids),
                    "completion_tokens": len(sample.ids),
                    "cached_tokens": 0,
                },
            }
            for sample in samples
        ]
        return replies[0] if len(replies) == 1 else replies

    def _answer_llamacpp(self, body: JsonObject) -> JsonObject:
        sample = self._sample_replies(body["prompt"], body, "n_predict")[0]
        word = next((w for w in body.get("stop") or () if w in self.toy.tokenizer.decode(sample.ids)), "")
        cut = len(self.toy.tokenizer.encode(word)) if word else 0
        kept = max(0, len(sample.ids) - cut)
        places: list[JsonObject] = [
            {"id": number, "token": "", "bytes": [], "logprob": value, "top_logprobs": []}
            for number, value in zip(sample.ids[:kept], sample.logprobs, strict=False)
        ]
        return {
            "content": sample.text,
            "tokens": sample.ids if body.get("return_tokens") else [],
            "stop": True,
            "stop_type": "word" if word else "limit" if sample.finish is Finish.LENGTH else "eos",
            "stopping_word": word,
            "tokens_evaluated": len(sample.prompt),
            "tokens_predicted": len(sample.ids),
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


def _count_usage(samples: list[ToySample]) -> JsonObject:
    return {"prompt_tokens": len(samples[0].prompt), "completion_tokens": sum(len(sample.ids) for sample in samples)}


def _write_error(message: str) -> bytes:
    return msgspec.json.encode({"error": {"message": message}})


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
