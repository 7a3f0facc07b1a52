"""Exact ids through the gateway, with engines behind HTTP and agents that ask several things at once."""

import asyncio
import json
import random

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from ludus.models.ledger import Budget, Ledger, MeteredModel
from ludus.models.server import ServerSettings
from ludus.models.settings import OpenAISettings
from ludus.tokens.capture import CapturedChatModel
from ludus.tokens.engine_standin import StandIn
from ludus.tokens.engines.vllm import VllmEngine
from ludus.tokens.model import TokenModel
from ludus.types import Sampling


def script(prompt: str) -> str:
    """Calls until the conversation has four replies."""
    if prompt.count("<|im_start|>assistant") > 4:
        return "The sum is 6, 世界 \U0001f600."
    return 'I add.\n<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>'


async def agent(client, session, kit, words, dice):
    """An agent that rewrites what it sends back, asks twice now and then, and compacts once."""
    messages = [{"role": "user", "content": words}]
    for turn in range(6):
        stream = dice.random() < 0.5
        asks = [client.chat(session, messages, tools=[kit.ADD]) for _ in range(1 + (dice.random() < 0.3))]
        if stream:
            body = {"messages": messages, "tools": [kit.ADD], "stream": True}
            await client.post(session.url + "/chat/completions", body)
        reply = (await asyncio.gather(*asks))[-1]["choices"][0]["message"]
        for made in reply.get("tool_calls", ()):
            made["function"]["arguments"] = json.dumps(dict(sorted(json.loads(made["function"]["arguments"]).items())))
        messages.append(reply)
        messages += [
            {"role": "tool", "tool_call_id": made["id"], "content": f"3 ({turn})"}
            for made in reply.get("tool_calls", ())
        ] or [{"role": "user", "content": "Go on."}]
        if turn == 3:
            messages = [messages[0], {"role": "user", "content": "Summary: it was 3 so far."}]


@pytest.mark.parametrize("kind", ["engine", "chat"])
async def test_every_drawn_id_is_in_one_row_whatever_the_agents_do(kit, kind):
    toy = kit.token_model(script, scatter=0.4 if kind == "engine" else 0.0)
    async with StandIn(toy.engine, codec=toy.codec) as server:
        if kind == "engine":
            engine = VllmEngine(ServerSettings(base_url=f"{server.url}/v1", name="toy"))
            model = TokenModel(engine, toy.codec)
        else:
            model = CapturedChatModel(OpenAISettings(base_url=f"{server.url}/v1", name="toy"))
        ledger = Ledger()
        async with kit.serve_model(MeteredModel(model, ledger, "agent")) as client:
            session = client.gateway.open(sampling=Sampling(max_tokens=500), budget=Budget(tokens=10_000_000))
            dice = random.Random(1)
            await asyncio.gather(*(agent(client, session, kit, f"Task {i}?", dice) for i in range(3)))
            record = await client.gateway.close(session)
    assert record.exact and record.failure is None
    assert kit.is_proven(record.build_sequences(), toy.engine.log[-len(record.exchanges) :])
    assert ledger.total.calls == len(record.exchanges)
    assert record.usage.tokens == ledger.total.usage.tokens
