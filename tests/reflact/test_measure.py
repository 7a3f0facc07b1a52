"""Measuring skills: several at once, each text once, and failures never as zeros."""

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.build import make_rollout
from tests.reflact_kit import make_result, make_waiting_runner

from ludus.control import RunControl
from ludus.errors import ModelError
from ludus.reflact.gate import Gate, Mark, Measure, ScoreTally
from ludus.reflact.journal import Journal
from ludus.reflact.measure import (
    Outage,
    SkillRunner,
    Stopped,
    Trial,
    choose_success_at,
    is_success,
    make_measure,
    merge_measures,
    warn_of_unloaded,
)
from ludus.reflact.records import add_costs, count_suspects, list_record_values
from ludus.runner import Runner, RunOptions
from ludus.sandbox import Sandbox
from ludus.skill import Skill
from ludus.suspects import SuspectPolicy
from ludus.types import Message, Rollout, Score, SkillUse


async def test_several_skills_are_measured_together(world: SimpleNamespace):
    runner = make_waiting_runner(world, 6)
    measures = await runner.measure([Skill("a"), Skill("b")], world.tasks("selection", 3), "x", seed=1)
    assert len(measures) == 2


def make_runner(world: SimpleNamespace, script: Any = None, options: RunOptions | None = None) -> SkillRunner:
    runner = Runner(world.Env(), options=options or RunOptions())
    return SkillRunner(runner, world.policy(script=script or world.agent), Journal())


async def test_rollouts_are_in_the_order_of_the_trials_and_equal_trials_are_run_once(world: SimpleNamespace):
    first, second = world.tasks("train", 2)
    skill = Skill("Obey RULE-0.")
    trials = [Trial(skill, second, 1), Trial(skill, first, 1), Trial(skill, second, 1), Trial(skill, second, 1, 1)]
    asked: list[str] = []
    seen: list[int] = []

    def agent(messages: Sequence[Message], *rest: Any) -> Message:
        asked.append(messages[-1].content)
        return world.agent(messages, *rest)

    runner = make_runner(world, agent, options=RunOptions(concurrency=1))
    rollouts = await runner.run_trials(trials, "x", lambda index, rollout: seen.append(index))
    assert [rollout.task.id for rollout in rollouts] == [trial.task.id for trial in trials]
    assert asked == [second.prompt, first.prompt, second.prompt]
    assert seen == [0, 2, 1, 3]
    assert runner.journal.sum_costs()[0].calls == 3
    await runner.run_trials(trials, "x")
    assert len(asked) == 3, "what is in the store is found"


def test_a_measure_has_one_mark_for_each_task_with_a_scored_rollout():
    skill = Skill("a")
    rollouts = [
        make_result("t2", True),
        make_result("t1", True),
        make_result("t1", False, soft=0.5),
        make_result("t3", None),
    ]
    measure = make_measure(skill, rollouts)
    assert measure == Measure(skill.hash, {"t1": Mark(0.5, 0.75, 2), "t2": Mark(1.0, 1.0)}, 1)


def test_measures_of_one_text_are_merged_rollout_by_rollout():
    one = Measure("a", {"t1": Mark(0.5, 0.5, 2), "t2": Mark(1.0, 1.0)}, 1)
    other = Measure("a", {"t1": Mark(1.0, 1.0), "t3": Mark(0.0, 0.25)}, 2)
    merged = merge_measures(one, other)
    assert merged.marks == {"t1": Mark(2 / 3, 2 / 3, 3), "t2": Mark(1.0, 1.0), "t3": Mark(0.0, 0.25)}
    assert merged.failed == 3
    with pytest.raises(ValueError, match="different texts"):
        merge_measures(one, Measure("b"))


def test_a_success_is_a_pass_or_enough_partial_credit():
    half = make_result("t", False, soft=0.5)
    assert not is_success(half, None) and is_success(half, 0.5) and not is_success(half, 0.6)
    assert not is_success(make_result("t", None), 0.0)


