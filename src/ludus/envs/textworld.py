"""Games of TextWorld, made from a seed (`ludus-train[textworld]`): rooms, things and a quest.

A game is made when its task is first listed (a few seconds) and kept among the temporary files of the user. The agent
sees what the game shows and which commands are possible, and acts with the tool `act`. Splits have different seeds.
"""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import ClassVar

from ludus.env import Env, EnvFacts
from ludus.envs import game_play
from ludus.envs.text_games import begin_game, describe_state, judge_game, make_act_tool, write_commands
from ludus.errors import ConfigError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import Tool
from ludus.types import Count, Rollout, Score, Task
from ludus.verify.scoring_process import run_scorer_now

SPLITS = ("train", "validation", "test")
MAKE_SECONDS = 300.0


class TextWorldGames(Env, frozen=True):
    """Text adventures of TextWorld, made from a seed."""

    name: ClassVar[str] = "textworld"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="env.size games per split",
        licence="MIT (made by TextWorld)",
        runs="game in a process of its own, no slot",
        scored="the quest is done; soft: the share of points",
        extra="textworld",
        speed="12 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "Play the text adventure until its quest is done. Give one command at a time with `act`."

    size: Count = 4
    """How many games a split has."""
    seed: int = 0
    """The seed of the games."""
    rooms: Count = 3
    """How many rooms a game has."""
    objects: Count = 6
    """How many things a game has."""
    quest: Count = 4
    """How many commands the shortest way through a quest has."""
    max_commands: Count = 50
    """How many commands an agent has."""

    def tasks(self, split: str) -> Iterator[Task]:
        if find_spec("textworld") is None:
            raise ConfigError("env.name: TextWorld is not installed: pip install 'ludus-train[textworld]'")
        if split not in SPLITS:
            return
        for number in range(self.size):
            seed = (self.seed * len(SPLITS) + SPLITS.index(split)) * 100_000 + number
            game = run_scorer_now(f"{game_play.__name__}:make_game", *self._describe(seed), seconds=MAKE_SECONDS)
            yield Task(
                id=f"game-{seed}",
                prompt=describe_state(begin_game(game["file"])),
                split=split,
                answer={"seed": seed, "walkthrough": game["walkthrough"]},
            )

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return [make_act_tool(self._find(task), self.max_commands)]

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return await judge_game(rollout, self._find(rollout.task), self.max_commands)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return write_commands(task.answer["walkthrough"])

    def _describe(self, seed: int) -> tuple[int, int, int, int]:
        return seed, self.rooms, self.objects, self.quest

    def _find(self, task: Task) -> str:
        """The file of a game. It is made again if the temporary files were removed since."""
        description = self._describe(task.answer["seed"])
        file = game_play.name_game(*description)
        if not file.exists():
            run_scorer_now(f"{game_play.__name__}:make_game", *description, seconds=MAKE_SECONDS)
        return str(file)
