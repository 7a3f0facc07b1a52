"""Commands in the record of a rollout."""

import json

import pytest
from tests.build import make_rollout, make_turn

from ludus.envs.text_games import clean_command, describe_state, list_commands, write_commands
from ludus.types import Call, ToolResult


@pytest.mark.parametrize(
    ("given", "cleaned"), [(" Go  North\n", "go north"), ("", ""), ("x" * 300, ""), ("look\0", ""), ("go\tup", "go up")]
)
def test_commands(given: str, cleaned: str):
    assert clean_command(given) == cleaned


def test_the_commands_of_a_rollout_are_those_of_the_tool_and_then_those_of_its_answer():
    def result(name: str, command: str, error: str = "") -> ToolResult:
        return ToolResult(Call("c", name, json.dumps({"command": command})), "ok", error=error)

    turns = [make_turn("", result("act", "Look"), result("other", "no"), result("act", "bad", "too long"))]
    rollout = make_rollout(1.0, *turns, make_turn(write_commands(["go up", "take key"])))
    assert list_commands(rollout, 50) == ["look", "go up", "take key"]
    assert list_commands(rollout, 2) == ["look", "go up"]


def test_what_the_agent_sees():
    state = {"shown": "A room.", "commands": ["go up", "look"], "done": False}
    assert describe_state(state) == "A room.\n\nPossible commands: go up, look"
    assert describe_state({**state, "done": True}) == "A room.\n\nThe game is over."
