"""The digest of a step: failure patterns with their tasks, and what was rejected."""

from tests.reflact_kit import make_result

from ludus.reflact import step_buffer as buffer
from ludus.reflact.gate import Decision, Verdict
from ludus.reflact.records import (
    Fate,
    Pattern,
    Reflection,
)
from ludus.skill import Edit


def make_verdict(decision: Decision) -> Verdict:
    return Verdict(decision, 0.25, 0.5, 0.75, 4)


def test_a_failure_pattern_keeps_the_tasks_that_its_analyst_tied_to_it():
    """SkillOpt puts the analysts' labels on unrelated groups of tasks."""
    rollouts = [
        make_result("a", False, feedback="timeout: 5 s"),
        make_result("b", False, feedback="wrong: 3"),
        make_result("c", False, feedback="timeout: 9 s"),
        make_result("d", True),
        make_result("e", None),
    ]
    reflections = [Reflection("failure", ("a", "b", "c"), patterns=(Pattern("slip", "a slip", ("b", "d")),))]
    entry = buffer.make_digest(3, make_verdict(Decision.ACCEPT), rollouts, reflections, [], None)
    assert [(p.name, p.tasks) for p in entry.patterns] == [("slip", ("b",)), ("timeout", ("a", "c"))]
    assert (entry.tasks, entry.failed, entry.tried, entry.before) == (4, 3, (), None)


def test_what_was_rejected_is_remembered_with_what_it_did():
    fates = [
        Fate(Edit("append", "Never do."), "applied_append"),
        Fate(Edit("delete", "", "gone"), "skipped_delete_target_not_found"),
    ]
    entry = buffer.make_digest(3, make_verdict(Decision.REJECT), [make_result("a", False)], [], fates, None)
    assert (entry.before, entry.after, entry.tried) == (0.5, 0.25, ("append: Never do.",))
    words = buffer.describe_buffer([entry])
    assert "Step 3: reject; 1 of 1 tasks failed." in words
    assert "score 0.5000 → 0.2500" in words
    assert "1. append: Never do." in words
    assert "delete at 'gone' (skipped_delete_target_not_found)" in words
    assert buffer.describe_buffer([]) == ""
