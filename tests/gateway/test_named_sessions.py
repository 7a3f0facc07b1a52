"""Sessions that come and go by themselves."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from ludus.gateway.named_sessions import GatewaySettings, NamedSessions
from ludus.models.ledger import Budget
from ludus.models.scripted import ScriptedModel
from ludus.types import Sampling

HI = {"messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def open_sessions(kit, **options):
    """A sessions with a client, and the records of the sessions that ended."""
    records = []
    sessions = NamedSessions(records.append, **options)
    async with kit.serve_model(ScriptedModel(lambda *_: "ok"), routes=[sessions.handle]) as client:
        running = asyncio.create_task(sessions.run(client.gateway))
        try:
            yield sessions, client, records
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_key_names_its_session(kit):
    async with open_sessions(kit, sampling=Sampling(temperature=0.3)) as (sessions, client, records):
        url = client.gateway.url
        for path, key in (("/v1", "anna"), ("/s/anna/v1", "other"), ("/s/bob/v1", ""), ("/v1", ""), ("/v1", "")):
            headers = [("Authorization", f"Bearer {key}")] if key else []
            assert (await client.post(url + path + "/chat/completions", HI, headers)).status == 200
        assert (await client.post(url + "/v1/messages", {**HI, "max_tokens": 5}, [("x-api-key", "anna")])).status == 200
        wrong = await client.post(url + "/v1/chat/completions", HI, [("Authorization", "Bearer no/name")])
        assert wrong.status == 401
        await sessions.close(client.gateway)
    assert {record.name: len(record.exchanges) for record in records} == {"anna": 3, "bob": 1, "default": 2}
    assert all(e.sampling.temperature == 0.3 for record in records for e in record.exchanges)


async def test_a_token_is_needed_where_one_is_set(kit):
    async with open_sessions(kit, token="hush.hush") as (sessions, client, records):
        url = client.gateway.url + "/v1/chat/completions"

        async def status(key):
            return (await client.post(url, HI, [("Authorization", f"Bearer {key}")])).status

        assert [await status(key) for key in ("", "anna", "hush", "hush.hus", "hush.hushX", "hush.hush/x")] == [401] * 6
        assert [await status(key) for key in ("hush.hush", "hush.hush.", "hush.hush.anna")] == [200] * 3
        assert (await client.post(client.gateway.url + "/s/hush.hush.anna/v1/chat/completions", HI)).status == 200
        await sessions.close(client.gateway)
    assert sorted((record.name, len(record.exchanges)) for record in records) == [
        ("anna", 2),
        ("default", 1),
        ("default", 1),
    ]


async def test_a_session_that_is_idle_is_closed_and_opened_anew_when_it_is_used_again(kit):
    async with open_sessions(kit, settings=GatewaySettings(idle_seconds=0.05)) as (_, client, records):
        url = client.gateway.url + "/s/anna/v1/chat/completions"
        for number in (1, 2):
            assert (await client.post(url, HI)).status == 200
            await kit.until(lambda number=number: len(records) == number)
    assert [record.name for record in records] == ["anna", "anna"]


async def test_sessions_have_a_budget_each_and_their_number_is_limited(kit):
    async with open_sessions(kit, settings=GatewaySettings(session=Budget(calls=1)), sessions=2) as (_, client, __):
        url = client.gateway.url + "/s/{}/v1/chat/completions"
        statuses = [(await client.post(url.format(name), HI)).status for name in ("a", "a", "b", "c")]
        assert statuses == [200, 429, 200, 503]


@pytest.mark.parametrize(
    ("token", "key", "name"),
    [
        ("", "", "default"),
        ("", "anna", "anna"),
        ("", "a b", None),
        ("", "x" * 201, None),
        ("t", "t", "default"),
        ("t", "t.anna", "anna"),
        ("t", "tanna", None),
        ("t", "", None),
        ("t", "t.a/b", None),
    ],
)
async def test_which_session_a_key_names(token, key, name):
    assert NamedSessions(lambda _: None, token=token).parse_key(key) == name


async def test_health_needs_no_key(kit):
    async with open_sessions(kit, token="hush") as (_, client, __):
        response = await client.get(client.gateway.url + "/health")
        assert json.loads(response.body)["status"] == "ok"
