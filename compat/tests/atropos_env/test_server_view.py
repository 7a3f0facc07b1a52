"""The servers of a file: whom they ask, and with which fields."""

import asyncio
from typing import Any, cast

import pytest

from ludus.compat.atropos_env.call_journal import SCOPE, CallScope
from ludus.compat.atropos_env.server_view import FileServer, FileServers, Thinking, require_tokens
from ludus.errors import ConfigError
from ludus.types import Completion, Finish, Message, Sampling


class Model:
    """Keeps what it is asked."""

    def __init__(self, name: str = "m", token_model: object = None) -> None:
        self.name = name
        self.token_model = token_model
        self.sampling = Sampling()
        self.stop_ids = ""
        self.asked: list[Sampling] = []

    async def chat(self, messages: Any, tools: Any, sampling: Sampling, n: int = 1, **_: Any) -> list[Completion]:
        self.asked.append(sampling)
        return [Completion(Message("assistant", self.name), Finish.STOP)] * n


class Config:
    base_url = "http://h/v1"


async def ask(models: list[Model], thinking: Thinking, times: int = 1, **arguments: Any) -> list[str]:
    loop = asyncio.get_running_loop()
    servers = FileServers([FileServer(cast(Any, model), Config(), loop, thinking) for model in models])
    asked = [{"role": "user", "content": "q"}]
    replies = [await servers.chat_completion(messages=asked, **arguments) for _ in range(times)]
    return [choice.message.content for reply in replies for choice in reply.choices]


async def test_calls_go_to_the_servers_in_turn():
    assert sorted(await ask([Model("a"), Model("b")], Thinking(), times=4)) == ["a", "a", "b", "b"]
    assert await ask([Model("a")], Thinking(), n=3) == ["a"] * 3


async def test_reasoning_is_asked_for_in_chat_and_not_of_token_engines():
    chat, token = Model(), Model(token_model=object())
    for model in (chat, token):
        await ask([model], Thinking(enabled=True, effort="low"))
    assert chat.asked[0].extra == {"reasoning": {"enabled": True, "effort": "low"}} and token.asked[0].extra == {}
    await ask([chat], Thinking(enabled=True), skip_reasoning=True)
    assert chat.asked[-1].extra == {}


def test_openai_gets_its_own_form_of_reasoning():
    class OpenAI:
        base_url = "https://api.openai.com/v1"

    made = Thinking(enabled=True).apply(Sampling(temperature=0.2, max_tokens=9), OpenAI())
    assert (made.temperature, made.max_tokens) == (1.0, None)
    assert made.extra == {"reasoning_effort": "medium", "max_completion_tokens": 9}


def test_a_refusal_is_on_record_also_if_the_file_swallows_it():
    scope = CallScope("group/1")
    SCOPE.set(scope)
    with pytest.raises(ConfigError, match="managed_server needs exact ids"):
        require_tokens(cast(Any, Model()), "managed_server")
    assert len(scope.failures) == 1
    require_tokens(cast(Any, Model(token_model=object())), "managed_server")
