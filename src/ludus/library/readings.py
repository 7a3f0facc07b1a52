"""What a rollout says about the skills of a library. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from ludus.models.token_estimate import estimate_text
from ludus.skill import DOCUMENT, Skill
from ludus.skill_library import SkillLibrary
from ludus.types import Rollout, SkillUse


class TrialKey(NamedTuple):
    """A task and the number of a rollout of it. Rollouts with equal keys have equal seeds."""

    task: str
    replicate: int


class LibraryReading(NamedTuple):
    """A rollout with a library."""

    key: TrialKey
    kind: str
    score: float | None
    """None: it failed, and says nothing about the agent."""
    tokens: int
    """All that its requests and replies had."""
    loaded: frozenset[str] = frozenset()
    """The skills whose documents the agent has read."""
    unknown: frozenset[str] = frozenset()
    """Those of which nobody could see it."""
    changed: frozenset[str] = frozenset()
    """Those of which the agent changed files."""
    read_tokens: Mapping[str, int] = {}
    """About how many tokens of each loaded skill were read."""


def read_rollout(rollout: Rollout, library: SkillLibrary) -> LibraryReading:
    """What a rollout says. One that failed before its skills were looked at says nothing about loads either."""
    uses = rollout.library_use or {}
    seen = {name: uses.get(name, SkillUse()) for name in library.names} if uses else {}
    return LibraryReading(
        TrialKey(rollout.task.id, rollout.provenance.replicate),
        rollout.kind,
        None if rollout.score is None else rollout.score.value,
        rollout.usage.tokens,
        frozenset(name for name, use in seen.items() if use.loaded is True),
        frozenset(name for name in library.names if name not in seen or seen[name].loaded is None),
        frozenset(name for name, use in seen.items() if use.changed),
        {name: _count_read(library.get(name).skill, use) for name, use in seen.items() if use.loaded is True},
    )


def _count_read(skill: Skill, use: SkillUse) -> int:
    files = {*use.opened, *use.shown, DOCUMENT}
    return sum(estimate_text(skill.body if path == DOCUMENT else skill.read(path) or "") for path in sorted(files))
