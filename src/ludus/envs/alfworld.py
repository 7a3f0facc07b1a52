"""ALFWorld: household tasks as text games, in the published format (`ludus-train[alfworld]`).

`--env.path` is ALFWorld's data (`json_2.1.1`, with `train/`, `valid_seen/` and `valid_unseen/`), whose games are the
files `game.tw-pddl`; or a file or folder of rows with `gamefile`, `id` and `task_type`, as SkillOpt's splits have them.
Game files of rows are below `env.data`. The agent sees what the game shows and which commands are possible, and acts
with the tool `act`, at most 50 times. Hard and soft are the same: the task is done, or not.
"""

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from ludus.env import Env, EnvFacts
from ludus.envs.dataset import give_ids, list_split_names, load_rows, require_path
from ludus.envs.text_games import begin_game, describe_state, judge_game, make_act_tool, write_commands
from ludus.errors import ConfigError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import Tool
from ludus.types import Count, Rollout, Score, Task

GAME = "game.tw-pddl"
KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)


class GameRow(Struct, frozen=True):
    """A row."""

    gamefile: str
    id: str | int = ""
    task_type: str = ""


class AlfWorld(Env, frozen=True):
    """Household tasks as text games (ALFWorld)."""

    name: ClassVar[str] = "alfworld"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="one per game of env.path",
        licence="that of the data (MIT for ALFWorld)",
        runs="game in a process of its own, no slot",
        scored="the task is done (soft is the same)",
        extra="alfworld",
        speed="70 ms per task of five commands",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "Do the household task. Give one command at a time with `act`, until the task is done."

    path: str = ""
    """ALFWorld's data (the folder `json_2.1.1`), or rows that name its games."""
    data: str = ""
    """The folder that the game files of rows are below; empty: the folder of the rows."""
    max_steps: Count = 50
    """How many commands an agent has."""

    def tasks(self, split: str) -> Iterator[Task]:
        if find_spec("alfworld") is None:
            raise ConfigError("env.name: ALFWorld is not installed: pip install 'ludus-train[alfworld]'")
        for id, kind, file in self._list_games(split):
            walkthrough = _read_walkthrough(file)
            yield Task(
                id=id,
                prompt=describe_state(begin_game(str(file))),
                split=split,
                kind=kind,
                answer={"game": str(file), "walkthrough": walkthrough},
            )

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return [make_act_tool(task.answer["game"], self.max_steps)]

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return await judge_game(rollout, rollout.task.answer["game"], self.max_steps)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        if not task.answer["walkthrough"]:
            raise ValueError(f"the game of task '{task.id}' has no walkthrough to prove it with")
        return write_commands(task.answer["walkthrough"])

    def _list_games(self, split: str) -> Iterator[tuple[str, str, Path]]:
        """Id, kind and file of each game of a split."""
        place = Path(require_path(self.path, self.name)).expanduser()
        for name in list_split_names(split):
            if games := sorted((place / name).rglob(GAME)):
                for file in games:
                    inner = file.parent.relative_to(place / name)
                    yield str(inner), inner.parts[0].partition("-")[0], file.absolute()
                return
        folder = Path(self.data).expanduser() if self.data else (place if place.is_dir() else place.parent)
        for id, row in give_ids(load_rows(self.path, GameRow, split, texts=["gamefile"]), ["id", "gamefile"]):
            file = (folder / row.item.gamefile).absolute()
            if not file.is_file():
                raise row.refuse(f"gamefile: there is no file {file} (see env.data)")
            guessed = next((kind for kind in KINDS if kind in row.item.gamefile), "")
            yield id, row.item.task_type or guessed, file


def _read_walkthrough(file: Path) -> list[str]:
    """The commands that solve a game, from its file."""
    try:
        game = json.loads(file.read_bytes())
        if missing := [field for field in ("pddl_domain", "pddl_problem", "grammar") if field not in game]:
            raise ConfigError(f"env.path: {file}: it has no field '{missing[0]}'")
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"env.path: {file} is no game of ALFWorld: {error}") from None
    return [str(command) for command in game.get("walkthrough") or ()]
