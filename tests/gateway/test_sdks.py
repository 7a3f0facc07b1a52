"""The providers' own SDKs understand the gateway.

They are no dependency and slow to start: the test runs with LUDUS_SDKS set to a Python that has `openai` and
`anthropic`:

    uv venv sdks && uv pip install --python sdks/bin/python openai anthropic
    LUDUS_SDKS=sdks/bin/python python -m pytest tests/models/gateway/test_sdks.py
"""

import asyncio
import json
import os
from pathlib import Path

import pytest

from ludus.models.scripted import ScriptedModel, call, join_calls, say

PYTHON = os.environ.get("LUDUS_SDKS", "")
CLIENT = Path(__file__).with_name("sdk_client.py")


@pytest.mark.skipif(not PYTHON, reason="LUDUS_SDKS names no Python with openai and anthropic")
def test_the_sdks_of_the_providers_understand_every_route(kit):
    def play(messages, tools, _):
        has_result = any(message.role == "tool" for message in messages)
        if has_result or not tools:
            return say("It is 2.")
        return join_calls(call("add", a=1), text="I add.", reasoning="Hm.")

    async def test():
        async with kit.serve_model(ScriptedModel(play)) as client:
            session = client.gateway.open()
            process = await asyncio.create_subprocess_exec(
                PYTHON, CLIENT, session.url, session.anthropic_url, session.api_key, stdout=asyncio.subprocess.PIPE
            )
            printed, _ = await process.communicate()
            record = await client.gateway.close(session)
        assert process.returncode == 0
        assert json.loads(printed) == {
            "chat": ['{"a":1}', "It is 2.", True, '{"a":1}'],
            "responses": ['{"a":1}', "It is 2.", "It is 2."],
            "messages": [{"a": 1}, "It is 2.", ["thinking", "text", "tool_use"], True],
            "models": ["scripted"],
            "completions": "It is 2.",
            "wrong key": 401,
            "no messages": 400,
        }
        assert [exchange.follows for exchange in record.exchanges] == [None, 0, None, None, 3, 3, None, 6, None, None]

    kit.run(test, seconds=120)
