"""TextWorld with real games (make test-envs)."""

import importlib.util
import os

import pytest

from ludus.env_checks import validate
from ludus.envs.textworld import TextWorldGames
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel, call
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner


@pytest.mark.skipif(
    importlib.util.find_spec("textworld") is None or not os.environ.get("LUDUS_TEST_ENVS"), reason="make test-envs"
)
async def test_games_are_made_valid_and_won_with_the_tool():
    env = TextWorldGames(size=2)
    tasks = list(env.tasks("train"))
    assert tasks == list(TextWorldGames(size=2).tasks("train"))
    assert len({task.prompt for task in tasks}) == 2
    assert (await validate(Runner(env), "train", tasks)).ok
    replies = [call("act", command=command) for command in tasks[0].answer["walkthrough"]]
    rollout = await run(Job(tasks[0], Policy(ScriptedModel([*replies, "Done."]))), Runner(env))
    assert rollout.score is not None and rollout.score.passed
    assert list(env.tasks("other")) == []
    shared = [call("act", command="save"), call("act", command="look. restore"), "Done."]
    refused = await run(Job(tasks[0], Policy(ScriptedModel(shared))), Runner(env))
    assert all("does not take that command" in turn.results[0].content for turn in refused.turns[:2])


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ludus.envs.textworld.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ludus-train\[textworld\]"):
        list(TextWorldGames().tasks("train"))
