"""The verdicts of an audit, as tables."""

import pytest

from ludus.audit.findings import AuditReport, Guess, Outcome, TaskAudit, find_best_guess, judge_task


def judge(*outcomes: Outcome, leaks: str = "") -> TaskAudit:
    return judge_task("t", outcomes, {"x": "a file"}, leaks)


def reference(value: float) -> Outcome:
    return Outcome("reference", "reference", "t", value, value >= 1)


def nothing(value: float) -> Outcome:
    return Outcome("nothing", "nothing", "t", value, value >= 1)


def test_a_sound_task():
    found = judge(reference(1.0), reference(1.0), nothing(0.0), Outcome("x", "attack", "t", 0.0))
    assert found.sound and found.attacks == 1 and found.reference == (1.0, 1.0)


@pytest.mark.parametrize(
    ("outcomes", "problem"),
    [
        ((reference(1.0), reference(0.0)), "the reference is flaky"),
        ((reference(0.5), reference(0.5)), "the reference does not pass"),
        ((nothing(0.0), nothing(1.0)), "doing nothing is flaky"),
        ((nothing(0.3), nothing(0.3)), "the tests pass on the first state"),
        ((Outcome("x", "attack", "t", problem="no slot"),), "1 of 1 rollouts have no score, the first (x): no slot"),
    ],
)
def test_problems_of_a_task(outcomes: tuple[Outcome, ...], problem: str):
    found = judge(*outcomes)
    assert not found.sound and problem in found.problems[0]


def test_an_answer_in_the_slot_is_a_problem():
    assert judge(nothing(0.0), leaks="the answer is in /a").problems == ("the answer is in /a",)


def test_an_attack_is_paid_if_it_earns_more_than_doing_nothing():
    (paid,) = judge(nothing(0.2), Outcome("x", "attack", "t", 0.9), Outcome("y", "attack", "t", 0.2)).paid
    assert (paid.attack, paid.value, paid.counts_on) == ("x", 0.9, "a file")


def test_an_attack_that_was_noticed_is_not_paid():
    found = judge(
        nothing(0.0),
        Outcome("x", "attack", "t", 0.0, forged=True),
        Outcome("y", "attack", "t", 1.0, True, suspect=("it changed pytest",)),
    )
    assert found.noticed == ("x", "y") and not found.paid


def test_the_best_guess_is_the_constant_with_the_highest_mean():
    guesses = [
        Outcome(arm, "guess", task, value) for arm, task, value in (("A", "1", 1.0), ("A", "2", 0.0), ("B", "1", 0.2))
    ]
    assert find_best_guess(guesses) == Guess("A", 0.5)
    assert find_best_guess([]) is None


@pytest.mark.parametrize(("mean", "ok"), [(0.1, True), (0.5, False)])
def test_an_environment_that_pays_a_constant_is_not_sound(mean: float, ok: bool):
    tasks = (TaskAudit(task="t", nothing=(0.0,)),)
    report = AuditReport(env="e", version="1", split="train", attacks=(), tasks=tasks, guess=Guess("yes", mean))
    assert report.ok is ok
