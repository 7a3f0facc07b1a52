"""Suspects: what training makes of them, in words and in weights, and how they are shown."""

from typing import ClassVar

import pytest
from tests.build import make_group, make_rollout
from tests.rl_kit import Letters, collect, make_run

from ludus.audit.arms import Arm
from ludus.audit.audit_run import run_arms
from ludus.audit.findings import Outcome
from ludus.comparison import compare_runs
from ludus.engine import address_jobs, make_group_jobs, run_stored
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.runner import Runner
from ludus.sandbox import Sandbox
from ludus.stats import summarize
from ludus.suspects import SuspectPolicy, count_suspects, describe_suspects, weigh_suspect, weigh_suspects
from ludus.types import Rollout, Score

EVIDENCE = ("a test that must fail passes",)
FORGED = Score(1.0, True, 1.0, "all tests pass", suspect=EVIDENCE)


@pytest.mark.parametrize(
    ("score", "policy", "value", "passed"),
    [
        (FORGED, "zero", 0.0, False),
        (FORGED, "keep", 1.0, True),
        (FORGED, "drop", None, None),
        (Score(-1.0, False, 0.0, suspect=EVIDENCE), "zero", -1.0, False),
        (Score.of(1.0), "zero", 1.0, True),
        (Score.of(1.0), "drop", 1.0, True),
    ],
)
def test_what_training_sees(score: Score, policy: SuspectPolicy, value: float | None, passed: bool | None):
    seen = weigh_suspect(make_rollout(score), policy).score
    assert (seen.value, seen.passed) == (value, passed) if seen else value is None


def test_the_feedback_of_a_suspect_says_why_its_score_does_not_count():
    seen = weigh_suspect(make_rollout(FORGED), "zero").score
    assert seen is not None and seen.suspect == EVIDENCE and seen.soft == 0.0
    assert seen.feedback == "The score 1 does not count: a test that must fail passes\nall tests pass"


def test_a_group_without_suspects_is_the_same_object_and_failures_are_no_suspects():
    group = make_group(1.0, None)
    assert weigh_suspects(group, "zero") is group and count_suspects(group.rollouts) == 0
    weighed = weigh_suspects(make_group(make_rollout(FORGED), 1.0), "drop")
    assert weighed.partial and count_suspects(weighed.rollouts) == 1


def test_the_words_name_the_setting():
    assert describe_suspects(0, "zero") == ""
    assert describe_suspects(1, "zero") == "1 suspect rollout counted as 0 (run.suspects zero)"


# ---- numbers ------------------------------------------------------------------------------------------------------


def test_a_summary_has_the_mean_with_and_without_suspects():
    overall = summarize([make_group(make_rollout(FORGED), 0.0), make_group(0.5, 0.5)]).overall
    assert (overall.mean, overall.suspects, overall.mean_without_suspects) == (0.5, 1, 0.25)
    none = summarize([make_group(1.0)]).overall
    assert (none.suspects, none.mean_without_suspects) == (0, None)


def test_a_comparison_has_the_difference_with_and_without_suspects():
    compared = compare_runs({"a": [make_group(make_rollout(FORGED), 0.0)], "b": [make_group(0.0, 0.0)]})
    (pair,), (first, _) = compared.pairs, compared.runs
    assert (pair.difference, pair.difference_without_suspects) == (0.5, 0.0)
    assert (first.suspects, first.mean_without_suspects) == (1, 0.0)


# ---- training -----------------------------------------------------------------------------------------------------


class ForgedLetters(Letters, frozen=True):
    """Pays every answer, and says that this is suspect unless the answer is right."""

    name: ClassVar[str] = "forged-letters"

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        right = rollout.answer == rollout.task.answer
        return Score.of(1.0) if right else Score(1.0, True, 1.0, suspect=EVIDENCE)


@pytest.mark.parametrize("policy", ["zero", "keep", "drop"])
async def test_outcomes_that_are_read_back_are_weighed_and_the_store_keeps_what_was_scored(policy: SuspectPolicy):
    env = ForgedLetters()
    runner = Runner(env, suspects=policy)
    jobs = address_jobs(make_group_jobs(next(env.tasks("train")), Policy(ScriptedModel(["z"])), 1, 0), env)
    (key,) = jobs
    for _ in range(2):  # run, then found
        seen: list[Rollout] = []
        await run_stored(jobs, runner, on_outcome=lambda _, rollout, seen=seen: seen.append(rollout))
        value = seen[0].score.value if seen[0].score else None
        assert value == {"zero": 0.0, "keep": 1.0, "drop": None}[policy]
    assert runner.store.read_scores() == {key: 1.0}


async def test_rl_learns_nothing_from_forged_scores_and_counts_them():
    honest = await collect(make_run())
    forged = make_run()
    object.__setattr__(forged, "runner", Runner(ForgedLetters(), options=forged.runner.options))
    steps = await collect(forged)
    assert [step.reward for step in steps] == [step.reward for step in honest]
    assert sum(step.suspects for step in steps) == sum(
        round((1 - (step.reward or 0.0)) * step.rollouts) for step in honest
    )


async def test_rl_that_keeps_suspects_is_paid_for_them_and_is_another_run():
    run = make_run()
    kept = make_run()
    object.__setattr__(kept, "runner", Runner(ForgedLetters(), options=kept.runner.options, suspects="keep"))
    object.__setattr__(run, "runner", Runner(ForgedLetters(), options=run.runner.options))
    assert kept.identity != run.identity
    assert {step.reward for step in await collect(kept) if step.step} == {1.0}


async def test_an_audit_sees_suspects_as_they_were_scored():
    env, outcomes = ForgedLetters(), list[Outcome]()
    arm = Arm("nothing", "nothing", ScriptedModel(["z"]))

    async def open_agent(arm: Arm, stack: object) -> None:
        return None

    tasks = [next(env.tasks("train"))]
    policy = Policy(ScriptedModel([]))
    await run_arms([arm], tasks, Runner(env), policy, open_agent, lambda _, outcome: outcomes.append(outcome))
    assert [(each.value, each.suspect) for each in outcomes] == [(1.0, EVIDENCE)]
