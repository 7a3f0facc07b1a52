"""Rubrics of verifiers 0.1: weights, groups, a judge; beside the package's on random rollouts."""

import copy
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ludus.compat.verifiers_env.v0_standin import parsers, rubrics
from ludus.compat.verifiers_env.v0_standin.values import State, UserMessage

OURS = SimpleNamespace(**vars(rubrics), State=State, ThinkParser=parsers.ThinkParser)


def make_states(package: Any, count: int = 4) -> list[Any]:
    dice = random.Random(1)
    row = {"prompt": [{"role": "user", "content": "?"}], "answer": "4", "info": {"n": 1}, "example_id": 0, "level": 3}
    return [
        package.State(
            input=(given := copy.deepcopy(row)),
            task=given,
            completion=[{"role": "assistant", "content": dice.choice(["4", "44", "<think>a</think>4"])}],
            trajectory=[{"reward": None, "advantage": None}],
            reward=None,
            metrics=None,
        )
        for _ in range(count)
    ]


def by_level(level: int, info: dict[str, Any], **kwargs: Any) -> float:
    return level + info["n"] + float(kwargs["answer"])


def read(parser: Any, completion: Any, answer: str) -> bool:
    return parser.parse_answer(completion) == answer


def spread(completions: Any, infos: Any) -> list[float]:
    return [len(completion[-1]["content"]) / len(infos) for completion in completions]


def short(states: Any) -> list[float]:
    raise RuntimeError("broken")


async def late(state: Any) -> float:
    return float(len(state["completion"]))


def make_single(package: Any) -> Any:
    first = package.Rubric(funcs=[by_level, read], weights=[0.5, 2.0], parser=package.ThinkParser())
    second = package.Rubric(funcs=[late, by_level])
    second.add_metric(read)
    return package.RubricGroup([first, second])


def make_grouped(package: Any) -> Any:
    return package.RubricGroup([package.Rubric(funcs=[spread, late, short], weights=[2.0, 1.0, 5.0]), package.Rubric()])


async def test_one_rollout_has_the_weighted_sum():
    (state,) = make_states(OURS, 1)
    await make_single(OURS).score_rollout(state)
    assert state["metrics"]["by_level"] == 16.0 and state["metrics"]["late"] == 1.0
    assert state["reward"] == 0.5 * 8 + 2.0 * (state["metrics"]["read"] > 0 and "think" in str(state)) + 1.0 + 8.0


@pytest.mark.parametrize("make", [make_single, make_grouped])
async def test_scores_are_those_of_the_package(make: Callable[[Any], Any]):
    pytest.importorskip("verifiers.rubrics", reason="verifiers 0.1.14 is not installed")
    package = pytest.importorskip("verifiers")
    for size in (1, 4):
        own, known = make_states(OURS, size), make_states(package, size)
        if make is make_single:
            await make(OURS).score_rollout(own[0])
            await make(package).score_rollout(known[0])
            assert (own[0]["reward"], own[0]["metrics"]) == (known[0]["reward"], known[0]["metrics"])
        await make(OURS).score_group(own)
        await make(package).score_group(known)
        for mine, theirs in zip(own, known, strict=True):
            for name in ("reward", "metrics", "advantage", "trajectory"):
                assert mine[name] == theirs[name]
    assert make(OURS).has_group_rewards == make(package).has_group_rewards


async def test_wrong_weights_are_named():
    with pytest.raises(ValueError, match="weights: there are 2 for 1 functions"):
        rubrics.Rubric(funcs=[late], weights=[1.0, 2.0])


async def test_a_judge_is_asked_once_for_each_text():
    asked: list[Any] = []

    async def create(**request: Any) -> Any:
        asked.append(request)
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="yes"))])

    client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    rubric = rubrics.JudgeRubric(judge_client=client, judge_model="j", judge_sampling_args={"max_tokens": 5})

    async def judged(judge: Any, prompt: Any, completion: Any, answer: str, state: Any) -> float:
        return float("yes" in await judge(prompt, completion, answer, state))

    rubric.add_reward_func(judged)
    (state,) = make_states(OURS, 1)
    state["prompt"] = [UserMessage(content="How many?")]
    await rubric.score_rollout(state)
    await rubric.score_rollout(state)
    assert state["reward"] == 1.0 and len(asked) == 1
    assert asked[0]["model"] == "j" and asked[0]["max_completion_tokens"] == 5
    assert "How many?" in asked[0]["messages"][0]["content"]


async def test_mathematics_is_compared():
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    rubric = rubrics.MathRubric()
    (state,) = make_states(OURS, 1)
    state["answer"], state["completion"] = "1/2", [{"role": "assistant", "content": "It is \\boxed{0.5}."}]
    await rubric.score_rollout(state)
    assert state["reward"] == 1.0
    state["completion"] = [{"role": "assistant", "content": "It is 0.5."}]
    await rubric.score_rollout(state)
    assert state["reward"] == 0.0
