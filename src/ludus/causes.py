"""Whose fault a failed rollout is: the agent's, which is a score of 0, or the world's, which is no score. Pure.

An agent that fails a task may want no score at all, since rollouts without a score are left out of the mean. So it must
not be able to choose that: it can break its slot, or leave files that `verify` cannot read. `decide_cause` looks at the
evidence of one failure. Where the evidence does not suffice, it says which question must be asked next: whether the
pool can still make a slot that runs a command, or whether `verify` works in a slot that no agent has touched. Each
question is asked at most once, and only after a failure.

| what failed | the agent's, if | else the world's |
|---|---|---|
| anything before the agent acted | never | always |
| the slot, while the agent acted or when its files were collected | its own processes did it, or a new slot works | |
| the agent's files cannot be read | always | |
| the agent's files cannot be written into the new slot | a new slot works | |
| making and setting up the new slot | never | always |
| `verify` | it works in a slot that no agent has touched | |
| a judge's server, for a reason that can pass | never | always |

What a backend knows to have happened outside of the slot (`SlotEvidence.outside`) is always the world's, unless the
slot's own processes did something too.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ludus.errors import SlotEvidence


class Phase(StrEnum):
    """What the rollout was doing when it failed."""

    PREPARING = "preparing"
    """The slot was made and set up. No model had replied."""
    ACTING = "acting"
    COLLECTING = "collecting"
    """The agent's processes were ended, and its files read."""
    RESTORING = "restoring"
    """A new slot was made and set up for `verify`."""
    COPYING = "copying"
    """The agent's files were written into the new slot."""
    VERIFYING = "verifying"


class FailureEvidence(Struct, frozen=True, kw_only=True):
    """What is known about a failure."""

    phase: Phase
    acted: bool = True
    """Whether the model had replied. Before that, nothing is the agent's fault."""
    boundary: Literal["model", "sandbox", "setup", "tool", "verifier", "agent", "files"]
    """What failed. `files`: the agent's files could not be read or written."""
    passing: bool = True
    """Whether the same call could succeed later, as far as the error says."""
    slot: SlotEvidence = SlotEvidence()
    engine_works: bool | None = None
    """Whether the pool made a new slot that ran a command; None: not asked."""
    verifier_works: bool | None = None
    """Whether `verify` returned a score in a slot that no agent has touched; None: not asked."""


class Cause(StrEnum):
    """Whose fault it is, or what must be asked to know it."""

    AGENT = "agent"
    WORLD = "world"
    ASK_ENGINE = "ask engine"
    ASK_VERIFIER = "ask verifier"


def decide_cause(evidence: FailureEvidence) -> Cause:
    """Decide whose fault a failure is, or what to ask. With the answer to its question, it decides."""
    phase, slot = evidence.phase, evidence.slot
    if not evidence.acted or phase in (Phase.PREPARING, Phase.RESTORING):
        return Cause.WORLD
    if phase is Phase.VERIFYING:
        if evidence.boundary == "model" and evidence.passing:
            return Cause.WORLD
        return _weigh(slot, evidence.verifier_works, Cause.ASK_VERIFIER)
    if evidence.boundary == "files" and phase is Phase.COLLECTING:
        return Cause.AGENT
    if evidence.boundary not in ("sandbox", "files"):
        return Cause.WORLD
    if slot.inside:
        return Cause.AGENT
    return _weigh(slot, evidence.engine_works, Cause.ASK_ENGINE)


def _weigh(slot: SlotEvidence, works: bool | None, question: Cause) -> Cause:
    """What happened outside of the slot is the world's. Otherwise it depends on whether all works without the agent."""
    if slot.outside and not slot.inside:
        return Cause.WORLD
    if works is None:
        return question
    return Cause.AGENT if works else Cause.WORLD


def explain_fault(evidence: FailureEvidence, error: str) -> str:
    """Why the score is 0, for the score's feedback."""
    why = evidence.slot.inside or error
    match evidence.phase, evidence.boundary:
        case Phase.VERIFYING, _:
            return f"The agent's result cannot be judged. The verifier works without it, but here: {why}"
        case _, "files":
            return f"{error[:1].upper()}{error[1:]}"
        case _:
            return f"The agent broke its slot: {why}"
