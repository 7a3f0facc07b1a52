"""Putting a run together: what does not fit is refused, and a finished part is not done again."""

import dataclasses
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
from tests.reflact_kit import make_run

from ludus.control import RunControl
from ludus.errors import ConfigError
from ludus.reflact.gate import Gate, Measure
from ludus.reflact.measure import Stopped
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import Baseline, MeasuredSkill, Reflection, RunState, Summary
from ludus.reflact.splits import Splits
from ludus.reflact.train_settings import SlowUpdate
from ludus.reflact.training_run import TrainingRun, read_records
from ludus.runner import RunOptions
from ludus.skill import Skill
from ludus.store import MemoryStore
from ludus.types import Rollout

replace = msgspec.structs.replace


class PatchOnly(Proposer):
    """Needs no model and proposes nothing."""

    name: ClassVar[str] = "patch-only"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        return ()


# ---- parts that are finished --------------------------------------------------------------------------------------


class Work:
    """Makes a baseline and counts how often."""

    def __init__(self) -> None:
        self.done = 0

    async def __call__(self, run: TrainingRun, state: RunState) -> Baseline:
        self.done += 1
        measure = Measure(state.initial.skill.hash)
        return Baseline(measure=measure, spent=(), seconds={"baseline": float(self.done)}, state=state)


def make_state(text: str = "# Skill\n") -> RunState:
    start = MeasuredSkill(Skill(text), "initial_skill")
    return RunState(initial=start, current=start, best=start)


async def test_a_finished_part_is_found_by_its_inputs_and_not_done_again(world: SimpleNamespace):
    run, work = make_run(world), Work()

    async def take(text: str) -> Baseline:
        return await run.load_or_run(Baseline, work, make_state(text))

    first, again, other = [await take("a"), await take("a"), await take("b")]
    assert first == again and first.seconds == {"baseline": 1.0}
    assert other.seconds == {"baseline": 2.0} and work.done == 2


async def test_a_run_that_is_asked_to_stop_begins_no_part_but_finds_finished_ones(world: SimpleNamespace):
    control = RunControl()
    run, work = make_run(world), Work()
    runner = dataclasses.replace(run.runner.runner, options=RunOptions(control=control))
    run = dataclasses.replace(run, runner=dataclasses.replace(run.runner, runner=runner))

    done = await run.load_or_run(Baseline, work, make_state("a"))
    control.stop()
    assert await run.load_or_run(Baseline, work, make_state("a")) == done
    with pytest.raises(Stopped):
        await run.load_or_run(Baseline, work, make_state("b"))
    assert work.done == 1


def test_the_store_has_the_records_in_order(world: SimpleNamespace):
    store = MemoryStore()
    records = world.run(store=store)
    assert list(read_records(store)) == records
    assert json.loads(msgspec.json.encode(records[1]))["record"] == "step"


# ---- settings that do not fit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"update_mode": "patches"}, "update_mode|Invalid enum"),
        ({"schedule": "cosinus"}, "Invalid enum"),
        ({"control": "fixed"}, "Invalid enum"),
        ({"batch_size": 0}, "batch_size"),
        ({"merge_batch_size": 1}, "merge_batch_size"),
        ({"gate": Gate(metric="hardest")}, "Invalid enum"),  # type: ignore[arg-type]
        ({"gate": Gate(mixed_weight=2.0)}, "mixed_weight"),
        ({"slow": SlowUpdate(pairs="all")}, "Invalid enum"),  # type: ignore[arg-type]
        ({"min_edit_budget": 9}, "min_edit_budget is 9"),
    ],
)
def test_settings_with_a_mistake_are_refused_before_anything_runs(world: SimpleNamespace, change: Any, says: str):
    with pytest.raises(ConfigError, match=says):
        world.run(settings=replace(world.SETTINGS, **change))


def test_an_empty_test_split_is_refused_unless_no_test_is_wanted(world: SimpleNamespace):
    splits = Splits.from_tasks(world.tasks("train", 3), world.tasks("selection", 3))
    with pytest.raises(ConfigError, match="test split is empty"):
        world.run(splits=splits)
    summary = world.run(splits=splits, settings=replace(world.SETTINGS, test=False))[-1]
    assert isinstance(summary, Summary) and summary.best.test is None


def test_a_skill_whose_head_is_not_in_form_is_refused(world: SimpleNamespace):
    with pytest.raises(ConfigError, match="front matter"):
        world.run(policy=world.policy("---\nname: x\n---\nbody"))


def test_what_needs_an_optimizer_is_refused_without_one(world: SimpleNamespace):
    with pytest.raises(ConfigError, match=r"needed for the proposer 'analysts', train\.slow\.enabled, train\.memory"):
        world.run(optimizer=False)
    with pytest.raises(ConfigError, match="cannot do full_rewrite_minibatch"):
        world.run(proposer=PatchOnly(), settings=replace(world.SETTINGS, update_mode="full_rewrite_minibatch"))
