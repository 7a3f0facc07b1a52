"""Environments of verifiers 0.1: a stand-in of its calls here, the package itself where it is installed."""

import json
import sys
import types
from typing import Any

import pytest
from tests.verifiers_kit import roll

from ludus.compat.verifiers_env import VerifiersEnv
from ludus.compat.verifiers_v0 import EnvironmentRelease, find_problem
from ludus.errors import ConfigError
from ludus.http_client import Client
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
