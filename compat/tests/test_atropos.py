"""The routes of Atropos' managed-server proxy, as its client and its environments use them."""

import asyncio
import json
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cli_kit import post, serve_gateway

from ludus.compat.atropos import ManagedRoutes, ServerView, Setup, SetupServer, connect_model
from ludus.errors import ConfigError
from ludus.gateway.named_sessions import NamedSessions
from ludus.models.scripted import ScriptedModel

HI = [{"role": "user", "content": "What is the sum?"}]
CALL = 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


@asynccontextmanager
async def serve_managed(kit, model, connect=None, **options):
    records = []
    sessions = NamedSessions(records.append, **options)
    managed = ManagedRoutes(sessions, [ServerView("http://127.0.0.1:9001/v1", "toy", "vllm")], connect)
    async with kit.serve_model(model, routes=[managed.handle, sessions.handle]) as client:
        running = asyncio.create_task(sessions.run(client.gateway))
        try:
            yield client, records
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def send_request(client, method, path, body=None, status=200, headers=()):
    data = b"" if body is None else json.dumps(body).encode()
    response = await client.http.request(method, client.gateway.url + path, headers, data)
    assert response.status == status, response.body
    return json.loads(response.body)


async def test_the_life_of_a_session(kit):
    model = kit.token_model([CALL, "The sum is 3."])
    async with serve_managed(kit, model) as (client, records):
        made = await send_request(client, "POST", "/sessions/create", {"tool_parser": "hermes"})
        assert (made["model_name"], made["tool_parser"], made["base_url"]) == ("toy", "hermes", None)
        base = f"/{made['uuid']}"
        body = {"messages": HI, "tools": [kit.ADD], "max_tokens": 500}
        shown = await send_request(client, "POST", base + "/v1/chat/completions/render", body)
        first = await send_request(client, "POST", base + "/v1/chat/completions", body)
        message = first["choices"][0]["message"]
        assert shown["token_ids"] == list(model.engine.log[0].prompt)
        assert shown["num_tokens"] == len(shown["token_ids"]) and shown["prompt_text"].endswith("assistant\n")
        assert message["tool_calls"][0]["function"]["name"] == "add"
        assert first["choices"][0]["finish_reason"] == "tool_calls"
        answer = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
        await send_request(client, "POST", base + "/v1/chat/completions", {**body, "messages": [*HI, message, answer]})
        (listed,) = (await send_request(client, "GET", "/sessions"))["sessions"]
        assert (listed["uuid"], listed["num_nodes"]) == (made["uuid"], 1)
        (node,) = (await send_request(client, "GET", base + "/nodes"))["nodes"]
        assert await send_request(client, "DELETE", base) == {"status": "deleted", "uuid": made["uuid"]}
        await send_request(client, "GET", base + "/nodes", status=404)
        await kit.until(lambda: records)
    last = model.engine.log[-1]
    assert node["tokens"] == [*last.prompt, *last.ids]
    sampled = [token for sample in model.engine.log for token in sample.ids]
    assert [token for token in node["masked_tokens"] if token != -100] == sampled
    given = [value for value, mask in zip(node["logprobs"], node["masked_tokens"], strict=True) if mask == -100]
    assert set(given) == {1.0} and node["metadata"] == {"finish_reason": "stop"}
    assert node["full_text"].endswith("The sum is 3.<|im_end|>")
    assert len(records[0].exchanges) == 2


async def test_defaults_of_the_protocol(kit):
    seen = []

    async with serve_managed(kit, ScriptedModel(lambda m, t, s: seen.append(s) or "ok")) as (client, _):
        base = "/" + (await send_request(client, "POST", "/sessions/create"))["uuid"]
        await send_request(client, "POST", base + "/v1/chat/completions", {"messages": HI})
        await send_request(client, "GET", base + "/nodes", status=400)
        await send_request(client, "POST", base + "/v1/chat/completions/render", {"messages": HI}, status=400)
    assert (seen[0].temperature, seen[0].max_tokens) == (1.0, 1024)


async def test_what_is_served(kit):
    async with serve_managed(kit, ScriptedModel([])) as (client, _):
        assert (await send_request(client, "GET", "/health"))["status"] == "ok"
        assert (await send_request(client, "GET", "/v1/models"))["data"][0]["owned_by"] == "atropos"
        (server,) = (await send_request(client, "GET", "/servers"))["servers"]
        assert (server["index"], server["base_url"], server["healthy"]) == (0, "http://127.0.0.1:9001/v1", True)
        near = {"base_url": "http://127.0.0.1:9001/v1/"}
        assert (await send_request(client, "POST", "/sessions/create", near))["base_url"] == server["base_url"]


