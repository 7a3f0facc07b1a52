"""A mock chat server with an OpenAI-compatible API. It replies at once, so benchmarks measure only the client.

Every conversation has four model calls: three tool calls, then a final answer. The server has no state: the number of
assistant messages in a request selects the reply. Replies are encoded before the first request, and the CPU time of
this process is not part of any figure. There are two scripts: `add(a, b)` calls whose last sum is 42, and, for requests
that offer a tool `bash`, `bash(command)` calls, the last of which submits the answer. The second is for agents that
have only a shell.

Run it as a separate process. It prints its port and listens on loopback only. It ends when its standard input closes,
so it ends with its parent process, or after `--seconds`. At the end it prints `{"requests": …, "cpu_seconds": …}`.

    $ python bench/mock_openai.py --port 8001
    8001
    $ curl -s localhost:8001/v1/chat/completions -d '{"model": "mock", "messages": [{"role": "user", "content": "go"}]}'

A request with `stream` gets the same reply as events. A request with `return_token_ids` also gets ids and logprobs in
the format of vLLM. They are invented, but each prompt starts with the previous prompt and reply.

It is only for benchmarks: HTTP/1.1 with Content-Length or chunked bodies, and no validation of requests.
"""

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER = "The final sum is 42."
SUMS = ((1, 2), (3, 3), (6, 36))
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 42"
"""The command that mini-swe-agent runs to submit its answer."""

CALLS = 4
"""Model calls (turns) in a conversation."""

LARGEST = 1 << 22
"""The connection of a longer request is closed."""


# ---- the replies --------------------------------------------------------------------------------------------------


def build_replies(script: str, *, stream: bool = False, ids: bool = False) -> tuple[bytes, ...]:
    """Build the four replies of a script, as complete HTTP responses."""
    adds = [("add", {"a": a, "b": b}) for a, b in SUMS]
    if script == "bash":
        steps = [("bash", {"command": f"echo {a + b}"}) for a, b in SUMS]
        messages = [
            _build_call(number, *step) for number, step in enumerate([*steps, ("bash", {"command": SUBMIT})], 1)
        ]
    else:
        messages = [_build_call(number, *step) for number, step in enumerate(adds, 1)]
        messages.append({"role": "assistant", "content": ANSWER})
    made = [_build_completion(number, message, ids) for number, message in enumerate(messages, 1)]
    return tuple(_encode_stream(each) if stream else _encode_json(each) for each in made)


def _build_call(number: int, name: str, arguments: Mapping[str, object]) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": f"Step {number}.", "tool_calls": [call]}


