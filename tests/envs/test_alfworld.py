"""ALFWorld on a game of its format that was made for this test, with the real engine (make test-envs)."""

import importlib.util
import json
from pathlib import Path

import pytest

from ludus.env_checks import validate
from ludus.envs.alfworld import AlfWorld
from ludus.errors import ConfigError
from ludus.models.scripted import Reply, ScriptedModel, call
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.types import Rollout

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("alfworld") is None, reason="ALFWorld is not installed (make test-envs)"
)
WALKTHROUGH = [
    "go to shelf 1",
    "take apple 1 from shelf 1",
    "go to drawer 1",
    "open drawer 1",
    "move apple 1 to drawer 1",
]
PROBLEM = """(define (problem plan_test)
(:domain alfred)
(:objects
agent1 - agent
AppleType - otype
ShelfType - rtype
DrawerType - rtype
loc_bar_1_bar_1_bar_1_bar_1 - location
loc_bar_2_bar_2_bar_2_bar_2 - location
loc_bar_3_bar_3_bar_3_bar_3 - location
Apple_bar_1_bar_1_bar_1 - object
Shelf_bar_1_bar_1_bar_1 - receptacle
Drawer_bar_2_bar_2_bar_2 - receptacle
)
(:init
(= (total-cost) 0)
(atLocation agent1 loc_bar_3_bar_3_bar_3_bar_3)
(receptacleAtLocation Shelf_bar_1_bar_1_bar_1 loc_bar_1_bar_1_bar_1_bar_1)
(receptacleAtLocation Drawer_bar_2_bar_2_bar_2 loc_bar_2_bar_2_bar_2_bar_2)
(receptacleType Shelf_bar_1_bar_1_bar_1 ShelfType)
(receptacleType Drawer_bar_2_bar_2_bar_2 DrawerType)
(openable Drawer_bar_2_bar_2_bar_2)
(canContain ShelfType AppleType)
(canContain DrawerType AppleType)
(objectType Apple_bar_1_bar_1_bar_1 AppleType)
(pickupable Apple_bar_1_bar_1_bar_1)
(inReceptacle Apple_bar_1_bar_1_bar_1 Shelf_bar_1_bar_1_bar_1)
(objectAtLocation Apple_bar_1_bar_1_bar_1 loc_bar_1_bar_1_bar_1_bar_1)
)
(:goal
(and
(exists (?r - receptacle ?o - object)
(and
(inReceptacle ?o ?r)
(objectType ?o AppleType)
(receptacleType ?r DrawerType)
)))))
"""
NAME = "pick_and_place_simple-Apple-None-Drawer-1/trial_T1"


def write_game(folder: Path, **changes: object) -> Path:
    import alfworld

    data = Path(alfworld.__file__).parent / "data"
    grammar = (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", "put an apple in a drawer")
    game = {
        "pddl_domain": (data / "alfred.pddl").read_text(),
        "grammar": grammar,
        "pddl_problem": PROBLEM,
        "walkthrough": WALKTHROUGH,
        "solvable": True,
    }
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps({**game, **changes}))
    return folder / "game.tw-pddl"


async def act(env: AlfWorld, *replies: Reply) -> Rollout:
    task = next(iter(env.tasks("validation")))
    return await run(Job(task, Policy(ScriptedModel(list(replies)))), Runner(env))


@needs_package
async def test_games_of_the_published_folders_are_valid(tmp_path: Path):
    write_game(tmp_path / "valid_seen" / NAME)
    env = AlfWorld(path=str(tmp_path))
    (task,) = tasks = list(env.tasks("validation"))
    assert (task.id, task.kind) == (NAME, "pick_and_place_simple")
    assert "put an apple in a drawer" in task.prompt and "go to shelf 1" in task.prompt
    assert (await validate(Runner(env), "validation", tasks)).ok


@needs_package
async def test_an_agent_plays_with_the_tool(tmp_path: Path):
    write_game(tmp_path / "valid_seen" / NAME)
    env = AlfWorld(path=str(tmp_path))
    won = await act(env, *(call("act", command=command.upper()) for command in WALKTHROUGH), "Done.")
    assert won.score is not None and won.score.passed
    assert "You pick up the apple 1" in won.turns[1].results[0].content
    assert "The game is over" in won.turns[-2].results[0].content
    lost = await act(
        env, call("act", command="go to shelf 1"), call("act", command="fly away"), call("act", command=""), "no"
    )
    assert lost.score is not None and (lost.score.value, lost.score.soft) == (0.0, 0.0)
    assert lost.turns[2].results[0].error
    short = await act(
        AlfWorld(path=str(tmp_path), max_steps=2), *(call("act", command=c) for c in WALKTHROUGH), "Done."
    )
    assert short.score is not None and not short.score.passed


@needs_package
def test_rows_name_games(tmp_path: Path):
    write_game(tmp_path / "games" / NAME)
    rows = [{"id": "a", "gamefile": f"games/{NAME}/game.tw-pddl", "task_type": ""}]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (task,) = AlfWorld(path=f"{tmp_path}/rows.json").tasks("test")
    assert (task.id, task.kind) == ("a", "pick_and_place_simple")
    (tmp_path / "rows.json").write_text(json.dumps([{"id": "a", "gamefile": "no"}]))
    with pytest.raises(ConfigError, match=r"rows\.json, row 1: gamefile: there is no file"):
        list(AlfWorld(path=f"{tmp_path}/rows.json").tasks("test"))


@needs_package
def test_a_file_that_is_no_game_is_named(tmp_path: Path):
    write_game(tmp_path / "train" / NAME).write_text("{}")
    with pytest.raises(ConfigError, match=r"game\.tw-pddl: it has no field 'pddl_domain'"):
        list(AlfWorld(path=str(tmp_path)).tasks("train"))


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ludus.envs.alfworld.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ludus-train\[alfworld\]"):
        list(AlfWorld(path="x").tasks("train"))
