"""The environment `reasoning-gym`: splits, names, scores; and all generators (make test-envs)."""

import importlib.util
import os

import pytest

from ludus.env_checks import validate
from ludus.envs.reasoning import LEFT_OUT, ReasoningGym, find_tagged, read_constants
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.types import Task

JUNK = ("I do not know.", "banana", "(((", "lorem ipsum dolor sit amet", "{}")
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed (make test-envs)"
)


async def score(env: ReasoningGym, task: Task, answer: str) -> float:
    found = (await run(Job(task, Policy(ScriptedModel([answer]))), Runner(env))).score
    assert found is not None
    return found.value


def test_the_last_tags_count():
    assert find_tagged("<answer>1</answer> no <answer> 2\n</answer>.") == "2"
    assert find_tagged(" 3 ") == "3"


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("ludus.envs.reasoning.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ludus-train\[reasoning-gym\]"):
        list(ReasoningGym().tasks("train"))


def test_the_best_constants_are_known():
    found = read_constants()
    assert len(found) == 94 and not found.keys() & LEFT_OUT.keys()
    assert all(0.0 <= each.score <= 1.0 for each in found.values())
    assert found["coin_flip"].score > 0.8 > 0.05 > found["chain_sum"].score


@needs_package
def test_generators_in_which_a_constant_earns_much_are_left_out():
    names = ("coin_flip", "chain_sum", "syllogism")
    assert {task.kind for task in ReasoningGym(generators=names).tasks("train")} == set(names)
    assert {task.kind for task in ReasoningGym(generators=names, max_constant=0.2).tasks("train")} == {"chain_sum"}
    with pytest.raises(ConfigError, match="max_constant: 0 leaves no generator"):
        list(ReasoningGym(generators=("coin_flip",), max_constant=0.0).tasks("train"))


@needs_package
async def test_the_best_constant_earns_what_is_said():
    env = ReasoningGym(generators=("coin_flip",), size=60, seed=5)
    constant = read_constants()["coin_flip"]
    scores = [await score(env, task, constant.answer) for task in env.tasks("train")]
    assert abs(sum(scores) / len(scores) - constant.score) < 0.15


@needs_package
def test_splits_repeat_and_share_no_question():
    env = ReasoningGym(generators=("chain_sum", "letter_counting"), size=5, seed=3)
    tasks = {split: list(env.tasks(split)) for split in ("train", "validation", "test")}
    assert {split: len(found) for split, found in tasks.items()} == dict.fromkeys(tasks, 10)
    assert len({task.prompt for found in tasks.values() for task in found}) == 30
    assert list(env.tasks("test")) == tasks["test"]
    assert list(env.tasks("other")) == []


@needs_package
@pytest.mark.parametrize(("name", "says"), [("chain_sun", "did you mean 'chain_sum'"), ("codeio", "cannot repeat")])
def test_unknown_and_left_out_generators_are_refused(name: str, says: str):
    with pytest.raises(ConfigError, match=says):
        list(ReasoningGym(generators=(name,)).tasks("train"))


@needs_package
async def test_scores():
    env = ReasoningGym(generators=("chain_sum", "prime_factorization"), size=1)
    for task in env.tasks("train"):
        gold = await env.solve(task, None)
        assert await score(env, task, f"I think <answer>0</answer>, no: {gold}") == 1.0
        assert [await score(env, task, junk) for junk in JUNK] == [0.0] * len(JUNK)


@needs_package
@pytest.mark.skipif(not os.environ.get("LUDUS_TEST_ENVS"), reason="all generators: make test-envs")
async def test_every_generator_is_proved_or_left_out_by_name():
    """Gold 1, nothing 0, junk 0, the same questions again: 94 of 106 generators."""
    env = ReasoningGym(size=2)
    tasks = list(env.tasks("train"))
    assert len({task.kind for task in tasks}) == 106 - len(LEFT_OUT) == 94
    report = await validate(Runner(env), "train", tasks)
    assert report.ok, report
    assert {(task.kind, junk) for task in tasks for junk in JUNK if await score(env, task, junk)} == set()
    assert list(ReasoningGym(size=2).tasks("train")) == tasks