def _build_completion(number: int, message: Mapping[str, object], ids: bool) -> dict[str, Any]:
    prompt_tokens, drawn = 60 + 40 * number, 20
    finish = "tool_calls" if "tool_calls" in message else "stop"
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
    reply: dict[str, Any] = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "mock",
        "choices": [choice],
        "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": drawn, "total_tokens": prompt_tokens + drawn},
    }
    if ids:
        reply["prompt_token_ids"] = list(range(1000, 1000 + prompt_tokens))
        choice["token_ids"] = list(range(1000 + prompt_tokens, 1000 + prompt_tokens + drawn))
        places = [{"token": f"token_id:{i}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for i in range(drawn)]
        choice["logprobs"] = {"content": places}
    return reply


def _encode_stream(reply: dict[str, Any]) -> bytes:
    """Encode a reply as a stream: events for role, text, calls and finish reason, then the usage."""
    (choice,) = reply["choices"]
    message = choice["message"]
    calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls", ()))]
    deltas = [{"role": "assistant", "content": ""}, {"content": message["content"]}, {"tool_calls": calls}, {}]
    head = {key: reply[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    events: list[dict[str, Any]] = []
    for number, delta in enumerate(deltas):
        piece: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
        if number == 1 and "token_ids" in choice:
            piece |= {"token_ids": choice["token_ids"], "logprobs": choice["logprobs"]}
        events.append(head | {"choices": [piece]})
    events[-1]["choices"][0]["finish_reason"] = choice["finish_reason"]
    if "prompt_token_ids" in reply:
        events[0]["prompt_token_ids"] = reply["prompt_token_ids"]
    events.append(head | {"choices": [], "usage": reply["usage"]})
    body = b"".join(b"data: %b\n\n" % json.dumps(each).encode() for each in events) + b"data: [DONE]\n\n"
    return _frame_response(body, "text/event-stream", "200 OK")


def _encode_json(value: object, status: str = "200 OK") -> bytes:
    return _frame_response(json.dumps(value).encode(), "application/json", status)


def _frame_response(body: bytes, kind: str, status: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


# ---- the server ---------------------------------------------------------------------------------------------------


class Answers:
    """Selects the reply to each request, and counts the requests."""

    def __init__(self) -> None:
        self.requests = 0
        kinds = [(stream, ids) for stream in (False, True) for ids in (False, True)]
        self._add = {(stream, ids): build_replies("add", stream=stream, ids=ids) for stream, ids in kinds}
        self._bash = {(stream, ids): build_replies("bash", stream=stream, ids=ids) for stream, ids in kinds}
        self._healthy = _encode_json({"status": "ok"})
        self._models = _encode_json(
            {"object": "list", "data": [{"id": "mock", "object": "model", "owned_by": "ludus"}]}
        )
        self._unknown = _encode_json({"error": {"message": "no such path"}}, "404 Not Found")

    def find_reply(self, head: bytes, body: bytes) -> bytes:
        if head.startswith(b"POST") and b"/chat/completions " in head[:200]:
            self.requests += 1
            turn = body.count(b'"role":"assistant"') + body.count(b'"role": "assistant"')
            bash = b'"name":"bash"' in body or b'"name": "bash"' in body
            kind = (b'"stream":true' in body or b'"stream": true' in body, b'"return_token_ids":' in body)
            return (self._bash if bash else self._add)[kind][min(turn, CALLS - 1)]
        if head.startswith(b"GET /health"):
            return self._healthy
        return self._models if head.startswith(b"GET /v1/models") else self._unknown


class Connection(asyncio.Protocol):
    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer = self._buffer + data if self._buffer else data
        while request := take_request(self._buffer):
            head, body, self._buffer = request
            self._transport.write(self._answers.find_reply(head, body))
        if len(self._buffer) > LARGEST:
            self._transport.close()


def take_request(buffer: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Split off the first request: head, body and the remaining bytes. Returns None if the request is incomplete."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = buffer[:end]
    fields = head.lower()
    if b"transfer-encoding: chunked" in fields:
        return _take_chunks(head, buffer, end + 4)
    at = fields.find(b"content-length:")
    length = int(fields[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
    stop = end + 4 + length
    return (head, buffer[end + 4 : stop], buffer[stop:]) if len(buffer) >= stop else None


def _take_chunks(head: bytes, buffer: bytes, start: int) -> tuple[bytes, bytes, bytes] | None:
    chunks: list[bytes] = []
    while (line := buffer.find(b"\r\n", start)) >= 0:
        size = int(buffer[start:line].split(b";")[0], 16)
        stop = line + 2 + size + 2
        if len(buffer) < stop:
            return None
        if size == 0:
            return head, b"".join(chunks), buffer[stop:]
        chunks.append(buffer[line + 2 : stop - 2])
        start = stop
    return None


async def serve(port: int, seconds: float) -> None:
    """Serve until standard input closes or `seconds` have passed. Prints the port first and the counts at the end."""
    loop = asyncio.get_running_loop()
    answers = Answers()
    server = await loop.create_server(lambda: Connection(answers), "127.0.0.1", port, backlog=4096)
    started = time.process_time()
    print(server.sockets[0].getsockname()[1], flush=True)
    stdin = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    try:
        async with asyncio.timeout(seconds):
            await stdin.read()
    except TimeoutError:
        print(f"mock: ended after {seconds:g} s", file=sys.stderr)
    finally:
        pipe.close()
        server.close()
    print(json.dumps({"requests": answers.requests, "cpu_seconds": time.process_time() - started}))


# ---- start of the mock --------------------------------------------------------------------------------------------


@dataclass
class Mock:
    """A running mock server. The counts are set when it has ended."""

    base_url: str
    requests: int = 0
    cpu_seconds: float = 0.0


@contextmanager
def run_mock(seconds: float = 600.0) -> Generator[Mock]:
    """Run a mock server until the block ends.

    >>> with run_mock() as mock:
    ...     print(mock.base_url)
    http://127.0.0.1:40417/v1
    """
    command = [sys.executable, str(Path(__file__).resolve()), "--seconds", str(seconds)]
    pipe = subprocess.PIPE
    # In a separate session it does not get our Ctrl-C. It ends when its input closes.
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdin is not None and process.stdout is not None
        mock = Mock(f"http://127.0.0.1:{int(process.stdout.readline())}/v1")
        try:
            yield mock
        finally:
            process.stdin.close()
            counts = json.loads(process.stdout.read())
            mock.requests, mock.cpu_seconds = counts["requests"], counts["cpu_seconds"]


def allow_many_sockets() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(arguments: Sequence[str] | None = None) -> None:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 for a free one (default)")
    parser.add_argument("--seconds", type=float, default=600.0, help="end after this long (default 600)")
    options = parser.parse_args(arguments)
    allow_many_sockets()
    asyncio.run(serve(options.port, options.seconds))


if __name__ == "__main__":
    main()
