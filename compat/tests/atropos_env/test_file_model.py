"""Calls that are remembered, and the logprobs of prompts."""

import asyncio
import json

import pytest
from tests.http_kit import Loopback, Request

from ludus.compat.atropos_env.call_journal import CallJournal, CallScope
from ludus.compat.atropos_env.file_model import PromptScorer, add_system, read_prompt_scores
from ludus.models.server import BadReply, make_endpoints
from ludus.models.settings import OpenAISettings
from ludus.store import MemoryStore
from ludus.types import Message


async def test_a_stored_reply_is_not_asked_for_again():
    store, asked = MemoryStore(), list[int]()

    async def ask(number: int) -> str:
        asked.append(number)
        return f"reply {number}"

    found: list[list[str]] = []
    for _ in range(2):
        journal, scope = CallJournal(store), CallScope("group/1")
        found.append([await journal.remember(scope, ("q", 1), str, ask) for _ in range(2)])
    other = await CallJournal(store).remember(CallScope("group/2"), ("q", 1), str, ask)
    assert [*found, [other]] == [["reply 0", "reply 1"], ["reply 0", "reply 1"], ["reply 0"]]
    assert asked == [0, 1, 0]


def test_a_skill_goes_to_the_system_message():
    user = Message("user", "q")
    assert add_system([user], "") == [user]
    assert add_system([user], "skill") == [Message("system", "skill"), user]
    assert add_system([Message("system", "s"), user], "skill")[0].content == "s\n\nskill"


PLACES = [{"ids": [], "logprobs": []}, {"ids": [5, 7], "logprobs": [-0.1, -2.0]}]


@pytest.mark.parametrize(
    "reply",
    [
        {"choices": [{"prompt_logprobs": [None, {"7": {"logprob": -2.0}, "5": {"logprob": -0.1}}]}]},
        {"prompt_logprobs": [None, [{"5": -0.1}, {"7": -2.0}]]},
        {"prompt_logprobs": [[None, {"5": -0.1, "7": -2.0, "9": -9.0}]]},
    ],
)
def test_the_forms_of_prompt_logprobs(reply: object):
    assert read_prompt_scores(json.dumps(reply).encode(), 2) == PLACES


def test_a_server_without_prompt_logprobs_is_told():
    with pytest.raises(BadReply, match="prompt_logprobs"):
        read_prompt_scores(b'{"choices": []}', 1)


@pytest.mark.parametrize(("engine", "path"), [("vllm", "/v1/completions"), ("atropos", "/generate")])
async def test_a_prompt_is_scored_by_its_server(engine: str, path: str):
    seen: list[tuple[str, dict]] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        seen.append((request.path, json.loads(request.body)))
        body = json.dumps({"prompt_logprobs": [None, {"5": -0.1, "7": -2.0}]}).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body

    async def main() -> object:
        async with Loopback(answer) as server:
            settings = OpenAISettings(base_url=f"{server.url}/v1", name="m", mode="token", engine=engine)  # type: ignore
            scorer = PromptScorer(settings, make_endpoints(settings))
            try:
                return await scorer.score([5, 7], 2)
            finally:
                await scorer.close()

    assert await main() == PLACES
    assert seen[0][0] == path and seen[0][1]["prompt_logprobs"] == 2
