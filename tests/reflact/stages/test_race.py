"""Races: what is run for a decision, and what is found instead of run again."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from tests.reflact_kit import make_run

from ludus.reflact.early_gates import EarlyRule
from ludus.reflact.gate import Contender, Decision, Gate, Measure
from ludus.reflact.gate_rules import find_rule
from ludus.reflact.records import MeasuredSkill, RunState, Summary
from ludus.reflact.stages.evaluate import evaluate, measure_on_selection, set_measure, update_measure
from ludus.reflact.stages.race import measure_until_clear
from ludus.reflact.training_run import TrainingRun
from ludus.skill import Skill

GOOD, BAD, HALF = Skill("Obey RULE-0. Obey RULE-1. Obey RULE-2."), Skill("# Skill\n"), Skill("Obey RULE-0.")


async def make_state(run: TrainingRun, initial: Skill, current: Skill | None = None) -> RunState:
    """The state of a run whose current skill was accepted, with a measure."""
    start = MeasuredSkill(initial, "initial_skill")
    state = await measure_current(run, RunState(initial=start, current=start, best=start))
    state = replace(state, initial=state.current, best=state.current)
    if current is None:
        return state
    held = MeasuredSkill(current, "step_0001", 1)
    return await measure_current(run, replace(state, current=held))


async def measure_current(run: TrainingRun, state: RunState) -> RunState:
    (measure,) = await measure_on_selection(run, [state.current.skill], "validate")
    return set_measure(state, measure, run.settings.gate)


async def judge_in(
    world: SimpleNamespace, gate: Gate, candidate: Skill, initial: Skill, current: Skill | None = None
) -> Any:
    """The judgement about a candidate, and the rollouts that it took."""
    run = make_run(world, gate=gate, rule=find_rule(gate.rule or "mean"))
    state = await make_state(run, initial, current)
    run.journal.close()
    judgement = await evaluate(run, state, candidate, "step_0002", 2, gate)
    return judgement, sum(cost.calls for cost in run.journal.sum_costs())


async def test_a_candidate_that_cannot_be_accepted_is_not_measured_to_the_end(world: SimpleNamespace):
    whole, took_whole = await judge_in(world, Gate(), BAD, GOOD)
    part, took = await judge_in(world, Gate(rule="curtailed", block=2), BAD, GOOD)
    assert (took_whole, took) == (6, 2)
    assert whole.verdict.decision is part.verdict.decision is Decision.REJECT
    assert part.verdict.items == 2 and part.verdict.paired.difference == -1.0
    assert part.state == whole.state


async def test_a_sequential_gate_stops_when_it_is_sure_and_a_partial_measure_is_completed_later(world: SimpleNamespace):
    gate = Gate(rule="sequential", block=2)
    accepted, took = await judge_in(world, gate, GOOD, BAD)
    assert accepted.verdict.decision is Decision.ACCEPT_NEW_BEST
    assert took == 2 and len(accepted.measure.marks) == 2
    run = make_run(world, gate=gate)
    state = replace(await make_state(run, BAD), current=accepted.state.current, best=accepted.state.best)
    state = (await evaluate(run, state, HALF, "step_0002", 2, replace(gate, accept_at=1.0, reject_at=0.0))).state
    assert len(state.current.measure.marks) == 6, "the current skill was measured where the candidate was"


async def test_an_open_decision_uses_the_items_again_with_new_seeds_for_both(world: SimpleNamespace):
    judgement, took = await judge_in(world, Gate(rule="sequential", block=6, passes=2), BAD, BAD)
    assert judgement.verdict.decision is Decision.UNDECIDED and took == 6, "one text, one more replicate"
    same = Skill("# Skill\nBe kind.\n")
    judgement, took = await judge_in(world, Gate(rule="sequential", block=6, passes=2), same, BAD)
    assert judgement.verdict.decision is Decision.UNDECIDED
    assert took == 18, "6 and 6 of the candidate, 6 more of the current skill"
    assert all(mark.count == 2 for mark in judgement.measure.marks.values())
    assert all(mark.count == 2 for mark in judgement.state.current.measure.marks.values())
    assert judgement.state.best.measure == judgement.state.current.measure


async def test_an_accepted_skill_is_measured_again_with_new_seeds_and_the_initial_one_is_not(world: SimpleNamespace):
    judgement, took = await judge_in(world, Gate(refresh=True), GOOD, BAD)
    assert took == 6 and judgement.verdict.decision is Decision.ACCEPT_NEW_BEST
    judgement, took = await judge_in(world, Gate(refresh=True), GOOD, BAD, HALF)
    assert took == 12
    judgement, took = await judge_in(world, Gate(refresh=True), BAD, BAD, HALF)
    assert {mark.count for mark in judgement.state.current.measure.marks.values()} == {2}


async def test_rules_that_do_not_decide_early_have_one_look(world: SimpleNamespace):
    run = make_run(world)
    own, current = await measure_until_clear(
        run, GOOD, Contender(BAD, Measure(BAD.hash)), 1, Gate(refresh=True), refresh=False
    )
    assert len(own.marks) == len(current.marks) == 6 and own.failed == current.failed == 0


async def test_a_measure_is_replaced_wherever_the_state_has_its_skill(world: SimpleNamespace):
    state = await make_state(make_run(world), BAD, GOOD)
    new = Measure(BAD.hash, {})
    state = update_measure(state, BAD, new)
    assert state.initial.measure == new and state.current.measure != new


@pytest.mark.parametrize("rule", ["curtailed", "sequential"])
def test_training_with_an_early_rule_reaches_the_same_skill_with_fewer_rollouts(world: SimpleNamespace, rule: str):
    def count(records: list[Any]) -> int:
        return sum(cost.calls for cost in records[-1].spent if cost.stage == "evaluate")

    plain = world.run()
    early = world.run(settings=replace(world.SETTINGS, gate=Gate(rule=rule, block=2)))
    assert isinstance(early[-1], Summary) and isinstance(find_rule(rule), EarlyRule)
    assert early[-1].best.test.overall.hard == plain[-1].best.test.overall.hard == 1.0
    assert count(early) <= count(plain)
