"""A gateway with a client, and a small model in token mode."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from ludus.gateway.service import Gateway
from ludus.http_client import Client, Response
from ludus.models import Model
from ludus.models.reply_pieces import Piece, PieceStream
from ludus.types import Completion

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}


@dataclass
class AgentClient:
    """The agent's side: plain HTTP requests to a gateway."""

    gateway: Gateway
    http: Client

    async def post(self, url: str, body: Any, headers: Sequence[tuple[str, str]] = ()) -> Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.http.request("POST", url, (("Content-Type", "application/json"), *headers), data)

    async def get(self, url: str, headers: Sequence[tuple[str, str]] = ()) -> Response:
        return await self.http.request("GET", url, headers)

    async def chat(self, session: Any, messages: Sequence[Any], **fields: Any) -> Any:
        """Send a chat request that must succeed. Returns the JSON of the reply."""
        response = await self.post(session.url + "/chat/completions", {"model": "m", "messages": messages, **fields})
        assert response.status == 200, response.body
        return json.loads(response.body)


@asynccontextmanager
async def serve_model(model: Model, **options: Any) -> AsyncGenerator[AgentClient, None]:
    async with Gateway(model, **options) as gateway, Client() as client:
        yield AgentClient(gateway, client)
    await model.close()


def read_events(body: bytes) -> list[tuple[str, Any]]:
    """Server-sent events as names and values. The end mark of OpenAI's streams is a value too."""
    found: list[tuple[str, Any]] = []
    for block in body.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            data = lines["data"]
            found.append((lines.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return found


class PiecedModel:
    """A model that passes its reply on in the pieces of a script, and waits before each of them."""

    name = "pieced"

    def __init__(self, completion: Completion, pieces: Sequence[Piece], pace: Callable[[], Awaitable[object]]) -> None:
        self._completion = completion
        self._pieces = pieces
        self._pace = pace

    async def complete(self, *_: object) -> Completion:
        return self._completion

    async def stream(self, messages: object, tools: object, sampling: object, reply_stream: PieceStream) -> Completion:
        for piece in self._pieces:
            await self._pace()
            reply_stream.emit([piece])
        return self._completion

    async def close(self) -> None:
        pass


class Gate:
    """Lets a number of steps through."""

    def __init__(self) -> None:
        self._steps = asyncio.Semaphore(0)

    def open(self, steps: int = 1_000_000) -> None:
        for _ in range(steps):
            self._steps.release()

    async def wait(self) -> None:
        await self._steps.acquire()


async def send_raw(
    client: AgentClient, session: Any, path: str, body: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a connection of its own. The test reads the response itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(client.gateway.url.rpartition(":")[2]))
    data = json.dumps(body).encode()
    head = f"POST /s/{session.secret}/v1{path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return reader, writer


class Kit:
    """Shared by the tests of the gateway."""

    PiecedModel = PiecedModel
    Gate = Gate
    send_raw = staticmethod(send_raw)

    ADD = ADD
    serve_model = staticmethod(serve_model)
    read_events = staticmethod(read_events)

    @staticmethod
    async def until(met: Callable[[], object]) -> None:
        """Run other tasks until a condition is met."""
        while not met():  # noqa: ASYNC110  # there is no event to wait for
            await asyncio.sleep(0)

    @staticmethod
    def token_model(replies: Any, **options: Any) -> Any:
        """A model in token mode over a toy engine: `replies` are texts, or a function of the prompt's text."""
        pytest.importorskip("tokenizers")
        pytest.importorskip("jinja2")
        from ludus.tokens.model import TokenModel
        from ludus.tokens.toy_engine import ToyEngine

        codec = _make_codec()
        return TokenModel(ToyEngine(codec.tokenizer, replies, end="<|im_end|>", **options), codec)

    @staticmethod
    def is_proven(rows: Sequence[Any], log: Sequence[Any]) -> bool:
        """Whether every sample of the engine is in a row, marked as sampled after its own prompt, and nothing else
        is."""
        for sample in log:
            start, end = len(sample.prompt), len(sample.prompt) + len(sample.ids)
            whole = [row for row in rows if row.tokens.ids[:end] == (*sample.prompt, *sample.ids)]
            if not any(all(row.tokens.sampled[start:end]) for row in whole):
                return False
        return sum(sum(row.tokens.sampled) for row in rows) == sum(len(sample.ids) for sample in log)


TEMPLATE = """{%- if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t | tojson + '\\n' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n' + c.function | tojson + '\\n</tool_call>' }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def _make_codec() -> Any:
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Rust

    from ludus.parsers import Parser
    from ludus.tokens.codec import Codec
    from ludus.tokens.render import Renderer
    from ludus.tokens.template import Template
    from ludus.tokens.tokenizer import Tokenizer

    rust = Rust(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = ["system user assistant tool name arguments the sum is what"]
    rust.train_from_iterator(words, trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet, show_progress=False))
    special = ["<|im_start|>", "<|im_end|>"]
    rust.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = Tokenizer(rust, bos="", eos="<|im_end|>")
    parser = Parser("hermes")
    template = Template(TEMPLATE, tokens={"eos_token": "<|im_end|>"})
    return Codec(tokenizer, Renderer(template, tokenizer, lambda text, calls: parser.render(calls, text)), parser)


@pytest.fixture
def kit() -> Kit:
    return Kit()
