"""A second baseline: the same conversation with one aiohttp session. It records nothing."""

import asyncio
import json
from typing import Any

import aiohttp
from meter import PROMPT, Work, measure
from run_raw import ADD


async def converse(session: aiohttp.ClientSession, url: str) -> str:
    """Run one rollout. Returns the final answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
    while True:
        request = {"model": "mock", "messages": messages, "tools": [ADD]}
        async with session.post(url, json=request) as response:
            message = (await response.json())["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            content = str(arguments["a"] + arguments["b"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def converse_many(work: Work) -> int:
    todo = iter(range(work.rollouts))
    answers: list[str] = []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def run_worker() -> None:
            for _ in todo:
                answers.append(await converse(session, f"{work.base_url}/chat/completions"))

        async with asyncio.TaskGroup() as group:
            for _ in range(work.concurrency):
                group.create_task(run_worker())
    return sum("42" in answer for answer in answers)


if __name__ == "__main__":
    measure("floor: aiohttp", lambda work: asyncio.run(converse_many(work)))
