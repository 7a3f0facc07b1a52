"""Client libraries that we did not write, at a gateway: `make test-clients` installs and runs them.

The SDKs of OpenAI and Anthropic are tested in every run (`test_sdks.py`), command-line agents by `make test-agents`.
"""

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.gateway.test_sdks import SdkModel

FOLDER = os.environ.get("LUDUS_TEST_CLIENTS", "")
PROGRAMS = Path(__file__).parent / "clients"
pytestmark = pytest.mark.skipif(not FOLDER, reason="run by make test-clients")

PLAIN, CALL, PICTURE = "It is 2.", "add", "I see 1."
PYTHON = {
    "litellm": {
        "plain": PLAIN,
        "forced": CALL,
        "structured": 2,
        "stream": PLAIN,
        "picture": PICTURE,
        "anthropic": PLAIN,
    },
    "langchain": {
        "plain": PLAIN,
        "forced": CALL,
        "structured": 2,
        "stream": PLAIN,
        "anthropic": PLAIN,
        "anthropic forced": CALL,
    },
    "openai_agents": {
        f"{api}: {what}": seen
        for api in ("chat", "responses")
        for what, seen in {"tools": PLAIN, "structured": 2, "stream": PLAIN}.items()
    },
    "pydantic_ai": {
        f"{api}: {what}": seen
        for api in ("chat", "responses")
        for what, seen in {"tools": PLAIN, "picture": PICTURE, "structured": 2}.items()
    },
    "smolagents": {"plain": PLAIN, "tools": CALL},
}
NODE = {
    "openai": {"forced": CALL, "stream": PLAIN, "responses": PLAIN},
    "anthropic": {"plain": PLAIN, "forced": CALL, "stream": PLAIN},
    "ai": {"tools": PLAIN, "forced": CALL, "structured": 2, "stream": PLAIN, "anthropic": PLAIN},
}


async def run_client(kit, command: list[str], folder: str) -> tuple[object, object]:
    """What a client printed, and the record of its session."""
    async with kit.serve_model(SdkModel(), ping_seconds=0.2) as client:
        session = client.gateway.open()
        process = await asyncio.create_subprocess_exec(
            *command, session.url, session.anthropic_url, cwd=folder, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        record = await client.gateway.close(session)
    assert process.returncode == 0
    return json.loads(printed.splitlines()[-1]), record


@pytest.mark.parametrize("library", PYTHON)
async def test_python_clients(kit, library):
    command = [f"{FOLDER}/bin/python", str(PROGRAMS / "python_clients.py"), library]
    seen, record = await run_client(kit, command, FOLDER)
    assert seen == PYTHON[library]
    assert record.failure is None


@pytest.mark.parametrize("library", NODE)
async def test_javascript_clients(kit, library):
    command = ["node", str(PROGRAMS / "node_clients.mjs"), library]
    seen, record = await run_client(kit, command, f"{FOLDER}/node")
    assert seen == NODE[library]
    assert record.failure is None
