"""Environments of verifiers 0.1: a stand-in of its calls here, the package itself where it is installed."""

import asyncio
import dataclasses
import json
import sys
import types
from typing import Any

import pytest
from tests.rl_kit import TableTrainer, collect, make_run
from tests.verifiers_kit import roll

from ludus.agent import Policy
from ludus.compat.verifiers_env import VerifiersActor, VerifiersEnv
from ludus.compat.verifiers_env.v0_environments import EnvironmentRelease, find_problem
from ludus.errors import ConfigError
from ludus.http_client import Client
from ludus.rl.rl_records import RlStep
from ludus.types import StopReason

ROWS = [{"example_id": 0, "prompt": [{"role": "user", "content": "2 + 2?"}], "answer": "4", "task": "sum", "info": {}}]


class StandInEnv:
    """An environment with two turns, as the package runs one: it asks the model over HTTP and scores the reply."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def get_dataset(self) -> list[dict[str, Any]]:
        return ROWS

    def get_eval_dataset(self) -> list[dict[str, Any]]:
        return ROWS

    async def run_rollout(self, row: dict[str, Any], client: Any, model: str, sampling: dict[str, Any]) -> Any:
        messages = list(row["prompt"])
        async with Client() as http:
            for question in ("", "Are you sure?"):
                messages += [{"role": "user", "content": question}] if question else []
                body = b'{"messages": %b}' % json.dumps(messages).encode()
                reply = await http.request("POST", client.url + "/chat/completions", (), body)
                if reply.status != 200:
                    return {"error": reply.body.decode(), "reward": 0.0}
                text = json.loads(reply.body)["choices"][0]["message"]["content"]
                messages.append({"role": "assistant", "content": text})
        reward = float(row["answer"] in messages[-1]["content"])
        return {"reward": reward, "metrics": {"exact": reward}, "error": self.broken, "is_truncated": False}


class StandInClient:
    def __init__(self, config: Any) -> None:
        self.url = config.api_base_url

    async def close(self) -> None: ...


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the package that are used, and an environment that is installed."""
    modules = {
        "verifiers": {"__version__": "0.1.14"},
        "verifiers.types": {"ClientConfig": lambda **fields: types.SimpleNamespace(**fields)},
        "verifiers.clients": {"resolve_client": StandInClient},
        "two_turns": {"load_environment": StandInEnv},
        "no_loader": {},
    }
    for name, values in modules.items():
        module = types.ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("package")
def test_its_rollout_is_recorded_and_its_reward_is_the_score():
    rollout = roll(VerifiersEnv(id="two-turns"), "It is 5.", "No: 4.", skill="Be exact.")
    assert rollout.score is not None and (rollout.score.value, rollout.score.parts) == (1.0, {"exact": 1.0})
    assert [turn.completion.message.content for turn in rollout.turns] == ["It is 5.", "No: 4."]
    assert rollout.turns[0].notices[0].content == "Are you sure?"
    assert rollout.opening[0].role == "system" and "Be exact." in rollout.opening[0].content
    assert (rollout.task.kind, rollout.task.prompt, rollout.stop) == ("sum", "2 + 2?", StopReason.FINISHED)


@pytest.mark.usefixtures("package")
def test_an_error_of_it_is_no_zero():
    rollout = roll(VerifiersEnv(id="two-turns", args={"broken": "the tool is gone"}), "4", "4")
    assert rollout.score is None and rollout.failure is not None
    assert "the tool is gone" in rollout.failure.message


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("id", "words"),
    [("absent-env", "cannot be imported"), ("no-loader", "no function load_environment")],
)
def test_what_cannot_be_loaded_is_an_error_that_names_it(id: str, words: str):
    with pytest.raises(ConfigError, match=words):
        list(VerifiersEnv(id=id).tasks("test"))
    with pytest.raises(ConfigError, match="unexpected keyword"):
        list(VerifiersEnv(id="two-turns", args={"levle": 2}).tasks("test"))


class LettersEnv(StandInEnv):
    """One question: a number. The answer is a letter."""

    def get_dataset(self) -> list[dict[str, Any]]:
        return [
            {"example_id": n, "prompt": [{"role": "user", "content": str(n)}], "answer": "abcd"[n]} for n in range(4)
        ]

    async def run_rollout(self, row: dict[str, Any], client: Any, model: str, sampling: dict[str, Any]) -> Any:
        async with Client() as http:
            body = json.dumps({"model": model, "messages": row["prompt"]}).encode()
            reply = await http.request("POST", client.url + "/chat/completions", (), body)
        text = json.loads(reply.body)["choices"][0]["message"]["content"]
        return {"reward": float(text == row["answer"]), "metrics": {}}


@pytest.mark.usefixtures("package")
def test_rl_trains_on_it_with_the_newest_weights(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["two_turns"], "load_environment", LettersEnv)
    env, trainer = VerifiersEnv(id="two-turns"), TableTrainer()

    async def train() -> list[RlStep]:
        first = await trainer.get_model(trainer.name)
        run = make_run(trainer, steps=12, groups=4, group_size=8)
        actor = VerifiersActor(env, first)
        parts = dataclasses.replace(run.parts, env=env)
        run = dataclasses.replace(run, policy=Policy(first, actor=actor), tasks=tuple(env.tasks("train")), parts=parts)
        try:
            return await collect(run)
        finally:
            await actor.close()

    records = asyncio.run(train())
    rewards = [record.reward for record in records if record.reward is not None]
    assert rewards[-1] > rewards[0] + 0.3
    assert {row.tokens.sampled for rows in trainer.seen for row in rows} == {(False, True)}


@pytest.mark.parametrize(
    ("output", "words"), [({"reward": 1.0}, ""), ({"reward": None}, "reward is None"), ({"error": "x"}, "x")]
)
def test_which_outputs_say_nothing(output: dict[str, Any], words: str):
    assert find_problem(output).endswith(words) and bool(find_problem(output)) is bool(words)


def test_a_real_environment_of_the_package_runs():
    pytest.importorskip("verifiers.rubrics", reason="verifiers 0.1.14 is not installed")
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    args = {"gym": "basic_arithmetic", "num_train_examples": 2, "num_eval_examples": 1}
    env = VerifiersEnv(id="verifiers.envs.integrations.reasoninggym_env:ReasoningGymEnv", args=args)
    (task,) = env.tasks("test")
    assert isinstance(env.live, EnvironmentRelease)
    entry = env.live.environment.rg_dataset[int(task.answer["answer"])]
    right = roll(env, f"<answer>{entry['answer']}</answer>")
    assert right.score is not None and right.score.passed
    wrong = roll(env, "<answer>no idea</answer>")
    assert wrong.score is not None and not wrong.score.passed
