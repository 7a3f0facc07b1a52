"""Model calls of sessions: budgets, and exact tokens."""

import asyncio
import json

import pytest

from ludus.gateway.dialect import BadRequest, ParsedRequest
from ludus.gateway.model_calls import ModelCaller
from ludus.models.ledger import Budget, Ledger, MeteredModel
from ludus.models.scripted import ScriptedModel
from ludus.types import Completion, Finish, Image, Message, Sampling, Usage

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("budget", "allowed"), [(Budget(calls=2), 2), (Budget(tokens=2100), 2), (Budget(dollars=0.35), 4)]
)
async def test_a_spent_budget_is_an_error_and_recorded(kit, budget, allowed):
    reply = Completion(Message("assistant", "ok"), Finish.STOP, Usage(500, 500, dollars=0.1))

    async with kit.serve_model(ScriptedModel(lambda *_: reply)) as client:
        session = client.gateway.open(budget=budget, sampling=Sampling(max_tokens=200))
        for _ in range(allowed):
            await client.chat(session, HI)
        response = await client.post(session.url + "/chat/completions", {"messages": HI})
        assert response.status == 429
        assert response.get_header("x-should-retry") == "false"
        error = json.loads(response.body)["error"]
        assert error["code"] == "insufficient_quota" and "budget of" in error["message"]
        other = await client.post(session.anthropic_url + "/v1/messages", {"messages": HI, "max_tokens": 200})
        assert json.loads(other.body)["error"]["type"] == "rate_limit_error"
        record = await client.gateway.close(session)
    assert record.stop == "budget"
    assert record.failure is None
    assert (len(record.exchanges), record.failed) == (allowed, 2)


async def test_a_metered_model_stays_metered(kit):
    ledger = Ledger(Budget(calls=1))
    async with kit.serve_model(MeteredModel(ScriptedModel(lambda *_: "ok"), ledger, "agent")) as client:
        session = client.gateway.open()
        await client.chat(session, HI)
        assert (await client.post(session.url + "/chat/completions", {"messages": HI})).status == 429
        assert ledger.total.calls == 1
        assert (await client.gateway.close(session)).stop == "budget"


async def test_in_token_mode_the_record_has_exactly_what_the_engine_sampled(kit):
    def reply(prompt: str) -> str:
        if prompt.count("<|im_start|>assistant") >= 4 or "helper" in prompt:
            return "The sum is 6, 世界."
        return 'I add.\n<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>'

    model = kit.token_model(reply, scatter=0.5)
    async with kit.serve_model(MeteredModel(model, Ledger(), "agent")) as client:
        session = client.gateway.open(sampling=Sampling(max_tokens=500))
        messages = [{"role": "user", "content": "What is 1 + 2 + 3?"}]
        for _ in range(4):
            answer = (await client.chat(session, messages, tools=[kit.ADD]))["choices"][0]["message"]
            messages.append(json.loads(json.dumps(answer)))
            for made in answer.get("tool_calls", ()):
                made["function"]["arguments"] = '{"a": 1, "b": 2}'
                messages.append({"role": "tool", "tool_call_id": made["id"], "content": "3"})
        assert messages[-1]["content"] == "The sum is 6, 世界."
        await client.chat(session, [{"role": "user", "content": "You are a helper."}])
        await asyncio.gather(*(client.chat(session, messages[:3], tools=[kit.ADD], n=2) for _ in range(2)))
        record = await client.gateway.close(session)
    assert record.exact
    assert len(record.exchanges) == 9
    rows = record.build_sequences()
    assert len(rows) == 6
    assert kit.is_proven(rows, model.engine.log)


async def test_a_call_that_cannot_be_forced_is_refused_and_does_not_fail_the_session(kit):
    async with kit.serve_model(kit.token_model(["x"])) as client:
        session = client.gateway.open()
        body = {"messages": HI, "tools": [kit.ADD], "tool_choice": "required"}
        response = await client.post(session.url + "/chat/completions", body)
        assert response.status == 400 and b"tool_choice" in response.body
        await client.chat(session, HI)
        record = await client.gateway.close(session)
    assert (record.failure, record.failed, len(record.exchanges)) == (None, 1, 1)


def test_a_chat_model_takes_no_token_ids_and_its_prompts_are_estimated():
    caller = ModelCaller(MeteredModel(ScriptedModel(["ok"], "small"), Ledger(), "agent"))
    assert (caller.name, caller.codec, caller.make_tree()) == ("small", None, None)
    assert caller.count_tokens(ParsedRequest([Message("user", "x" * 32)])) == 10
    assert caller.resolve_messages(ParsedRequest([Message("user", "a")], prompt="a")) == [Message("user", "a")]
    with pytest.raises(BadRequest, match="token mode"):
        caller.resolve_messages(ParsedRequest([Message("user", "")], prompt=[1, 2]))


def test_a_model_in_token_mode_counts_and_decodes_exactly(kit):
    model = kit.token_model(["x"])
    caller = ModelCaller(model)
    ids = model.codec.tokenizer.encode("what is the sum")
    assert caller.codec is model.codec
    assert caller.resolve_messages(ParsedRequest([], prompt=ids)) == [Message("user", "what is the sum")]
    question = [Message("user", "what is the sum")]
    prompt = model.codec.renderer.render_prompt(question, ())
    assert caller.count_tokens(ParsedRequest(question)) == len(model.codec.tokenizer.encode(prompt))
    with pytest.raises(BadRequest, match="is not a token id of this model"):
        caller.resolve_messages(ParsedRequest([], prompt=[10**6]))


PIXEL = "data:image/png;base64,iVBORw0KGgo="
QUESTIONS = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]
    },
    "/v1/responses": {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL}]}]},
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL.rpartition(",")[2]},
                    }
                ],
            }
        ],
    },
}


@pytest.mark.parametrize("path", QUESTIONS)
async def test_pictures_reach_a_chat_model_in_every_api(kit, path):
    model = ScriptedModel(["A pixel."], "m")
    async with kit.serve_model(model) as client:
        session = client.gateway.open()
        response = await client.post(session.anthropic_url + path, QUESTIONS[path])
        assert response.status == 200, response.body
        record = await client.gateway.close(session)
    assert record.opening[-1].images == (Image(PIXEL),)


async def test_a_model_in_token_mode_refuses_pictures_and_the_session_goes_on(kit):
    async with kit.serve_model(kit.token_model(["x"])) as client:
        session = client.gateway.open()
        for path, body in QUESTIONS.items():
            response = await client.post(session.anthropic_url + path, body)
            assert response.status == 400 and b"picture" in response.body
        await client.chat(session, HI)
        record = await client.gateway.close(session)
    assert (record.failure, record.failed, len(record.exchanges)) == (None, 3, 1)
