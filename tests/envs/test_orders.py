"""Orders into records: what is sampled, and how it is judged."""

import pytest

from ludus.envs.orders import COLORS, PHRASINGS, SIZES, Orders
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.reflact.splits import load_splits
from ludus.reflact.train_settings import DataSettings
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.types import Score, Task

TASK = Task(id="t", prompt="83 blue lamps, please.", answer="lamps|blue|83")


async def score(answer: str) -> Score:
    found = (await run(Job(TASK, Policy(ScriptedModel([answer]))), Runner(Orders()))).score
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("answer", "passed", "soft"),
    [
        ("lamps|blue|83", True, 1.0),
        ("  lamps|blue|83\n", True, 1.0),
        ("lamps|blue|38", False, 2 / 3),
        ("lamp|Blue|83", False, 1 / 3),
        ("83|blue|lamps", False, 1 / 3),
        ("lamps|blue", False, 0.0),
        ("lamps|blue|83|please", False, 0.0),
        ("Sure! lamps|blue|83", False, 2 / 3),
        ("I would be happy to help.", False, 0.0),
        ("", False, 0.0),
    ],
)
async def test_scoring(answer: str, passed: bool, soft: float):
    got = await score(answer)
    assert (got.passed, got.soft) == (passed, pytest.approx(soft))
    assert passed or got.feedback


@pytest.mark.parametrize("seed", range(5))
def test_splits_share_no_task_and_nothing_to_order(seed: int):
    splits = load_splits(Orders(seed=seed), DataSettings(mode="splits"))  # refuses a task that is in two
    parts = {name: tuple(Orders(seed=seed).tasks(name)) for name in SIZES}
    assert (splits.train, splits.selection, len(splits.test)) == (parts["train"], parts["validation"], SIZES["test"])
    things = [{task.answer.split("|")[0] for task in tasks} for tasks in parts.values()]
    assert not any(one & other for n, one in enumerate(things) for other in things[n + 1 :])
    for name, tasks in parts.items():
        assert len({task.prompt for task in tasks}) == len({task.id for task in tasks}) == SIZES[name]
        assert {task.kind for task in tasks} == set(PHRASINGS)
        assert all(part in task.prompt for task in tasks for part in task.answer.split("|"))
        assert {task.answer.split("|")[1] for task in tasks} <= set(COLORS.split())


def test_a_seed_draws_the_same_orders_and_another_seed_others():
    first, again, other = (tuple(Orders(seed=seed).tasks("train")) for seed in (0, 0, 1))
    assert first == again
    assert {task.prompt for task in first} & {task.prompt for task in other} == set()
    assert list(Orders().tasks("no such split")) == []
