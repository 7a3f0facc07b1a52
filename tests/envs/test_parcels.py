"""Parcels: what is sampled, what the desks do, and how an answer is judged."""

from collections import Counter

import pytest

from ludus.envs.parcels import COLORS, DESKS, SIZES, WRONG_DESK, Parcels, make_desks
from ludus.models.scripted import Reply, ScriptedModel, call
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.types import Rollout, Task

TASK = Task(id="t", prompt="Send 7 red lamps.", answer={"desk": "north", "number": 7, "stamp": "acorn"})


async def act(*replies: Reply) -> Rollout:
    return await run(Job(TASK, Policy(ScriptedModel(list(replies)))), Runner(Parcels()))


@pytest.mark.parametrize(
    ("replies", "score"),
    [
        ((call("north", number=7), "acorn"), 1.0),
        ((call("north", number=7), " acorn\n"), 1.0),
        ((call("north", number=7), "The stamp is acorn."), 0.0),
        ((call("south", number=7), "lost"), 0.0),
        ((call("south", number=7), call("north", number=7), "lost"), 0.0),
        ((call("north", number=6), "lost"), 0.0),
        (("I do not know.",), 0.0),
    ],
)
async def test_scores(replies: tuple[Reply, ...], score: float):
    found = (await act(*replies)).score
    assert found is not None and found.value == score


async def test_a_parcel_goes_to_one_desk_only():
    rollout = await act(call("south", number=7), call("north", number=7), "lost")
    assert [result.content for turn in rollout.turns for result in turn.results] == [WRONG_DESK, WRONG_DESK]


async def test_the_desks_of_two_rollouts_know_nothing_of_each_other():
    first, second = make_desks(TASK), make_desks(TASK)
    await first[1].run({"number": 7})
    assert await second[0].run({"number": 7}) == "acorn"


def test_splits_share_no_parcel_and_every_desk_has_as_many_colors():
    env = Parcels(seed=3)
    tasks = {split: list(env.tasks(split)) for split in SIZES}
    assert {split: len(found) for split, found in tasks.items()} == SIZES
    assert len({task.id for found in tasks.values() for task in found}) == sum(SIZES.values())
    assert Counter(env.assign_desks().values()) == dict.fromkeys(DESKS, len(COLORS.split()) // len(DESKS))
    assert not list(env.tasks("other"))


def test_the_prompt_does_not_say_the_desk_and_seeds_differ():
    env = Parcels()
    assert not any(desk in task.prompt for desk in DESKS for task in env.tasks("train"))
    assert env.assign_desks() == Parcels().assign_desks() != Parcels(seed=1).assign_desks()
