"""Environments of verifiers 0.1: a stand-in of its calls here, the package itself where it is installed."""

import dataclasses
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from compat.tests.verifiers_kit import roll, roll_group
from tests.rl_kit import TableTrainer, collect, make_run

from ludus.compat.verifiers_env import VerifiersEnv
from ludus.compat.verifiers_env.v0_environments import EnvironmentRelease, find_problem, read_answers
from ludus.errors import ConfigError
from ludus.http_client import Client
from ludus.policy import Policy
from ludus.rl.records import RlStep
from ludus.types import StopReason

OWN = Path(__file__).parents[1] / "environments"
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
async def test_rl_trains_on_it_with_the_newest_weights(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["two_turns"], "load_environment", LettersEnv)
    env, trainer = VerifiersEnv(id="two-turns"), TableTrainer()

    async def train() -> list[RlStep]:
        first = await trainer.get_model(trainer.name)
        run = make_run(trainer, steps=12, groups=4, group_size=8)
        agent = env.make_agent(first)
        runner = dataclasses.replace(run.runner, env=env)
        policy, tasks = Policy(first, agent=agent), tuple(env.tasks("train"))
        try:
            return await collect(dataclasses.replace(run, policy=policy, tasks=tasks, runner=runner))
        finally:
            await agent.close()

    records = await train()
    rewards = [record.reward for record in records if record.reward is not None]
    assert rewards[-1] > rewards[0] + 0.3
    assert {row.tokens.sampled for rows in trainer.seen for row in rows} == {(False, True)}


@pytest.mark.parametrize(
    ("output", "boundary", "words"),
    [
        ({"reward": 1.0}, "", ""),
        ({"reward": None, "member": "m1"}, "", ""),
        ({"reward": None}, "verifier", "its reward is None"),
        ({"reward": float("nan")}, "verifier", "its reward is nan"),
        ({"error": "x"}, "verifier", "x"),
        ({"error": {"error": "ModelError", "error_chain_repr": "ModelError(...)"}}, "model", "ModelError(...)"),
        ({"error": {"error": "SandboxError", "error_chain_repr": "gone"}}, "sandbox", "gone"),
        ({"error": {"error": "ToolCallError", "error_chain_repr": "no tool"}}, "tool", "no tool"),
    ],
)
def test_which_outputs_say_nothing(output: dict[str, Any], boundary: str, words: str):
    found = find_problem(output)
    assert (found.boundary if found else "") == boundary
    assert str(found or "").endswith(words)


def test_results_of_calls_that_end_a_rollout_are_in_the_completion():
    said = {"role": "tool", "tool_call_id": "c1", "content": "thanks"}
    assert read_answers([{"role": "assistant", "content": ""}, said]) == {"c1": "thanks"}
    assert read_answers(None) == {}


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


def answer_differently(*replies: str) -> Any:
    """A model that gives each rollout another reply."""
    left = list(replies)
    return lambda messages, tools, sampling: left.pop(0)


def test_rewards_of_a_group_are_given_by_the_package(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("verifiers.rubrics", reason="verifiers 0.1.14 is not installed")
    monkeypatch.syspath_prepend(str(OWN))
    env = VerifiersEnv(id="verifiers-longest")
    found = roll_group(env, answer_differently("hi", "hello you", "hello"), 3)
    assert {r.answer: (r.score.value, r.score.parts["longest"]) for r in found if r.score} == {
        "hi": (0.0, 0.0),
        "hello you": (1.5, 1.0),
        "hello": (0.5, 0.0),
    }
    (alone,) = roll_group(env, ["hi"], 1)
    assert alone.score is not None and alone.score.value == 1.0


def test_a_taskset_of_the_package_starts_and_scores_its_groups(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("verifiers.v1.taskset", reason="verifiers 0.1.14 is not installed")
    pytest.importorskip("verifiers.rubrics", reason="verifiers 0.1.14 is not installed")
    monkeypatch.syspath_prepend(str(OWN))
    found = roll_group(VerifiersEnv(id="verifiers-shared-start"), lambda *_: "word", 4)
    scores = sorted((r.score.parts["started"], r.score.value) for r in found if r.score)
    assert scores == [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (3.0, 1.0)]
