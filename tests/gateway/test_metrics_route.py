"""What the requests to a gateway wait for, for a monitor."""

import asyncio

import pytest

from ludus.gateway.metrics_route import make_metrics_route
from ludus.gateway.named_sessions import NamedSessions
from ludus.models.ledger import Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel

HI = {"messages": [{"role": "user", "content": "hi"}]}


def serve(kit, reply, token=""):
    ledger = Ledger()
    sessions = NamedSessions(lambda record: None, token=token)
    routes = [make_metrics_route(ledger.activity.report, token), sessions.handle]
    return kit.serve_model(MeteredModel(ScriptedModel(reply), ledger, "agent"), routes=routes)


async def test_requests_that_wait_for_the_model_are_counted_without_names(kit):
    asked, go = asyncio.Event(), asyncio.Event()

    async def reply(*_):
        asked.set()
        await go.wait()
        return "ok"

    async with serve(kit, reply) as client:
        url = client.gateway.url
        waiting = asyncio.create_task(
            client.post(url + "/v1/chat/completions", HI, [("Authorization", "Bearer secret-name")])
        )
        await asked.wait()
        text = (await client.get(url + "/metrics")).body.decode()
        go.set()
        assert (await waiting).status == 200
        after = (await client.get(url + "/metrics")).body.decode()
    assert 'ludus_gateway_waiting{phase="model"} 1\n' in text and "secret-name" not in text
    assert 'ludus_gateway_oldest_seconds{phase="model"} 0.' in text
    assert "waiting{" not in after and "\nludus_gateway_quiet_seconds " in after


@pytest.mark.parametrize(("key", "status"), [("", 401), ("wrong", 401), ("token.anna", 401), ("token", 200)])
async def test_where_agents_need_a_token_so_does_the_monitor(kit, key, status):
    async with serve(kit, lambda *_: "ok", "token") as client:
        head = [("Authorization", f"Bearer {key}")] if key else []
        assert (await client.get(client.gateway.url + "/metrics", head)).status == status
