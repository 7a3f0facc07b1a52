"""The providers' own SDKs at a gateway: plain replies, tools, parallel and forced calls, structured output,
pictures, streams, time limits, hang-ups.

They are slow to start, so one process runs all of it (`sdk_client.py`).
"""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

import pytest

from ludus.models.reply_pieces import Piece
from ludus.types import Call, Completion, Finish, Message, Reasoning, Usage

CLIENT = Path(__file__).with_name("sdk_client.py")
CALLS = (Call("c1", "add", '{"a":1}'), Call("c2", "add", '{"a":2}'))


class SdkModel:
    """Streams a reply that the last user message asks for, in the form that the request asks for."""

    name = "sdk"

    def __init__(self) -> None:
        self.abandoned = 0

    async def complete(self, messages, tools, sampling):
        if sampling.extra.get("response_format"):
            return Completion(Message("assistant", '{"sum": 2}'), Finish.STOP, Usage(10, 4))
        if messages[-1].images:
            return Completion(Message("assistant", f"I see {len(messages[-1].images)}."), Finish.STOP, Usage(10, 4))
        if sampling.tool_choice == "required":
            return Completion(Message("assistant", calls=(Call("c9", tools[0].name, '{"a":9}'),)), Finish.CALLS)
        if any(message.role == "tool" for message in messages) or not tools:
            return Completion(Message("assistant", "It is 2."), Finish.STOP, Usage(10, 4))
        calls = CALLS if messages[-1].content == "both" else CALLS[:1]
        reasoning = Reasoning("Hm.", "reasoning_content")
        return Completion(Message("assistant", "I add.", calls, reasoning=reasoning), Finish.CALLS, Usage(10, 8))

    async def stream(self, messages, tools, sampling, reply_stream):
        if messages[-1].content == "slow":
            await asyncio.sleep(3)
        if messages[-1].content == "long":
            return await self._draw_long(reply_stream)
        reply = await self.complete(messages, tools, sampling)
        if reply.message.reasoning is not None:
            reply_stream.emit([Piece(thought="H")])
        reply_stream.emit([Piece(letter) for letter in reply.message.content])
        for number, call in enumerate(reply.message.calls):
            reply_stream.emit([Piece(call=number, id=call.id, name=call.name), Piece(call=number, arguments='{"a":')])
        return reply

    async def _draw_long(self, reply_stream):
        try:
            while True:
                reply_stream.emit([Piece("word ")])
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            assert reply_stream.abandoned
            self.abandoned += 1
            asyncio.current_task().uncancel()
            return Completion(Message("assistant", "word "), Finish.OTHER)

    async def close(self):
        pass


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("openai", "anthropic"))), reason="needs the SDKs of the extra 'dev'"
)
async def test_the_sdks_of_the_providers_understand_every_route(kit):
    model = SdkModel()
    async with kit.serve_model(model, ping_seconds=0.2) as client:
        session = client.gateway.open()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            CLIENT,
            session.url,
            session.anthropic_url,
            session.api_key,
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await process.communicate()
        await kit.until(lambda: not session.tasks)
        record = await client.gateway.close(session)
    assert process.returncode == 0
    assert json.loads(printed) == {
        "chat": ['{"a":1}', "It is 2.", True, '{"a":1}'],
        "responses": ['{"a":1}', "It is 2.", "It is 2."],
        "messages": [{"a": 1}, "It is 2.", ["thinking", "text", "tool_use"], True],
        "parallel": [["add", '{"a":1}'], ["add", '{"a":2}']] * 2,
        "parallel messages": [["add", {"a": 1}], ["add", {"a": 2}]],
        "forced": [["add"], ["add"], ["add"], ["add"]],
        "structured": [2, 2, 2],
        "pictures": ["I see 1."] * 3,
        "slow": ["It is 2."] * 3,
        "long": ["word "] * 3,
        "azure": "It is 2.",
        "counted": True,
        "models": ["sdk"],
        "completions": "It is 2.",
        "wrong key": 401,
        "no messages": 400,
        "embeddings": 404,
        "retrieve": 404,
    }
    cut = [exchange for exchange in record.exchanges if not exchange.delivered]
    assert len(cut) == 3 and model.abandoned == 3 and record.failure is None
    follows = [exchange.follows for exchange in record.exchanges if exchange.delivered]
    assert follows[:8] == [None, 0, None, None, 3, 3, None, 6]
