"""Sends every field of each API to a gateway, and says what became of it. The table in docs/gateway.md is made of this.

    python -m tests.gateway.field_table --write     writes the table into docs/gateway.md

A field is *refused* if the reply is a 400 that names it, *ignored* if the record lists it in `ignored`, and *honoured*
if the request to the engine or the reply differs from the same request without it. Anything else is a field that was
dropped silently, which is an error.
"""

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.gateway_kit import ADD, Kit

from ludus.gateway.service import Gateway
from ludus.http_client import Client
from ludus.models.openai import ChatModel
from ludus.models.server import ServerSettings
from ludus.models.settings import OpenAISettings

PAGE = Path(__file__).parents[2] / "docs" / "gateway.md"
BEGIN, END = "<!-- fields: made by tests/gateway/field_table.py -->\n", "<!-- end of fields -->\n"

USER = [{"role": "user", "content": "hi"}]
TOOLS = {"tools": [ADD]}
FLAT = {"tools": [{"type": "function", **ADD["function"]}]}
CLAUDE = {"tools": [{"name": "add", "description": "Adds.", "input_schema": ADD["function"]["parameters"]}]}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

REPLY = """<think>
Hm.
</think>

The sum is 6.
<tool_call>
{"name": "add", "arguments": {"a": 1}}
</tool_call>"""

BASES = {
    "chat/completions": {"messages": USER, "max_tokens": 200},
    "completions": {"prompt": "hi", "max_tokens": 200},
    "responses": {"input": "hi", "max_output_tokens": 200},
    "messages": {"messages": USER, "max_tokens": 200},
}
"""A request of each API that needs nothing else."""

Field = tuple[Any, dict[str, Any]]


def field(value: Any, **beside: Any) -> Field:
    """The value of a field, and what the request needs beside it."""
    return value, beside


FIELDS: dict[str, dict[str, Field]] = {
    "chat/completions": {
        "audio": field({"voice": "alloy", "format": "wav"}),
        "chat_template_kwargs": field({"enable_thinking": False}),
        "frequency_penalty": field(0.5),
        "function_call": field("auto"),
        "functions": field([{"name": "f"}]),
        "logit_bias": field({"5": 1.0}),
        "logprobs": field(True),
        "max_completion_tokens": field(7),
        "max_tokens": field(7),
        "messages": field([{"role": "user", "content": "ho"}]),
        "metadata": field({"a": "b"}),
        "min_p": field(0.1),
        "modalities": field(["text"]),
        "n": field(2),
        "parallel_tool_calls": field(False, **TOOLS),
        "prediction": field({"type": "content", "content": "x"}),
        "presence_penalty": field(0.5),
        "prompt_cache_key": field("k"),
        "prompt_cache_retention": field("24h"),
        "reasoning_effort": field("low"),
        "repetition_penalty": field(1.1),
        "response_format": field(SCHEMA),
        "safety_identifier": field("s"),
        "seed": field(3),
        "service_tier": field("flex"),
        "stop": field(["sum"]),
        "store": field(True),
        "stream": field(True),
        "stream_options": field({"include_usage": True}, stream=True),
        "temperature": field(0.3),
        "tool_choice": field("none", **TOOLS),
        "tools": field([ADD]),
        "tools (custom)": field([{"type": "custom", "custom": {"name": "patch"}}]),
        "top_k": field(5),
        "top_logprobs": field(2, logprobs=True),
        "top_p": field(0.9),
        "user": field("u"),
        "verbosity": field("low"),
        "web_search_options": field({}),
        "any other": field("x"),
    },
    "completions": {
        "best_of": field(2),
        "echo": field(True),
        "frequency_penalty": field(0.5),
        "logit_bias": field({"5": 1.0}),
        "logprobs": field(1),
        "max_tokens": field(7),
        "min_p": field(0.1),
        "n": field(2),
        "presence_penalty": field(0.5),
        "prompt": field("ho"),
        "repetition_penalty": field(1.1),
        "seed": field(3),
        "stop": field("sum"),
        "stream": field(True),
        "stream_options": field({"include_usage": True}, stream=True),
        "suffix": field("x"),
        "temperature": field(0.3),
        "top_k": field(5),
        "top_p": field(0.9),
        "user": field("u"),
        "any other": field("x"),
    },
    "responses": {
        "background": field(True),
        "client_metadata": field({"a": "b"}),
        "context_management": field([{"type": "compaction"}]),
        "conversation": field("conv_1"),
        "include": field(["message.output_text.logprobs"]),
        "include (other values)": field(["reasoning.encrypted_content"]),
        "input": field("ho"),
        "instructions": field("Be brief."),
        "max_output_tokens": field(7),
        "max_tool_calls": field(2),
        "metadata": field({"a": "b"}),
        "parallel_tool_calls": field(False, **FLAT),
        "previous_response_id": field("$previous"),
        "prompt": field({"id": "p"}),
        "prompt_cache_key": field("k"),
        "prompt_cache_retention": field("24h"),
        "reasoning": field({"effort": "low"}),
        "safety_identifier": field("s"),
        "service_tier": field("flex"),
        "store": field(False),
        "stream": field(True),
        "stream_options": field({"include_obfuscation": False}, stream=True),
        "temperature": field(0.3),
        "text": field({"format": {"type": "json_object"}}),
        "text.verbosity": field({"verbosity": "low"}),
        "tool_choice": field("none", **FLAT),
        "tools": field(FLAT["tools"]),
        "tools (run by the provider)": field([{"type": "web_search"}]),
        "top_logprobs": field(2),
        "top_p": field(0.9),
        "truncation": field("auto"),
        "user": field("u"),
        "any other": field("x"),
    },
    "messages": {
        "betas": field(["x"]),
        "cache_control": field({"type": "ephemeral"}),
        "container": field("c"),
        "context_management": field({"edits": []}),
        "inference_geo": field("eu"),
        "max_tokens": field(7),
        "mcp_servers": field([]),
        "messages": field([{"role": "user", "content": "ho"}]),
        "metadata": field({"user_id": "u"}),
        "output_config": field({"format": {"type": "json_schema", "schema": {"type": "object"}}}),
        "output_config.effort": field({"effort": "low"}),
        "output_format": field({"type": "json_schema", "schema": {"type": "object"}}),
        "service_tier": field("auto"),
        "speed": field("fast"),
        "stop_sequences": field(["sum"]),
        "stream": field(True),
        "system": field("Be brief."),
        "temperature": field(0.3),
        "thinking": field({"type": "enabled", "budget_tokens": 1024}),
        "tool_choice": field({"type": "none"}, **CLAUDE),
        "tool_choice.disable_parallel_tool_use": field({"type": "auto", "disable_parallel_tool_use": True}, **CLAUDE),
        "tools": field(CLAUDE["tools"]),
        "tools (run by the provider)": field([{"type": "web_search_20250305", "name": "web_search"}]),
        "top_k": field(5),
        "top_p": field(0.9),
        "any other": field("x"),
    },
}