@pytest.mark.parametrize(("failing", "stops"), [(2, False), (3, False), (4, True)])
async def test_an_outage_is_three_failures_and_more_than_the_share_that_is_allowed(
    world: SimpleNamespace, failing: int, stops: bool
):
    def agent(messages: Sequence[Message], *rest: Any) -> Message:
        if int(messages[-1].content.split()[-1]) < failing:
            raise ModelError("server on fire", retryable=False)
        return world.agent(messages, *rest)

    runner = dataclasses.replace(make_runner(world, agent), max_failed=0.5)
    measuring = runner.measure([Skill("a")], world.tasks("selection", 6), "baseline", seed=1)
    if stops:
        with pytest.raises(Outage, match=r"baseline: 4 of 6 rollouts failed.*\(4 times\): model: server on fire"):
            await measuring
    else:
        (measure,) = await measuring
        assert (measure.failed, len(measure.marks)) == (failing, 6 - failing)


async def test_a_runner_that_is_asked_to_stop_finishes_what_runs(world: SimpleNamespace):
    control = RunControl()

    def agent(messages: Sequence[Message], *rest: Any) -> Message:
        control.stop()
        return world.agent(messages, *rest)

    runner = make_runner(world, agent, options=RunOptions(concurrency=2, control=control))
    with pytest.raises(Stopped):
        await runner.measure([Skill("a")], world.tasks("selection", 6), "x", seed=1)
    assert len(runner.runner.store.read_scores()) == 1
    with pytest.raises(Stopped):
        runner.check_stop()


# ---- suspects -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "hard"), [("zero", 0.0), ("keep", 1.0), ("drop", None)])
async def test_a_suspect_counts_as_the_run_says_and_is_counted(
    world: SimpleNamespace, policy: SuspectPolicy, hard: float | None
):
    class Forged(world.Env, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            return Score(1.0, True, 1.0, suspect=("the tests were edited",))

    runner = make_runner(world)
    runner = dataclasses.replace(runner, runner=Runner(Forged(), suspects=policy))
    (measure,) = await runner.measure([Skill("a")], world.tasks("selection", 3), "x", seed=1)
    assert measure.hard == hard
    (cost,) = runner.journal.sum_costs()
    assert (cost.calls, cost.suspects) == (3, 3)
    assert add_costs([cost], [cost])[0].suspects == 6


@pytest.mark.parametrize("recipe", ["ledger", "reflact"])
def test_neither_recipe_learns_from_forged_scores(world: SimpleNamespace, recipe: str):
    class Forged(world.Env, frozen=True):
        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            honest = await super().verify(rollout, box)
            return honest if honest.passed else Score(1.0, True, 1.0, suspect=("the tests were edited",))

    records = world.run(env=Forged(), settings=msgspec.structs.replace(world.SETTINGS, recipe=recipe))
    honest = world.run(settings=msgspec.structs.replace(world.SETTINGS, recipe=recipe))
    assert count_suspects(records[-1].state.spent) > 0 == count_suspects(honest[-1].state.spent)
    assert records[-1].initial.test.overall.hard == honest[-1].initial.test.overall.hard
    assert list_record_values(records[-1])["suspects"] == count_suspects(records[-1].state.spent)


@pytest.mark.parametrize(
    ("scores", "metric", "bar"),
    [
        ([], "auto", None),
        ([(False, 0.0)] * 8, "auto", None),
        ([(True, 1.0), (False, 0.4)], "auto", None),
        ([(False, 0.6)] * 8, "auto", None),
        ([(False, 0.5), (False, 0.9)], "auto", 0.81),
        ([(False, 0.5), (False, 0.9)], "hard", None),
    ],
)
def test_where_nothing_ever_passes_the_best_rollouts_are_successes(
    scores: list[tuple[bool, float]], metric: Any, bar: float | None
):
    tally = ScoreTally().add(scores)
    assert choose_success_at(None, Gate(metric=metric), tally) == (None if bar is None else pytest.approx(bar))
    assert choose_success_at(0.3, Gate(metric=metric), tally) == 0.3, "what was set stays"


def test_a_skill_that_is_never_loaded_is_warned_of_and_one_that_nobody_saw_is_not():
    def make_uses(*loaded: bool | None) -> list[Rollout]:
        return [msgspec.structs.replace(make_rollout(), skill_use=SkillUse(loaded=each)) for each in loaded]

    assert "none of 2 rollouts loaded the skill" in warn_of_unloaded("rollout", make_uses(False, False))
    assert warn_of_unloaded("rollout", make_uses(False, None)) == ""
    assert warn_of_unloaded("rollout", make_uses(False, True)) == ""
    assert warn_of_unloaded("rollout", [make_rollout()]) == ""
