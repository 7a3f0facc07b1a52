"""The route that takes rewards: who may use it, and what it answers."""

import asyncio
import json

import pytest

from ludus.errors import StoreError
from ludus.gateway.dialect import BadRequest
from ludus.gateway.named_sessions import NamedSessions
from ludus.gateway.score_route import ScoredSession, ScoreRoute
from ludus.models.scripted import ScriptedModel

HI = {"messages": [{"role": "user", "content": "hi"}]}
TOKEN = "score-token"


def bearer(key):
    return [("Authorization", f"Bearer {key}")] if key else []


def serve(kit, scores, *, refusal=None, token=""):
    """A gateway with the route before one that opens sessions."""

    async def store_score(gateway, name, score):
        if refusal is not None:
            raise refusal
        scores.append((name, score))
        return ScoredSession(name, "task", score.value)

    sessions = NamedSessions(lambda record: None, token=token)
    routes = [ScoreRoute(TOKEN, store_score).handle, sessions.handle]
    return kit.serve_model(ScriptedModel(lambda *_: "ok"), routes=routes)


async def test_a_reward_becomes_a_score(kit):
    scores = []
    async with serve(kit, scores) as client:
        url = client.gateway.url + "/sessions/sum-1~2/score"
        reply = await client.post(url, {"reward": 0.5, "feedback": "half", "parts": {"tests": 0.5}}, bearer(TOKEN))
        assert (reply.status, json.loads(reply.body)) == (
            200,
            {"session": "sum-1~2", "task": "task", "reward": 0.5},
        )
        await client.post(url, {"reward": 0.9, "passed": True}, [("x-api-key", TOKEN)])
    (name, first), (_, second) = scores
    assert (name, first.value, first.passed, first.soft, first.feedback) == ("sum-1~2", 0.5, False, 0.5, "half")
    assert first.parts == {"tests": 0.5}
    assert (second.value, second.passed) == (0.9, True)


@pytest.mark.parametrize("agents", ["", "agent-token"])
async def test_only_the_token_for_scores_scores(kit, agents):
    scores = []
    async with serve(kit, scores, token=agents) as client:
        url, own = client.gateway.url, f"{agents}.anna" if agents else "anna"
        assert (await client.post(url + "/v1/chat/completions", HI, bearer(own))).status == 200
        paths = ("/sessions/anna/score", "/v1/sessions/anna/score", f"/s/{own}/sessions/anna/score")
        for path in paths:
            for key in ("", own, agents, "bob", TOKEN + "x", TOKEN[:-1]):
                assert (await client.post(url + path, {"reward": 1}, bearer(key))).status in (401, 404)
        assert (await client.post(f"{url}/s/{TOKEN}/sessions/anna/score", {"reward": 1})).status == 401
        assert scores == []


async def test_the_token_for_scores_opens_no_session(kit):
    async with serve(kit, []) as client:
        url = client.gateway.url
        assert (await client.post(url + "/v1/chat/completions", HI, bearer(TOKEN))).status == 403
        assert (await client.post(f"{url}/s/{TOKEN}/v1/chat/completions", HI)).status == 401
        assert (await client.get(url + "/sessions/anna/score", bearer(TOKEN))).status == 405
        assert client.gateway.count == 0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "Expected `object`"),
        ({}, "missing required field `reward`"),
        ({"reward": "1"}, "$.reward"),
        ({"reward": 1, "rewards": 2}, "rewards"),
        (b'{"reward": 1e999}', "reward"),
        (b'{"reward": NaN}', "malformed"),
    ],
)
async def test_a_bad_body_is_named(kit, body, words):
    scores = []
    async with serve(kit, scores) as client:
        reply = await client.post(client.gateway.url + "/sessions/a/score", body, bearer(TOKEN))
        assert reply.status == 400 and words in reply.body.decode() and "send" in reply.body.decode()
        assert scores == []


@pytest.mark.parametrize(("refusal", "status"), [(BadRequest("no", 409), 409), (StoreError("disk full"), 500)])
async def test_what_cannot_be_stored_is_answered(kit, refusal, status):
    async with serve(kit, [], refusal=refusal) as client:
        reply = await client.post(client.gateway.url + "/sessions/a/score", {"reward": 1}, bearer(TOKEN))
        assert reply.status == status and str(refusal) in reply.body.decode()


async def test_a_gateway_without_the_route_takes_no_rewards(kit):
    """As the gateways that serve the agents of a rollout, which have no routes at all."""

    async with kit.serve_model(ScriptedModel(lambda *_: "ok")) as client:
        session = client.gateway.open(name="anna")
        for url in (client.gateway.url, session.anthropic_url):
            for key in (session.api_key, TOKEN, ""):
                reply = await client.post(url + "/sessions/anna/score", {"reward": 1}, bearer(key))
                assert reply.status in (401, 404)
        assert (await client.gateway.close(session)).score is None


def test_a_route_without_a_token_is_a_mistake():
    with pytest.raises(ValueError, match="token"):
        ScoreRoute("", lambda *_: asyncio.sleep(0))
