"""Stage 6 and the test at the end: what is measured, and which skill is the current and the best one afterwards."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from tests.build import make_rollout, make_task
from tests.reflact_kit import make_run, make_waiting_runner

from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.reflact.gate import Contender, Decision, Gate, Mark, Measure, Verdict, judge
from ludus.reflact.records import MeasuredSkill, RunState
from ludus.reflact.splits import FinishedSkills
from ludus.reflact.stages.evaluate import (
    evaluate,
    make_bucket,
    make_product,
    measure_on_selection,
    run_test,
    set_measure,
    summarize_test,
)
from ludus.reflact.train_settings import TrainSettings
from ludus.skill import Skill

GOOD, BAD = Skill("Obey RULE-0. Obey RULE-1. Obey RULE-2."), Skill("# Skill\n")


def make_measured(skill: Skill, *hards: float) -> MeasuredSkill:
    marks = {str(n): Mark(hard, hard) for n, hard in enumerate(hards)}
    return MeasuredSkill(skill, "initial_skill", 0, Measure(skill.hash, marks))


def make_state(skill: Skill) -> RunState:
    start = MeasuredSkill(skill, "initial_skill")
    return RunState(initial=start, current=start, best=start)


async def test_without_a_candidate_nothing_is_measured(world: SimpleNamespace):
    run = make_run(world)
    judgement = await evaluate(run, make_state(BAD), None, "step_0001", 1, Gate())
    assert (judgement.state, judgement.verdict, judgement.measure) == (make_state(BAD), None, None)
    assert run.journal.sum_costs() == ()


async def test_a_better_candidate_becomes_current_and_best_and_an_unmeasured_current_skill_is_measured_first(
    world: SimpleNamespace,
):
    judgement = await evaluate(make_run(world), make_state(BAD), GOOD, "step_0001", 1, Gate())
    assert judgement.verdict is not None and judgement.measure is not None
    assert (judgement.verdict.candidate, judgement.verdict.current) == (1.0, 0.0)
    assert judgement.measure.skill == GOOD.hash
    state = judgement.state
    assert (state.current.skill, state.current.origin, state.current.step) == (GOOD, "step_0001", 1)
    assert state.best.skill == BAD  # it was not measured, so nothing could be compared with it


async def test_the_verdict_carries_the_number_of_rollouts_without_a_score(world: SimpleNamespace):
    judgement = await evaluate(make_run(world), make_state(BAD), GOOD, "step_0001", 1, Gate())
    assert judgement.verdict is not None and judgement.verdict.excluded is UNSET
    assert b"excluded" not in to_json(judgement.verdict), "the form of earlier versions"
    current = MeasuredSkill(BAD, "initial_skill", 0, Measure(BAD.hash, {}, 3))
    state = RunState(initial=current, current=current, best=current)
    judgement = await evaluate(make_run(world), state, GOOD, "step_0001", 1, Gate())
    assert judgement.verdict is not None and judgement.verdict.excluded == 3
    assert msgspec.json.decode(to_json(judgement.verdict), type=Verdict) == judgement.verdict


async def test_a_worse_candidate_changes_nothing(world: SimpleNamespace):
    run = make_run(world)
    (measure,) = await measure_on_selection(run, [GOOD], "baseline")
    start = MeasuredSkill(GOOD, "initial_skill", 0, measure)
    state = RunState(initial=start, current=start, best=start)
    judgement = await evaluate(run, state, BAD, "step_0001", 1, Gate())
    assert judgement.verdict is not None and judgement.verdict.decision is Decision.REJECT
    assert judgement.state == state


async def test_a_rule_of_ones_own_decides_while_the_gate_is_on(world: SimpleNamespace):
    def refuse(gate: Gate, candidate: Contender, current: Contender, best: Contender) -> Verdict:
        return Verdict(Decision.REJECT, None, None, None, 0)

    run = make_run(world, rule=refuse)
    for gate, accepted in ((Gate(), False), (Gate(enabled=False), True)):
        judgement = await evaluate(run, make_state(BAD), GOOD, "step_0001", 1, gate)
        assert judgement.verdict is not None and judgement.verdict.decision.accepted is accepted
    assert make_run(world).rule is judge


@pytest.mark.parametrize(("hard", "promoted"), [(1.0, True), (0.5, False), (0.0, False)])
def test_a_late_measure_promotes_the_current_skill_only_if_it_is_better(hard: float, promoted: bool):
    best = make_measured(BAD, 0.5, 0.5)
    state = RunState(initial=best, current=MeasuredSkill(GOOD, "appendix_step_0001", 1), best=best)
    after = set_measure(state, make_measured(GOOD, hard, hard).measure or Measure(GOOD.hash), Gate())
    assert after.current.measure is not None
    assert after.best == (after.current if promoted else best)


def test_scores_by_task_type_and_rollouts_that_failed():
    tasks = [make_task(str(n), kind="odd" if n % 2 else "even") for n in range(4)]
    rollouts = [make_rollout(float(n == 1), task=task) for n, task in enumerate(tasks[:3])]
    scores = summarize_test(GOOD, tasks, [*rollouts, make_rollout(None, task=tasks[3])]).scores
    assert (scores.overall.tasks, scores.overall.scored, scores.failed) == (4, 3, 1)
    assert scores.overall.hard == pytest.approx(1 / 3)
    assert {kind: (bucket.scored, bucket.hard) for kind, bucket in scores.kinds.items()} == {
        "even": (2, 0.0),
        "odd": (1, 1.0),
    }
    assert summarize_test(GOOD, tasks[:1], rollouts[:1]).scores.kinds == {}
    empty = make_bucket(Measure(GOOD.hash), tasks)
    assert (empty.tasks, empty.scored, empty.hard, empty.interval) == (4, 0, None, None)


def test_a_product_of_a_skill_that_was_not_measured_has_no_scores():
    product = make_product(Gate(), MeasuredSkill(GOOD, "step_0001", 1), None)
    assert (product.selection, product.hard, product.soft, product.test) == (None, None, None, None)
    assert make_product(Gate(metric="soft"), make_measured(GOOD, 0.5), None).selection == 0.5


@pytest.mark.parametrize(("recipe", "tested"), [("reflact", "abc"), ("ledger", "ab")])
async def test_the_tests_at_the_end_run_together(world: SimpleNamespace, recipe: Any, tested: str):
    runner = make_waiting_runner(world, 6 * len(tested))
    run: Any = SimpleNamespace(settings=TrainSettings(recipe=recipe), splits=world.splits(), runner=runner)
    found = await run_test(run, FinishedSkills(Skill("a"), Skill("b"), Skill("c")))
    assert [skill.text for skill in found] == list(tested)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (True, "returned bool, not a Verdict"),
        (None, "returned NoneType, not a Verdict"),
        (Verdict("accept", 1.0, 0.0, 0.0, 1), "returned a Verdict whose decision is 'accept'"),  # pyright: ignore[reportArgumentType]
    ],
)
async def test_a_rule_that_returns_no_verdict_is_named(world: SimpleNamespace, result: Any, message: str):
    def my_rule(gate: Gate, *contenders: Contender) -> Any:
        return result

    with pytest.raises(ConfigError, match=rf"train\.gate\.rule: .*my_rule {message}"):
        await evaluate(make_run(world, rule=my_rule), make_state(BAD), GOOD, "step_0001", 1, Gate())
