"""Models that play attacks."""

import json

from ludus.audit.players import DONE, NO_SHELL, find_shell, play_reply, play_script
from ludus.types import Message, Sampling, ToolSpec


def make_tool(name: str, *arguments: str) -> ToolSpec:
    return ToolSpec(name, "", {"type": "object", "properties": {each: {"type": "string"} for each in arguments}})


PROMPT = [Message("system", "s"), Message("user", "do it")]


async def test_a_script_runs_once_and_then_the_player_is_done():
    model, tools = play_script("x", "touch a"), [make_tool("look", "at"), make_tool("bash", "command")]
    first = (await model.complete(PROMPT, tools, Sampling())).message
    assert (first.calls[0].name, json.loads(first.calls[0].arguments)) == ("bash", {"command": "touch a"})
    last = await model.complete([*PROMPT, first, Message("tool", "")], tools, Sampling())
    assert last.message.content == DONE


async def test_without_a_shell_it_says_so():
    reply = await play_script("x", "touch a").complete(PROMPT, [make_tool("look", "command")], Sampling())
    assert reply.message.content == NO_SHELL


def test_a_tool_that_runs_python_will_do():
    found = find_shell([make_tool("execute_code", "code")])
    assert found is not None and "subprocess" in found[2]("true")


async def test_a_reply_sees_the_prompt():
    reply = await play_reply("x", lambda prompt: prompt.upper()).complete(PROMPT, [], Sampling())
    assert reply.message.content == "DO IT"
