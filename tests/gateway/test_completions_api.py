"""OpenAI's completions: raw prompts."""

import json

from ludus.models.scripted import ScriptedModel


async def test_a_chat_model_gets_a_raw_prompt_as_a_user_message(kit):
    async with kit.serve_model(ScriptedModel(lambda m, t, s: f"{m[0].content}|{s.max_tokens}")) as client:
        session = client.gateway.open()
        url = session.url + "/completions"
        reply = json.loads((await client.post(url, {"prompt": ["Once"], "echo": True})).body)
        assert reply["object"] == "text_completion" and reply["choices"][0]["text"] == "OnceOnce|16"
        body = {"prompt": "Once", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, usage, end = [value for _, value in kit.read_events((await client.post(url, body)).body)]
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Once|5"
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert usage["usage"]["completion_tokens"] and end == "[DONE]"
        assert (await client.post(url, {"prompt": [1, 2]})).status == 400
        for wrong in (5, [], ["a", "b"], [1, "a"], [-1], None):
            assert b"prompt" in (await client.post(url, {"prompt": wrong})).body
        assert b"suffix" in (await client.post(url, {"prompt": "a", "suffix": "b"})).body


async def test_a_model_in_token_mode_continues_the_exact_ids(kit):
    model = kit.token_model(["and so on", "again", "and more"])
    async with kit.serve_model(model) as client:
        session = client.gateway.open()
        ids = model.codec.tokenizer.encode("One, two")
        url = session.url + "/completions"
        await client.post(url, {"prompt": ids, "max_tokens": 99})
        reply = json.loads((await client.post(url, {"prompt": "One, two", "max_tokens": 99})).body)
        assert reply["choices"][0]["text"] == "again"
        await client.post(url, {"prompt": "One, two again, three", "max_tokens": 99})
        assert (await client.post(url, {"prompt": [10**6]})).status == 400
        record = await client.gateway.close(session)
    assert [list(sample.prompt) for sample in model.engine.log[:2]] == [ids, ids]
    assert record.exact and kit.is_proven(record.build_sequences(), model.engine.log)
    assert record.exchanges[0].messages == record.exchanges[1].messages