async def test_errors_have_the_protocols_shape(kit):
    def broken(*_):
        raise ZeroDivisionError("oops")

    async with serve_managed(kit, ScriptedModel(broken)) as (client, _):
        base = "/" + (await send_request(client, "POST", "/sessions/create"))["uuid"]
        chat = base + "/v1/chat/completions"
        empty = await send_request(client, "POST", chat, {"messages": []}, status=400)
        assert empty["error"]["type"] == "invalid_request_error"
        await send_request(client, "POST", chat, {"messages": 5}, status=422)
        failed = await send_request(client, "POST", chat, {"messages": HI}, status=500)
        assert failed["error"]["type"] == "server_error"
        await send_request(client, "POST", f"/{uuid.uuid4()}/v1/chat/completions", {"messages": HI}, status=404)
        wrong = await send_request(client, "POST", "/sessions/create", {"base_url": "http://odd"}, status=404)
        assert "9001" in wrong["error"]["message"]
        await send_request(client, "POST", "/sessions/create", {"tool_parser": 5}, status=400)
        await send_request(client, "POST", "/setup", {"model_name": "m", "servers": []}, status=501)


async def test_a_token_is_needed_to_open_sessions_but_not_to_use_them(kit):
    async with serve_managed(kit, ScriptedModel(lambda *_: "ok"), token="hush") as (client, _):
        for path in ("/sessions/create", "/setup"):
            await send_request(client, "POST", path, {}, status=401)
        for path in ("/sessions", "/servers", "/v1/models"):
            await send_request(client, "GET", path, status=401)
        key = [("Authorization", "Bearer hush")]
        base = "/" + (await send_request(client, "POST", "/sessions/create", {}, headers=key))["uuid"]
        await send_request(client, "POST", base + "/v1/chat/completions", {"messages": HI})


async def test_setup_puts_another_model_behind_new_sessions(kit):
    other = ScriptedModel(lambda *_: "other", name="other")

    def connect(setup):
        if setup.servers[0].server_type != "vllm":
            raise ConfigError("server_type: odd")
        return other

    async with serve_managed(kit, ScriptedModel(lambda *_: "first"), connect) as (client, _):
        old = "/" + (await send_request(client, "POST", "/sessions/create"))["uuid"]
        body = {"model_name": "other", "servers": [{"base_url": "http://127.0.0.1:1/v1"}]}
        assert (await send_request(client, "POST", "/setup", body))["servers"] == 1
        new = "/" + (await send_request(client, "POST", "/sessions/create"))["uuid"]
        for base, words in ((old, "first"), (new, "other")):
            reply = await send_request(client, "POST", base + "/v1/chat/completions", {"messages": HI})
            assert reply["choices"][0]["message"]["content"] == words
        odd = {"model_name": "m", "servers": [{"base_url": "x", "server_type": "trl"}]}
        await send_request(client, "POST", "/setup", odd, status=400)
        await send_request(client, "POST", "/setup", {"model_name": "m", "servers": []}, status=422)


def test_a_setup_names_what_is_wrong_with_it():
    with pytest.raises(ConfigError, match="server_type"):
        connect_model(Setup("m", (SetupServer("http://127.0.0.1:1/v1", server_type="trl"),)))
    with pytest.raises(ConfigError, match="setup"):
        connect_model(Setup("m", (SetupServer("http://127.0.0.1:1/v1"),), tokenizer_name="/nowhere/at/all"))


def test_the_gateway_command_serves_the_routes(tmp_path: Path):
    (tmp_path / "play.py").write_text("def reply(messages, tools, sampling):\n    return 'ok'\n")
    flags = ["--model.type", "scripted", "--model.script", "play.py:reply", "--gateway.atropos", "true"]
    flags += ["--gateway.token_var", "TEST_GATEWAY_TOKEN"]
    with serve_gateway(tmp_path, *flags, environment={"TEST_GATEWAY_TOKEN": "hush"}) as (_, url):
        made = post(url + "/sessions/create", {}, "hush")
        assert post(f"{url}/{made['uuid']}/v1/chat/completions", {"messages": HI})["choices"]
    (record,) = (tmp_path / "run" / "sessions.jsonl").read_text().splitlines()
    assert json.loads(record)["name"] == made["uuid"] and "hush" not in record
