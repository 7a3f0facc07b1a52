"""Whose fault a failure is, as a table and as properties over all evidence."""

from itertools import product
from typing import Any

import msgspec
import pytest

from ludus.causes import Cause, FailureEvidence, Phase, decide_cause, explain_fault
from ludus.errors import SlotEvidence

INSIDE = SlotEvidence(inside="its processes used all memory")
OUTSIDE = SlotEvidence(outside="the connection broke")
BOTH = SlotEvidence(inside="its processes used all memory", outside="the connection broke")
NOTHING = SlotEvidence()
AGENT, WORLD, ENGINE, VERIFIER = Cause.AGENT, Cause.WORLD, Cause.ASK_ENGINE, Cause.ASK_VERIFIER

AFTER_ACTING = [phase for phase in Phase if phase not in (Phase.PREPARING, Phase.RESTORING)]
BOUNDARIES = ("model", "sandbox", "setup", "tool", "verifier", "agent", "files")


def make_evidence(phase: Phase, boundary: Any, **fields: Any) -> FailureEvidence:
    return FailureEvidence(phase=phase, boundary=boundary, **fields)


@pytest.mark.parametrize(
    ("phase", "boundary", "fields", "cause"),
    [
        # before the agent acted, and in slots that it never saw
        (Phase.PREPARING, "sandbox", {"slot": INSIDE}, WORLD),
        (Phase.PREPARING, "setup", {}, WORLD),
        (Phase.RESTORING, "setup", {}, WORLD),
        (Phase.RESTORING, "sandbox", {"slot": INSIDE}, WORLD),
        (Phase.ACTING, "sandbox", {"slot": INSIDE, "acted": False}, WORLD),
        # its slot broke
        (Phase.ACTING, "sandbox", {"slot": INSIDE}, AGENT),
        (Phase.ACTING, "sandbox", {"slot": BOTH}, AGENT),
        (Phase.ACTING, "sandbox", {"slot": OUTSIDE}, WORLD),
        (Phase.ACTING, "sandbox", {}, ENGINE),
        (Phase.ACTING, "sandbox", {"engine_works": True}, AGENT),
        (Phase.ACTING, "sandbox", {"engine_works": False}, WORLD),
        (Phase.COLLECTING, "sandbox", {}, ENGINE),
        (Phase.COLLECTING, "sandbox", {"slot": OUTSIDE}, WORLD),
        (Phase.COLLECTING, "sandbox", {"slot": INSIDE}, AGENT),
        # what is neither its slot nor its files
        (Phase.ACTING, "model", {}, WORLD),
        (Phase.ACTING, "model", {"passing": False}, WORLD),
        (Phase.ACTING, "tool", {"passing": False}, WORLD),
        (Phase.ACTING, "agent", {}, WORLD),
        # its files
        (Phase.COLLECTING, "files", {}, AGENT),
        (Phase.COPYING, "files", {}, ENGINE),
        (Phase.COPYING, "files", {"engine_works": True}, AGENT),
        (Phase.COPYING, "files", {"engine_works": False}, WORLD),
        (Phase.COPYING, "sandbox", {"slot": OUTSIDE}, WORLD),
        # verify
        (Phase.VERIFYING, "verifier", {}, VERIFIER),
        (Phase.VERIFYING, "verifier", {"passing": False}, VERIFIER),
        (Phase.VERIFYING, "verifier", {"verifier_works": True}, AGENT),
        (Phase.VERIFYING, "verifier", {"verifier_works": False}, WORLD),
        (Phase.VERIFYING, "sandbox", {}, VERIFIER),
        (Phase.VERIFYING, "sandbox", {"slot": OUTSIDE}, WORLD),
        (Phase.VERIFYING, "sandbox", {"slot": INSIDE}, VERIFIER),
        (Phase.VERIFYING, "sandbox", {"slot": INSIDE, "verifier_works": False}, WORLD),
        (Phase.VERIFYING, "model", {}, WORLD),
        (Phase.VERIFYING, "model", {"passing": False}, VERIFIER),
    ],
)
def test_the_cause_of_a_failure(phase: Phase, boundary: str, fields: dict[str, Any], cause: Cause):
    assert decide_cause(make_evidence(phase, boundary, **fields)) is cause


def list_all_evidence() -> list[FailureEvidence]:
    answers = (None, True, False)
    return [
        make_evidence(
            phase, boundary, acted=acted, passing=passing, slot=slot, engine_works=engine, verifier_works=verifier
        )
        for phase, boundary, acted, passing, slot, engine, verifier in product(
            Phase, BOUNDARIES, (True, False), (True, False), (NOTHING, INSIDE, OUTSIDE, BOTH), answers, answers
        )
    ]


def test_a_question_is_asked_once_and_its_answer_decides():
    questions = {Cause.ASK_ENGINE: "engine_works", Cause.ASK_VERIFIER: "verifier_works"}
    asked = 0
    for evidence in list_all_evidence():
        question = questions.get(decide_cause(evidence))
        if question:
            asked += 1
            assert getattr(evidence, question) is None
            assert decide_cause(msgspec.structs.replace(evidence, **{question: True})) is Cause.AGENT
            assert decide_cause(msgspec.structs.replace(evidence, **{question: False})) is Cause.WORLD
    assert asked


def test_nothing_is_the_agents_fault_before_it_acted_or_where_it_never_was():
    for evidence in list_all_evidence():
        if not evidence.acted or evidence.phase not in AFTER_ACTING:
            assert decide_cause(evidence) is Cause.WORLD


def test_a_zero_needs_a_proof():
    """Its own processes or files did it, or everything works without it."""
    for evidence in list_all_evidence():
        if decide_cause(evidence) is Cause.AGENT:
            own = evidence.slot.inside or (evidence.boundary == "files" and evidence.phase is Phase.COLLECTING)
            assert own or evidence.engine_works or evidence.verifier_works


def test_what_happened_outside_alone_is_never_the_agents_fault():
    for evidence in list_all_evidence():
        if evidence.slot == OUTSIDE and evidence.boundary == "sandbox":
            assert decide_cause(evidence) is Cause.WORLD


def test_no_exclusion_without_a_failure_of_the_world():
    """Once the agent has acted, a broken slot or verifier is excluded only if something was seen to fail elsewhere."""
    for evidence in list_all_evidence():
        if decide_cause(evidence) is Cause.WORLD and evidence.acted and evidence.phase in AFTER_ACTING:
            seen = evidence.slot.outside or evidence.engine_works is False or evidence.verifier_works is False
            assert seen or evidence.boundary in ("model", "setup", "tool", "agent", "verifier")
            assert seen or evidence.boundary != "verifier" or evidence.phase is not Phase.VERIFYING


@pytest.mark.parametrize(
    ("phase", "boundary", "slot", "words"),
    [
        (Phase.ACTING, "sandbox", INSIDE, "The agent broke its slot: its processes used all memory"),
        (Phase.COLLECTING, "sandbox", NOTHING, "The agent broke its slot: it ended"),
        (Phase.COLLECTING, "files", NOTHING, "It ended"),
        (Phase.VERIFYING, "verifier", NOTHING, "The verifier works without it, but here: it ended"),
    ],
)
def test_the_reason_is_told(phase: Phase, boundary: str, slot: SlotEvidence, words: str):
    assert words in explain_fault(make_evidence(phase, boundary, slot=slot), "it ended")
