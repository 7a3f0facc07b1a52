"""Which skills of a library do the same work. Pure.

Two witnesses. The texts: the cosine of their words, those that many skills have counting little. And the agent: in the
rollouts without one skill it loads the other. Skills that stand for each other cannot be judged one by one: without one
of them nothing is missing, and without both of them everything may be. So such skills are left out together.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from ludus.library.worth import PairedWorth, SkillWorth, conclude, format_band
from ludus.skill_library import LibraryPackage, SkillLibrary
from ludus.stats import Interval

TAKES_OVER = 0.5
"""From this share of rollouts on a skill takes over from another one."""
_WORD = re.compile(r"[^\W\d_]{2,}|\d+")


class SkillLikeness(Struct, frozen=True, kw_only=True):
    """How alike two skills are."""

    first: str
    second: str
    descriptions: float
    """The cosine of the words of their descriptions."""
    bodies: float
    """That of their documents."""
    same_tasks: float
    """The share of the tasks that either is loaded for, for which both are."""
    takes_over: float
    """In which share of the rollouts without one of them the other was loaded in its place: the higher one."""


class DuplicateGroup(Struct, frozen=True, kw_only=True):
    """Skills that may do the same work, and what they are worth together."""

    skills: tuple[str, ...]
    """The one that would be kept is the first."""
    worth: PairedWorth | None
    """With all of them and with none. None: no rollout loaded one of them."""
    verdict: str
    """`one is enough`, `none is needed` or `not enough evidence`."""
    sentence: str


def compare_skills(
    library: SkillLibrary, skills: Mapping[str, SkillWorth], tasks: Mapping[str, frozenset[str]]
) -> list[SkillLikeness]:
    """How alike each pair is. `tasks`: those that each is loaded for."""
    heads, bodies = _weigh([p.description for p in library.packages]), _weigh([_read(p) for p in library.packages])
    found: list[SkillLikeness] = []
    for at, one in enumerate(library.names):
        for beside, other in enumerate(library.names[at + 1 :], at + 1):
            either = tasks[one] | tasks[other]
            found.append(
                SkillLikeness(
                    first=one,
                    second=other,
                    descriptions=_compute_cosine(heads[at], heads[beside]),
                    bodies=_compute_cosine(bodies[at], bodies[beside]),
                    same_tasks=len(tasks[one] & tasks[other]) / len(either) if either else 0.0,
                    takes_over=max(skills[one].instead.get(other, 0.0), skills[other].instead.get(one, 0.0)),
                )
            )
    return found


def group_candidates(likenesses: Iterable[SkillLikeness], similar: float, helping: frozenset[str]) -> list[list[str]]:
    """The groups of skills that may do the same work: alike in body, or one takes over from the other. A skill that
    helps although the others are there is in none."""
    groups: dict[str, set[str]] = {}
    for each in likenesses:
        alike = each.bodies >= similar or each.takes_over >= TAKES_OVER
        if alike and each.first not in helping and each.second not in helping:
            joined = groups.get(each.first, {each.first}) | groups.get(each.second, {each.second})
            groups |= dict.fromkeys(joined, joined)
    return sorted(sorted(group) for group in {id(group): group for group in groups.values()}.values())


def judge_group(
    names: Sequence[str], worth: PairedWorth | None, skills: Mapping[str, SkillWorth], price: float
) -> DuplicateGroup:
    """What is known of skills that may do the same work. The one that is loaded most would be kept; of equal ones the
    one that costs fewest tokens."""
    ordered = tuple(sorted(names, key=lambda name: (-skills[name].loads, skills[name].read_tokens or 0.0, name)))
    verdict, words = "not enough evidence", "it cannot be told what they are worth together"
    if worth is not None and worth.sure is not None and worth.difference is not None:
        band = f"{100 * worth.difference:+.1f} points {format_band(worth.interval)} on {worth.tasks} tasks"
        words = f"together they add {band}, which does not tell"
        if worth.sure.low > 0 and all(_is_spare(skills[name], worth.sure, price) for name in names):
            verdict, words = "one is enough", f"together they add {band}, and without one of them nothing is missing"
        elif worth.sure.high < price:
            verdict, words = "none is needed", f"together they add {band}, and their price is {100 * price:.1f} points"
    return DuplicateGroup(skills=ordered, worth=worth, verdict=verdict, sentence=f"{', '.join(ordered)}: {words}.")


def _is_spare(skill: SkillWorth, together: Interval, price: float) -> bool:
    """Whether what is lost without one skill is surely little, or surely less than what all are worth together."""
    if skill.loads == 0:
        return True
    sure = skill.worth.sure if skill.worth else None
    return sure is not None and sure.high < max(price, together.low)


def settle_groups(skills: Iterable[SkillWorth], groups: Sequence[DuplicateGroup]) -> list[SkillWorth]:
    """The verdicts with what is known of groups: one that others stand in for was not judged by its own worth."""
    found = {name: group for group in groups for name in group.skills}
    return [_settle(skill, found[skill.name]) if skill.name in found else skill for skill in skills]


def _settle(skill: SkillWorth, group: DuplicateGroup) -> SkillWorth:
    if skill.verdict not in ("below its price", "not enough evidence") or not skill.loads:
        return skill
    others = ", ".join(name for name in group.skills if name != skill.name)
    if group.verdict == "one is enough":
        return conclude(skill, "duplicate", f"It does the work of {others}.")
    stood_in = sum(share for name, share in skill.instead.items() if name in group.skills)
    if group.verdict == "not enough evidence" and stood_in >= TAKES_OVER:
        return conclude(skill, "not enough evidence", f"Where it is left out, {others} is loaded instead.")
    return skill


def _read(package: LibraryPackage) -> str:
    return package.skill.body


def _weigh(texts: Sequence[str]) -> list[dict[str, float]]:
    """The words of each text with their weights: how often, and how few texts have them."""
    counts = [Counter(_WORD.findall(text.casefold())) for text in texts]
    having = Counter(word for each in counts for word in each)
    rare = {word: math.log(1 + len(texts) / number) for word, number in having.items()}
    return [{word: (1 + math.log(number)) * rare[word] for word, number in each.items()} for each in counts]


def _compute_cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    lengths = math.sqrt(sum(v * v for v in one.values()) * sum(v * v for v in other.values()))
    return sum(value * other[word] for word, value in one.items() if word in other) / lengths if lengths else 0.0
