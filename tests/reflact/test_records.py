"""The types of a training run: what they refuse, and what they add up."""

import pytest
from tests.build import make_rollout

from ludus.reflact.gate import Measure
from ludus.reflact.records import (
    REFUSED,
    Baseline,
    BatchReport,
    EpochEnd,
    EpochStats,
    HistoryLine,
    MeasuredSkill,
    Product,
    RunState,
    ScoreBucket,
    SlowReport,
    SplitScores,
    StageCost,
    Step,
    Summary,
    UnusableReply,
    add_costs,
    count_exclusions,
    count_useless_replies,
    make_epoch_stats,
    pool_scores,
)
from ludus.skill import Skill
from ludus.types import Score, Usage


def test_a_measure_of_another_text_cannot_be_held():
    with pytest.raises(ValueError, match="another text"):
        MeasuredSkill(Skill("a"), "x", measure=Measure(Skill("b").hash))


def test_totals_add_up_by_role_and_stage():
    one, two = StageCost("agent", "test", 1, Usage(1, 1)), StageCost("agent", "slow", 2, Usage(2, 2))
    assert add_costs([one], [two, one]) == (two, StageCost("agent", "test", 2, Usage(2, 2)))


def test_a_batch_report_has_means_over_scored_rollouts():
    rollouts = [make_rollout(Score(1.0, True, 1.0)), make_rollout(Score(0.0, False, 0.5)), make_rollout(None)]
    assert BatchReport.from_rollouts(7, rollouts) == BatchReport(7, 3, 1, 0.5, 0.75)
    assert BatchReport.from_rollouts(7, rollouts[2:]) == BatchReport(7, 1, 1, None, None)


def test_every_rollout_of_several_batches_has_the_same_weight():
    batches = [BatchReport(1, 4, 1, 1 / 3, 0.5), BatchReport(2, 1, 0, 1.0, 1.0), BatchReport(3, 2, 2, None, None)]
    assert pool_scores(batches) == (4, 0.5, 0.625)
    assert pool_scores(batches[2:]) == (0, None, None)


def test_the_history_is_counted_epoch_by_epoch():
    history = [
        HistoryLine(1, 1, "accept_new_best", 0.5, 0.5),
        HistoryLine(2, 1, "reject", 0.5, 0.5),
        HistoryLine(3, 2, "undecided", 0.5, 0.5),
        HistoryLine(4, 2, "accept", 0.25, 0.5),
        HistoryLine(5, 2, "skip_no_updates", 0.25, 0.5),
    ]
    assert make_epoch_stats(history) == (
        EpochStats(1, 2, 1, 1, 0, 0, 0.5, 0.5),
        EpochStats(2, 3, 1, 0, 1, 1, 0.25, 0.5),
    )


def test_rollouts_without_a_score_are_counted_over_the_whole_run():
    skill = Skill("s")
    held = MeasuredSkill(skill, "initial_skill")
    state = RunState(initial=held, current=held, best=held, spent=(StageCost("agent", "test", 90, Usage()),))
    measure = Measure(skill.hash, {}, 2)
    slow = SlowReport(action="reject", measure=measure)
    tested = SplitScores(ScoreBucket(4, 3, 0.5, 0.5, None), {}, 5)
    product = Product(skill, "initial_skill", 0, None, None, None, tested)
    records = [
        Baseline(measure=measure, spent=(), seconds={}, state=state),
        Step(
            number=1,
            epoch=1,
            place=1,
            batches=(BatchReport(7, 3, 1, 0.5, 0.5),),
            action="reject",
            measure=measure,
            state=state,
        ),
        EpochEnd(epoch=1, slow=slow, state=state),
        Summary(
            steps=1,
            accepted=0,
            rejected=1,
            undecided=0,
            skipped=0,
            epochs=(),
            promoted=False,
            initial=product,
            best=product,
            final=product,
            spent=(),
            seconds={},
            state=state,
        ),
    ]
    assert count_exclusions(records) == (2 + 1 + 2 + 2 + 5, 90), "a skill that is three products was tested once"
    assert count_exclusions([]) == (0, 0)


def test_replies_are_useless_if_none_was_usable():
    held = MeasuredSkill(Skill("s"), "initial_skill")
    state = RunState(initial=held, current=held, best=held)
    bad, refused = UnusableReply("reflect", "1", "no JSON", 3), UnusableReply("rank", "1", f"{REFUSED}: 400", 2)

    def make_step(replies: int, *events: UnusableReply) -> Step:
        spent = (StageCost("optimizer", "reflect", replies, Usage()), StageCost("agent", "rollout", 7, Usage()))
        return Step(
            number=1, epoch=1, place=1, batches=(), action="skip_no_updates", events=events, spent=spent, state=state
        )

    assert count_useless_replies([make_step(3, bad), make_step(1, refused)]) == 4
    assert count_useless_replies([make_step(3, bad), make_step(1)]) == 0
    assert count_useless_replies([make_step(4, bad)]) == 0
    assert count_useless_replies([make_step(0)]) == count_useless_replies([]) == 0
