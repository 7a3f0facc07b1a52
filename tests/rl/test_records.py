"""Records of an RL run: their keys, their lines and how they are read back."""

import json

from tests.build import make_group

from ludus.encoding import to_json
from ludus.rl.records import (
    RL_STEPS,
    ConsumedGroup,
    RlStep,
    TrainedShares,
    encode_step,
    make_key,
    measure_held_out,
    measure_shares,
    read_steps,
)
from ludus.rl.trainers import UpdateMetrics
from ludus.store import MemoryStore


def put(store: MemoryStore, record: RlStep) -> None:
    store.put_record(make_key(record.run, record.step, record.groups), RL_STEPS, to_json(record))


def test_the_key_depends_on_the_groups_that_a_step_took():
    one, other = ConsumedGroup(1, 0), ConsumedGroup(1, 1)
    assert make_key("run", 1, [one]) == make_key("run", 1, [ConsumedGroup(1, 0)])
    assert (
        len(
            {make_key("run", 1, [one]), make_key("run", 1, [other]), make_key("run", 2, [one]), make_key("x", 1, [one])}
        )
        == 4
    )


def test_a_step_that_was_computed_again_replaces_those_from_it_on():
    store = MemoryStore()
    for step, version in ((0, 0), (1, 1), (2, 2), (3, 3)):
        put(store, RlStep(run="a", step=step, version=version, groups=(ConsumedGroup(step, version),)))
    put(store, RlStep(run="a", step=2, version=2, groups=(ConsumedGroup(9, 1),)))
    assert [(record.step, record.groups[0].number) for record in read_steps(store)] == [(0, 0), (1, 1), (2, 9)]


def test_a_store_may_have_several_runs():
    store = MemoryStore()
    put(store, RlStep(run="a", step=0, version=0))
    put(store, RlStep(run="b", step=0, version=0))
    assert [record.run for record in read_steps(store)] == ["b"]
    assert [record.run for record in read_steps(store, "a")] == ["a"]
    assert read_steps(MemoryStore()) == []


def test_lines_have_no_times():
    record = RlStep(run="a", step=1, version=1, metrics=UpdateMetrics(loss=0.5, seconds=3.0), seconds={"whole": 4.0})
    assert json.loads(encode_step(record)) == {"run": "a", "step": 1, "version": 1, "metrics": {"loss": 0.5}}


def test_held_out_tasks_have_equal_weight_and_failures_are_left_out():
    found = measure_held_out("validation", [make_group(1.0, 1.0), make_group(0.0, None), make_group(None, None)])
    assert (found.split, found.tasks, found.mean, found.failed) == ("validation", 2, 0.5, 3)
    assert measure_held_out("validation", [make_group(None)]).mean is None


def test_the_trained_share_is_by_how_long_groups_took():
    assert measure_shares([]) is None
    assert measure_shares([(1.0, True)]) is None
    assert measure_shares([(9.0, False), (1.0, True), (2.0, True), (8.0, True)]) == TrainedShares(1.0, 0.5)
    assert measure_shares([(1.0, True), (5.0, False), (9.0, True)]) == TrainedShares(1.0, 1.0)  # the middle is in none
