"""The baseline: the same conversation with plain asyncio sockets and json. It records nothing."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from meter import PROMPT, Work, measure

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


async def converse(host: str, port: int) -> str:
    """Run one rollout. Returns the final answer."""
    reader, writer = await asyncio.open_connection(host, port)
    messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
    try:
        while True:
            body = json.dumps({"model": "mock", "messages": messages, "tools": [ADD]}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            fields = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(fields.split(b"content-length:")[1].split(b"\r\n")[0])
            message = json.loads(await reader.readexactly(length))["choices"][0]["message"]
            messages.append(message)
            if not message.get("tool_calls"):
                return message["content"]
            for call in message["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                content = str(arguments["a"] + arguments["b"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
    finally:
        writer.close()
        await writer.wait_closed()


async def converse_many(work: Work) -> int:
    server = urlsplit(work.base_url)
    todo = iter(range(work.rollouts))
    answers: list[str] = []

    async def run_worker() -> None:
        for _ in todo:
            answers.append(await converse(server.hostname or "", server.port or 80))

    async with asyncio.TaskGroup() as group:
        for _ in range(work.concurrency):
            group.create_task(run_worker())
    return sum("42" in answer for answer in answers)


if __name__ == "__main__":
    measure("floor: raw asyncio sockets", lambda work: asyncio.run(converse_many(work)))
