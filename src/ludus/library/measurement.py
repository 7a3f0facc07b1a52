"""The measurement of a library, stage by stage, and what it found.

whole ──> without each ──> without groups ──> lines ──> proposals ──> as proposed
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from msgspec import Struct

from ludus.library.duplicates import (
    DuplicateGroup,
    SkillLikeness,
    compare_skills,
    group_candidates,
    judge_group,
    settle_groups,
)
from ludus.library.library_runs import LibraryRuns, LibraryTrial
from ludus.library.line_evidence import (
    PassageEvidence,
    PassageFinding,
    add_evidence,
    judge_passages,
    list_unmeasured,
)
from ludus.library.proposals import LibraryChange, apply_changes, propose_changes
from ludus.library.readings import LibraryReading, TrialKey
from ludus.library.worth import (
    LEVEL,
    PairedWorth,
    SkillWorth,
    choose_level,
    judge_skill,
    list_pairs,
    pair_readings,
)
from ludus.library_settings import LibrarySettings
from ludus.reflact.ledger.passages import list_passages
from ludus.reflact.skill_audit import AuditReading, sample_texts
from ludus.skill_library import SkillLibrary
from ludus.types import Task

NOTHING_LOADED = (
    "No skill was loaded in any rollout. Either this agent does not look at skills, or no task is of their kinds: this "
    "says nothing about the skills, and nothing is proposed. See which skill loads for which request: ludus triggers"
)
ALIKE = 0.3
"""Pairs of skills that are less alike are not listed."""


class ProposedWorth(Struct, frozen=True):
    """The library as it is proposed, beside the one that there is."""

    changes: tuple[str, ...]
    worth: PairedWorth
    """With the library that there is, minus the proposed one."""
    sentence: str


class LibraryReport(Struct, frozen=True, kw_only=True):
    """What a measurement found, written as `library.json`. `schema` is raised when a field changes its meaning."""

    schema: int = 1
    folder: str
    library: SkillLibrary
    """As it was measured."""
    hash: str
    tasks: int
    rollouts: int
    failed: int
    """Rollouts of the whole library without a score."""
    mean: float | None
    skills: tuple[SkillWorth, ...]
    alike: tuple[SkillLikeness, ...]
    groups: tuple[DuplicateGroup, ...]
    lines: tuple[PassageEvidence, ...]
    changes: tuple[LibraryChange, ...]
    proposed: ProposedWorth | None
    warnings: tuple[str, ...]
    summary: str


@dataclass
class LibraryMeasurement:
    """Measures one library."""

    runs: LibraryRuns
    library: SkillLibrary
    tasks: Sequence[Task]
    replicates: int
    settings: LibrarySettings
    evidence: Mapping[str, Mapping[str, PassageFinding]]
    """What earlier runs found, by run and by text."""

    async def measure(self, folder: str) -> LibraryReport:
        full = await self._run_whole()
        skills, level = await self._leave_each_out(full)
        alike, groups = await self._leave_groups_out(full, skills, level)
        skills = settle_groups(skills, groups)
        lines = await self._measure_lines(full)
        for source, found in self.evidence.items():
            lines = add_evidence(lines, source, found)
        looks = any(skill.loads for skill in skills)
        changes = propose_changes(self.library, skills, groups, lines) if looks else []
        proposed = await self._run_proposed(full, changes)
        scores = [each.score for each in full.values() if each.score is not None]
        return LibraryReport(
            folder=folder,
            library=self.library,
            hash=self.library.hash,
            tasks=len(self.tasks),
            rollouts=self.runs.used,
            failed=len(full) - len(scores),
            mean=sum(scores) / len(scores) if scores else None,
            skills=tuple(skills),
            alike=tuple(each for each in alike if max(each.bodies, each.descriptions, each.takes_over) >= ALIKE),
            groups=tuple(groups),
            lines=tuple(lines),
            changes=tuple(changes),
            proposed=proposed,
            warnings=tuple(_list_warnings(skills)),
            summary=summarize_skills(skills),
        )

    async def _run_whole(self) -> dict[TrialKey, LibraryReading]:
        keys = [TrialKey(task.id, number) for task in self.tasks for number in range(self.replicates)]
        readings = await self.runs.run([LibraryTrial(self.library, key) for key in keys], "whole")
        return dict(zip(keys, readings, strict=True))

    async def _leave_each_out(self, full: Mapping[TrialKey, LibraryReading]) -> tuple[list[SkillWorth], float]:
        pairs = {name: list_pairs(full, name) for name in self.library.names}
        arms = {name: (self.library.leave_out(name), keys) for name, keys in pairs.items() if keys}
        found = await self.runs.run_arms(arms, "without each")
        level = choose_level(len(arms))
        return [
            judge_skill(package, full, found.get(package.name, {}), level, self.settings)
            for package in self.library.packages
        ], level

    async def _leave_groups_out(
        self, full: Mapping[TrialKey, LibraryReading], skills: Sequence[SkillWorth], level: float
    ) -> tuple[list[SkillLikeness], list[DuplicateGroup]]:
        by_name = {skill.name: skill for skill in skills}
        tasks = {n: frozenset(key.task for key, each in full.items() if n in each.loaded) for n in self.library.names}
        alike = compare_skills(self.library, by_name, tasks)
        helping = frozenset(skill.name for skill in skills if skill.verdict in ("helps", "hurts"))
        names = {str(n): group for n, group in enumerate(group_candidates(alike, self.settings.similar, helping))}
        arms = {n: (self.library.leave_out(*group), list_pairs(full, *group)) for n, group in names.items()}
        found = await self.runs.run_arms(arms, "without groups")
        level = 1 - (1 - level) / max(1, len(arms))
        return alike, [
            judge_group(
                group,
                pair_readings(full, found[n], level) if found[n] else None,
                by_name,
                max(by_name[name].price for name in group),
            )
            for n, group in names.items()
        ]

    async def _measure_lines(self, full: Mapping[TrialKey, LibraryReading]) -> list[PassageEvidence]:
        """The passages of each skill. With `library.lines`, rollouts that loaded it run with texts that lack some."""
        lines: list[PassageEvidence] = []
        for package in self.library.packages:
            keys, passages = list_pairs(full, package.name), list_passages(package.skill)
            left = self.runs.left
            count = self.settings.lines if left is None else min(self.settings.lines, left)
            if not keys or not passages or count < 2 * len({key.task for key in keys}):
                lines += list_unmeasured(package.name, package.skill)
                continue
            ordered = sorted(keys, key=lambda key: Random(f"{self.runs.seed}/{key}").random())
            drawn = enumerate(sample_texts(package.skill, passages, count, self.runs.seed))
            texts = {(ordered[place % len(ordered)], present): text for place, (text, present) in drawn}
            trials = [LibraryTrial(self.library.put(text), key) for (key, _), text in texts.items()]
            readings = await self.runs.run(trials, f"lines of {package.name}")
            scored = [
                (each.kind, AuditReading(each.key.task, present, each.score))
                for each, (_, present) in zip(readings, texts, strict=True)
                if each.score is not None
            ]
            lines += judge_passages(package.name, passages, scored)
        return lines

    async def _run_proposed(
        self, full: Mapping[TrialKey, LibraryReading], changes: Sequence[LibraryChange]
    ) -> ProposedWorth | None:
        """The library with all proposals, on the rollouts that loaded a skill that they change."""
        names = {name for change in changes for name in change.skills}
        keys = list_pairs(full, *names)
        if not self.settings.confirm or not keys or self.runs.left == 0:
            return None
        arm = (apply_changes(self.library, changes), keys)
        found = await self.runs.run_arms({"proposed": arm}, "as proposed")
        worth = pair_readings(full, found["proposed"], LEVEL)
        return ProposedWorth(tuple(change.id for change in changes), worth, describe_proposed(worth))


def describe_proposed(worth: PairedWorth) -> str:
    """What all proposals together do, in a sentence."""
    if worth.difference is None or worth.interval is None:
        return "The library as proposed was run on too few tasks to say anything of all proposals together."
    low, high = -worth.interval.high, -worth.interval.low
    band = f"{-100 * worth.difference:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}] on {worth.tasks} tasks"
    tokens = f", {-worth.tokens:+.0f} tokens a rollout" if worth.tokens is not None else ""
    if high < 0:
        return (
            f"All proposals together LOSE score: {band}{tokens}. Some of these skills stand in for each other: accept "
            "one, and measure again."
        )
    return f"All proposals together: {band}{tokens}."


def _list_warnings(skills: Sequence[SkillWorth]) -> list[str]:
    unread = [] if any(skill.loads for skill in skills) else [NOTHING_LOADED]
    return unread + [
        f"{each.name}: agents changed its files in {each.changed} rollouts; what they read of it then is not known. "
        "Look for a skill that tells them to"
        for each in skills
        if each.changed
    ]


def summarize_skills(skills: Sequence[SkillWorth]) -> str:
    """All verdicts in a sentence."""
    counts: dict[str, int] = {}
    for each in skills:
        counts[each.verdict] = counts.get(each.verdict, 0) + 1
    parts = ", ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items(), key=lambda item: -item[1]))
    return f"{len(skills)} skills: {parts}. These verdicts hold with {LEVEL:.0%} for all skills together."
