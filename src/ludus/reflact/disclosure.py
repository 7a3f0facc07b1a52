"""The levels of disclosure of a skill package, and how many tokens each may have. Pure.

An agent pays for the description of a skill in every conversation, for the body when it loads the skill, and for a
reference when it reads it. Each level has a budget of its own. An edit that makes a level larger than its budget is not
made; what is larger already stays, and may shrink. Tokens are estimates: four characters are one.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ludus.models.token_estimate import estimate_text
from ludus.reflact.train_settings import PackageSettings
from ludus.skill import DOCUMENT, Edit, EditReport, Skill, apply_edits

OVER_BUDGET = "skipped_over_budget"
DESCRIPTION = "description"


class DisclosureLevel(Struct, frozen=True):
    """A part of a package that an agent reads at once."""

    name: str
    """`description`, `SKILL.md` for the body, or the path of a text."""
    tokens: int


def list_levels(skill: Skill) -> tuple[DisclosureLevel, ...]:
    """The description (if there is one), the body and each other text, with their tokens. Scripts are run, not read."""
    front = skill.front
    texts = {
        **({DESCRIPTION: front.description} if front else {}),
        DOCUMENT: skill.body,
        **{file.path: file.text for file in skill.files if not file.data and not file.is_script},
    }
    return tuple(DisclosureLevel(name, estimate_text(text)) for name, text in texts.items())


def apply_within(
    skill: Skill, edits: Sequence[Edit], limits: PackageSettings, *, lenient: bool = False
) -> tuple[Skill, tuple[EditReport, ...]]:
    """Make the edits one after the other, as `apply_edits` does, but none that takes a level above its budget."""
    reports: list[EditReport] = []
    for edit in edits:
        changed, (report,) = apply_edits(skill, [edit], lenient=lenient)
        if report.applied and find_excess(skill, changed, limits):
            report = replace(report, status=OVER_BUDGET)
        else:
            skill = changed
        reports.append(report)
    return skill, tuple(reports)


def find_excess(before: Skill, after: Skill, limits: PackageSettings) -> str:
    """The level that has grown above its budget; empty if there is none."""
    most = {DESCRIPTION: limits.description_tokens, DOCUMENT: limits.body_tokens}
    if not any((*most.values(), limits.file_tokens)):
        return ""
    sizes = {level.name: level.tokens for level in list_levels(before)}
    for level in list_levels(after):
        limit = most.get(level.name, limits.file_tokens)
        if limit and level.tokens > max(limit, sizes.get(level.name, 0)):
            return level.name
    return ""