def get_name(label: str) -> str:
    """The name of a field in a request."""
    return "x_unknown" if label == "any other" else re.split(r"[ .]", label)[0]


def normalize(body: bytes) -> str:
    """A reply without what differs from request to request."""
    return re.sub(r'"(id|item_id|created|created_at|response_id)":("[^"]*"|\d+)', "", body.decode())


async def send(client: Client, gateway: Gateway, server: Any, path: str, body: dict[str, Any]) -> tuple[int, Any, Any]:
    """One request in a session of its own: the status, what the engine and the client saw, and what was ignored."""
    session = gateway.open()
    url = f"{session.url}/{path}"
    if body.get("previous_response_id"):
        first = await client.request("POST", url, (), json.dumps(BASES[path]).encode())
        body = body | {"previous_response_id": json.loads(first.body)["id"]}
    start = len(server.requests)
    response = await client.request("POST", url, (), json.dumps(body).encode())
    asked = [sent for _, sent in server.requests[start:]]
    record = await gateway.close(session)
    if response.status != 200:
        return response.status, json.loads(response.body)["error"]["message"], ()
    return 200, (asked, normalize(response.body)), record.exchanges[-1].ignored


async def judge_field(client: Client, gateway: Gateway, server: Any, path: str, label: str) -> str:
    """What becomes of one field."""
    name, (value, beside) = get_name(label), FIELDS[path][label]
    base = BASES[path] | beside
    before = base if name not in base else {key: base[key] for key in base if key != name} or base
    if name in ("messages", "input", "prompt"):
        before = base
    status, seen, ignored = await send(client, gateway, server, path, base | {name: value})
    if status != 200:
        assert status == 400 and name in seen, f"{path} {label}: {status} {seen}"
        return "refused"
    listed = "parallel_tool_calls" if "parallel" in label else name  # one name for it in all APIs
    if any(listed in entry for entry in ignored):
        return "ignored"
    _, plain, _ = await send(client, gateway, server, path, before)
    assert seen != plain, f"{path}: '{label}' is dropped silently"
    return "honoured"


async def judge_all() -> dict[str, dict[str, tuple[str, str]]]:
    """What becomes of all fields, in chat mode and in token mode."""
    from ludus.tokens.engine_standin import StandIn
    from ludus.tokens.engines.vllm import VllmEngine
    from ludus.tokens.model import TokenModel

    toy = Kit.token_model(lambda _: REPLY, scatter=0.0)
    async with StandIn(toy.engine, codec=toy.codec) as server, Client() as client:
        chat = ChatModel(OpenAISettings(base_url=f"{server.url}/v1", name="toy"))
        token = TokenModel(VllmEngine(ServerSettings(base_url=f"{server.url}/v1", name="toy")), toy.codec)
        async with Gateway(chat) as one, Gateway(token) as two:
            found = {
                path: {
                    label: (
                        await judge_field(client, one, server, path, label),
                        await judge_field(client, two, server, path, label),
                    )
                    for label in fields
                }
                for path, fields in FIELDS.items()
            }
        await chat.close()
        await token.close()
    return found


def render_tables(found: dict[str, dict[str, tuple[str, str]]]) -> str:
    """One line for each API and outcome. Outcomes that differ between the modes have a line of their own."""
    lines = ["| API | in chat mode | in token mode | fields |", "|---|---|---|---|"]
    for path, fields in found.items():
        groups: dict[tuple[str, str], list[str]] = {}
        for label, outcome in sorted(fields.items(), key=lambda item: (item[0] == "any other", item[0])):
            groups.setdefault(outcome, []).append(label if label == "any other" else f"`{label}`")
        for (chat, token), labels in sorted(groups.items(), key=lambda item: (item[0] != ("honoured",) * 2, item)):
            lines.append(f"| `{path}` | {chat} | {token} | {', '.join(labels)} |")
    return "\n".join(lines) + "\n"


def read_page() -> tuple[str, str, str]:
    """The page before the table, the table, and the page after it."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    return before, table, after


def main() -> None:
    table = render_tables(asyncio.run(judge_all()))
    if "--write" in sys.argv:
        before, _, after = read_page()
        PAGE.write_text(before + BEGIN + table + END + after)
    else:
        print(table, end="")


if __name__ == "__main__":
    main()
