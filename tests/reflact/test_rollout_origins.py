"""The split and the stage of each stored rollout: recorded before a stage runs, or rebuilt."""

from types import SimpleNamespace

import pytest
from tests.reflact_kit import make_waiting_runner

from ludus.reflact.gate import Measure
from ludus.reflact.measure import Trial
from ludus.reflact.records import Baseline, MeasuredSkill, RunState, Step
from ludus.reflact.rollout_origins import Origin, read_origins, rebuild_origins, record_stage
from ludus.reflact.splits import Splits
from ludus.skill import Skill
from ludus.store import MemoryStore
from ludus.types import Task


@pytest.mark.parametrize(
    ("stage", "split"),
    [
        ("rollout", "train"),
        ("slow", "train"),
        ("baseline", "selection"),
        ("evaluate", "selection"),
        ("validate", "selection"),
        ("test", "test"),
    ],
)
def test_a_stage_runs_tasks_of_one_split(stage: str, split: str):
    store = MemoryStore()
    record_stage(store, stage, ["a", "b"])
    assert read_origins(store) == {"a": Origin(split, stage), "b": Origin(split, stage)}


def test_the_first_stage_of_an_outcome_counts_and_a_stage_is_recorded_once():
    store = MemoryStore()
    for stage in ("baseline", "evaluate", "baseline"):
        record_stage(store, stage, ["a"])
    assert read_origins(store) == {"a": Origin("selection", "baseline")}
    assert len(store.bodies) == 2


async def test_rollouts_are_recorded_with_their_stage(world: SimpleNamespace):
    runner = make_waiting_runner(world, 2)

    await runner.run_trials([Trial(Skill("a"), task, 1) for task in world.tasks("train", 2)], "rollout")
    store = runner.runner.store
    assert isinstance(store, MemoryStore)
    assert read_origins(store) == dict.fromkeys(store.outcomes, Origin("train", "rollout"))


def test_origins_are_rebuilt_from_the_splits_and_the_parts_of_the_run():
    train, selection, test, other = (Task(id="t", prompt=name, answer="1") for name in ("a", "b", "c", "d"))
    splits = Splits.from_tasks([train], [selection], [test])
    tasks = {"1": selection, "2": train, "3": selection, "4": test, "5": train, "6": other}
    held = MeasuredSkill(Skill("s"), "initial_skill")
    state = RunState(initial=held, current=held, best=held)
    baseline = Baseline(measure=Measure(held.skill.hash), spent=(), seconds={}, state=state)
    step = Step(number=1, epoch=1, place=1, batches=(), action="reject", state=state)
    assert rebuild_origins(tasks, splits, [(baseline, ["1"]), (step, ["2", "3"])]) == {
        "1": Origin("selection", "baseline"),
        "2": Origin("train", "rollout"),
        "3": Origin("selection", "evaluate"),
        "4": Origin("test", "test"),
        "5": Origin("train", ""),  # of a part that is not finished
        "6": Origin("test", "test"),  # never trained on by mistake
    }
