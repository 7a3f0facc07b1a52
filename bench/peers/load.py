"""Agents for a load test: conversations of four turns on persistent connections, without pauses.

Every conversation has its own session and follows the script of `mock_openai.py`, so all requests are encoded before
the test. A reply is good if its status is 200 and it contains the text of the mock.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mock_openai import ANSWER, CALLS, SUMS

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
OPENING = [
    {"role": "system", "content": "You are a careful calculator. Use the tools that you are given."},
    {"role": "user", "content": "Add 1 and 2, then 3 to the sum, then 36 to that. Say the final sum."},
]
WORDS = [f"Step {number}.".encode() for number in range(1, CALLS)] + [ANSWER.encode()]
"""The text that the reply to each turn must contain."""


def build_bodies(stream: bool, words: int = 0) -> list[bytes]:
    """Build the request bodies of the four turns. The first message is longer by `words`."""
    messages = [{"role": "system", "content": OPENING[0]["content"] + " word" * words}, OPENING[1]]
    made: list[bytes] = []
    for number, (a, b) in enumerate([*SUMS, (0, 0)], 1):
        request = {
            "model": "mock",
            "messages": messages,
            "tools": [{"type": "function", "function": ADD}],
            "stream": stream,
        }
        made.append(json.dumps(request).encode())
        function = {"name": "add", "arguments": json.dumps({"a": a, "b": b})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages = [
            *messages,
            {"role": "assistant", "content": f"Step {number}.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": str(a + b)},
        ]
    return made


@dataclass
class Seen:
    """The replies: how many were good, the first bad one, and the times."""

    good: int = 0
    trouble: str = ""
    seconds: list[float] = field(default_factory=list[float])
    """The time of each reply."""
    first_seconds: list[float] = field(default_factory=list[float])
    """The time to the first text of each reply."""


class Agent(asyncio.Protocol):
    """One connection. Its conversations run one after the other."""

    def __init__(self, paths: Sequence[str], sent: Sequence[bytes], seen: Seen, done: asyncio.Future[None]) -> None:
        self._turns = [(path, turn) for path in reversed(paths) for turn in reversed(range(len(sent)))]
        self._sent = sent
        self._seen = seen
        self._done = done
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send_next()

    def _send_next(self) -> None:
        if not self._turns:
            self._transport.close()
            return
        path, self._turn = self._turns.pop()
        body = self._sent[self._turn]
        self._has_text = False
        head = f"POST {path}/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._sent_at = time.perf_counter()
        self._transport.write(
            f"{head}Authorization: Bearer none\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._has_text and WORDS[self._turn] in self._buffer:
            self._has_text = True
            self._seen.first_seconds.append(time.perf_counter() - self._sent_at)
        if not is_whole(self._buffer):
            return
        self._seen.seconds.append(time.perf_counter() - self._sent_at)
        if self._buffer.startswith(b"HTTP/1.1 200") and WORDS[self._turn] in self._buffer:
            self._seen.good += 1
        else:
            self._seen.trouble = self._seen.trouble or self._buffer[:300].decode(errors="replace")
        self._buffer = b""
        self._send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._turns and not self._seen.trouble:
            self._seen.trouble = f"the connection was lost: {exc}"
        if not self._done.done():
            self._done.set_result(None)


def is_whole(response: bytes) -> bool:
    """Whether a response is complete."""
    end = response.find(b"\r\n\r\n")
    if end < 0:
        return False
    fields = response[:end].lower()
    at = fields.find(b"content-length:")
    if at < 0:
        return response.endswith(b"0\r\n\r\n")
    return len(response) >= end + 4 + int(fields[at + 15 :].split(b"\r\n", 1)[0])


async def send_conversations(
    port: int,
    sessions: Sequence[str],
    concurrency: int,
    stream: bool,
    path: Callable[[str], str],
    turns: int = CALLS,
    words: int = 0,
) -> Seen:
    """Run a conversation in every session, `concurrency` at a time. `path` returns the path of a session's API."""
    loop = asyncio.get_running_loop()
    seen, sent = Seen(), build_bodies(stream, words)[:turns]
    ends: list[asyncio.Future[None]] = []
    for number in range(min(concurrency, len(sessions))):
        done: asyncio.Future[None] = loop.create_future()
        paths = [path(session) for session in sessions[number::concurrency]]
        agent = Agent(paths, sent, seen, done)
        await loop.create_connection(lambda agent=agent: agent, "127.0.0.1", port)
        ends.append(done)
    await asyncio.gather(*ends)
    return seen
