"""What environments of text games share: the tool `act`, and scores from the record of a rollout.

An agent acts with the tool. Commands in `<action>` tags of its last reply are carried out after those.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ludus.envs import game_play
from ludus.tools import Tool, tool
from ludus.types import Rollout, Score
from ludus.verify.scoring_process import run_scorer, run_scorer_now

SECONDS = 60.0
"""Time for one command, including the start of a game on a busy machine."""
LONGEST = 200
"""A longer command is none."""
_ACTIONS = re.compile(r"<action>(.*?)</action>", re.S)


def begin_game(file: str) -> dict[str, Any]:
    """The state of a game before the first command."""
    return run_scorer_now(f"{game_play.__name__}:play", file, [], seconds=SECONDS)


async def continue_game(file: str, commands: Sequence[str]) -> dict[str, Any]:
    return await run_scorer(f"{game_play.__name__}:play", file, list(commands), seconds=SECONDS)


def describe_state(state: dict[str, Any]) -> str:
    """What the agent sees."""
    if state["done"]:
        return f"{state['shown']}\n\nThe game is over."
    return f"{state['shown']}\n\nPossible commands: {', '.join(state['commands'])}"


def make_act_tool(file: str, most: int) -> Tool:
    """The tool of one rollout."""
    commands: list[str] = []

    @tool
    async def act(command: str) -> str:
        """Do one thing in the game, such as: go to shelf 1."""
        if len(commands) >= most:
            return f"No commands are left: the game is over after {most}."
        if not (text := clean_command(command)):
            raise ValueError("the command is empty or too long")
        commands.append(text)
        return describe_state(await continue_game(file, commands))

    return act


def clean_command(command: str) -> str:
    """The command as the game gets it. Empty if it cannot be one."""
    text = " ".join(command.lower().split())
    return text if len(text) <= LONGEST and text.isprintable() else ""


def list_commands(rollout: Rollout, most: int) -> list[str]:
    """The commands that a rollout gave, from its record."""
    given: list[str] = []
    for result in (result for turn in rollout.turns for result in turn.results):
        if result.call.name == "act" and not result.error:
            arguments = msgspec.json.decode(result.call.arguments)
            given.append(str(arguments["command"]))
    given += _ACTIONS.findall(rollout.answer)
    return [command for command in map(clean_command, given) if command][:most]


def write_commands(commands: Sequence[str]) -> str:
    """A reply that gives commands."""
    return "\n".join(f"<action>{command}</action>" for command in commands)


async def judge_game(rollout: Rollout, file: str, most: int) -> Score:
    """1 if the game is won. Soft: the share of its points."""
    state = await continue_game(file, list_commands(rollout, most))
    soft = 1.0 if state["won"] else min(1.0, state["score"] / state["most"])
    feedback = (
        "The game is won." if state["won"] else f"The game is not won. The last it showed: {state['shown'][:300]}"
    )
    return Score(float(state["won"]), state["won"], soft, feedback)
