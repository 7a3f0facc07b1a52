"""Which passages of the skills of a library are supported by evidence. Pure.

Evidence comes from rollouts of this run, in which passages were left out at random, or from earlier runs on the same
text: audits (`ludus audit-skill`) and the line records of training runs. A passage without either is `not measured`;
that is not the same as "does nothing".
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ludus.models.token_estimate import estimate_text
from ludus.reflact.ledger.passages import Passage, list_passages
from ludus.reflact.skill_audit import AuditReading, audit_passages
from ludus.skill import Skill
from ludus.stats import Interval

PassageFinding = tuple[str, float | None, Interval | None]
"""What an earlier run found about a passage: a verdict, an effect and its interval."""
NOT_MEASURED = "not measured"
SUPERFLUOUS = ("hurts", "small")
"""Verdicts on passages that are proposed to be left out."""


class PassageEvidence(Struct, frozen=True, kw_only=True):
    """A passage of a skill, and what is known of it."""

    skill: str
    id: str
    text: str
    path: str
    """The reference that it is in; empty: the document."""
    tokens: int
    verdict: str = NOT_MEASURED
    """`helps`, `hurts`, `small` (less than a point), `not told` or `not measured`."""
    effect: float | None = None
    interval: Interval | None = None
    source: str = ""
    """Where the evidence is: `this run`, or another run directory."""
    kinds: tuple[str, ...] = ()
    """The kinds of tasks that it helps, as far as that can be told."""


def list_unmeasured(name: str, skill: Skill) -> list[PassageEvidence]:
    """The passages of a skill of which nothing is known."""
    return [
        PassageEvidence(skill=name, id=each.id, text=each.text, path=each.path, tokens=estimate_text(each.text))
        for each in list_passages(skill)
    ]


def judge_passages(
    name: str, passages: Sequence[Passage], readings: Sequence[tuple[str, AuditReading]]
) -> list[PassageEvidence]:
    """The verdict on each passage. `readings`: with the kind of task of each."""
    whole = audit_passages(passages, [reading for _, reading in readings]).passages
    counts = Counter(kind for kind, _ in readings)
    helps: dict[str, list[str]] = {}
    for kind in sorted(counts) if len(counts) > 1 else ():
        for verdict in audit_passages(passages, [reading for each, reading in readings if each == kind]).passages:
            if verdict.verdict == "helps":
                helps.setdefault(verdict.id, []).append(kind)
    return [
        PassageEvidence(
            skill=name,
            id=passage.id,
            text=passage.text,
            path=passage.path,
            tokens=verdict.tokens,
            verdict=_weigh(verdict.verdict, passage.id in helps),
            effect=verdict.effect,
            interval=verdict.interval,
            source="this run",
            kinds=tuple(helps.get(passage.id, ())),
        )
        for passage, verdict in zip(passages, whole, strict=True)
    ]


def _weigh(verdict: str, helps_a_kind: bool) -> str:
    """A passage that helps one kind of tasks may do nothing on average."""
    return "helps" if helps_a_kind and verdict in ("not told", "small") else verdict


def add_evidence(
    lines: Sequence[PassageEvidence], source: str, verdicts: Mapping[str, PassageFinding]
) -> list[PassageEvidence]:
    """The passages with what an earlier run found of the same texts. What this run has measured stays."""
    return [
        replace(each, verdict=found[0], effect=found[1], interval=found[2], source=source)
        if each.verdict == NOT_MEASURED and (found := verdicts.get(normalize(each.text)))
        else each
        for each in lines
    ]


def normalize(text: str) -> str:
    """A text as it is compared: markers of list items and spacing make no difference."""
    return " ".join(text.split()).lstrip("-*+ ")
