"""What one skill of a library is worth: the library with it and without it, paired by task and seed. Pure.

Only the rollouts that loaded the skill are run again without it. So the worth is that on the work that the skill is
used for; it says nothing about what its description does elsewhere. The unit is the task: its difference is the mean of
those of its rollouts. Each skill has a 95 % interval for itself. Verdicts need more: with many skills some look good or
bad by chance, so a verdict holds with 95 % for all skills together (Bonferroni's method).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ludus.comparison import compute_paired_interval
from ludus.library.readings import LibraryReading, TrialKey
from ludus.library_settings import LibrarySettings
from ludus.models.token_estimate import estimate_text
from ludus.skill_library import LibraryPackage
from ludus.stats import Interval, compute_interval

SkillVerdict = Literal[
    "helps", "hurts", "below its price", "duplicate", "never loads", "not known", "not enough evidence"
]
FEWEST_TASKS = 6
"""Fewer tasks than this allow no verdict on a worth."""
FEWEST_ROLLOUTS = 20
"""A skill that none of fewer rollouts loaded may only have met no task of its kind."""
MOST_UNKNOWN = 0.05
"""A skill may be unseen in this share of rollouts and still be said to never load."""
LEVEL = 0.95


class PairedWorth(Struct, frozen=True, kw_only=True):
    """A library with and without some skills, on the rollouts that loaded one of them."""

    tasks: int
    pairs: int
    lost: int
    """Pairs of which a rollout has no score. They are left out."""
    difference: float | None
    """The mean over tasks of the score with them minus the score without them."""
    interval: Interval | None
    """95 %, for this difference alone."""
    sure: Interval | None
    """95 % for all differences of the run together."""
    tokens: float | None
    """How many tokens more a rollout took with them."""


class SkillWorth(Struct, frozen=True, kw_only=True):
    """What is known of a skill."""

    name: str
    rollouts: int
    """Of the whole library."""
    loads: int
    unknown: int
    """Rollouts of which nobody could see whether they loaded it."""
    changed: int
    """Rollouts in which the agent changed files of it."""
    most_loads: float | None
    """The highest share of rollouts that may load it, if none did (95 %)."""
    kinds: Mapping[str, int]
    """How many rollouts loaded it, by the kind of task."""
    worth: PairedWorth | None
    """None: it was never loaded."""
    description_tokens: int
    """About how many tokens its description takes in every request."""
    read_tokens: float | None
    """About how many tokens of it a rollout reads that loads it."""
    price: float
    """What it must add to the score of a rollout that loads it."""
    instead: Mapping[str, float]
    """In which share of the rollouts without it another skill was loaded in its place."""
    verdict: SkillVerdict
    sentence: str


def pair_readings(
    full: Mapping[TrialKey, LibraryReading], without: Mapping[TrialKey, LibraryReading], level: float
) -> PairedWorth:
    """Compare rollouts with equal tasks and seeds. `level`: the confidence for one of all differences."""
    differences: dict[str, list[float]] = {}
    tokens: list[int] = []
    for key, other in without.items():
        one = full[key]
        if one.score is not None and other.score is not None:
            differences.setdefault(key.task, []).append(one.score - other.score)
            tokens.append(one.tokens - other.tokens)
    means = [_average(values) for values in differences.values()]
    reach = max(1.0, *(abs(value) for value in means)) if means else 1.0
    enough = len(means) >= FEWEST_TASKS
    return PairedWorth(
        tasks=len(means),
        pairs=len(tokens),
        lost=len(without) - len(tokens),
        difference=_average(means) if means else None,
        interval=compute_paired_interval(means, reach) if enough else None,
        sure=compute_paired_interval(means, reach, level) if enough else None,
        tokens=_average(tokens) if tokens else None,
    )


def choose_level(compared: int) -> float:
    """The confidence for one of several differences with which all of them together hold."""
    return 1 - (1 - LEVEL) / max(1, compared)


def list_pairs(full: Mapping[TrialKey, LibraryReading], *names: str) -> list[TrialKey]:
    """The rollouts that loaded one of these skills, and have a score: they are run again without it."""
    return [key for key, each in full.items() if each.score is not None and each.loaded & {*names}]


def judge_skill(
    package: LibraryPackage,
    full: Mapping[TrialKey, LibraryReading],
    without: Mapping[TrialKey, LibraryReading],
    level: float,
    settings: LibrarySettings,
) -> SkillWorth:
    """What is known of one skill."""
    name = package.name
    seen = [each for each in full.values() if name not in each.unknown]
    loading = [each for each in seen if name in each.loaded]
    described = estimate_text(f"- {name}: {package.description}\n")
    read = _average([each.read_tokens.get(name, 0) for each in loading]) if loading else None
    price = _compute_price(described, read, len(full), len(loading), settings)
    worth = pair_readings(full, without, level) if loading else None
    verdict = _decide(len(seen), len(loading), len(full) - len(seen), worth, price)
    bound = compute_interval([0.0] * len(seen)) if seen and not loading else None
    found = SkillWorth(
        name=name,
        rollouts=len(full),
        loads=len(loading),
        unknown=len(full) - len(seen),
        changed=sum(name in each.changed for each in full.values()),
        most_loads=bound.high if bound else None,
        kinds=dict(sorted(Counter(each.kind for each in loading).items())),
        worth=worth,
        description_tokens=described,
        read_tokens=read,
        price=price,
        instead=find_substitutes(full, without),
        verdict=verdict,
        sentence="",
    )
    return conclude(found, verdict)


def _compute_price(described: int, read: float | None, rollouts: int, loads: int, settings: LibrarySettings) -> float:
    """What a skill must add each time it is loaded: its description is paid for in the other rollouts, too."""
    tokens = (read or 0.0) + described * rollouts / max(1, loads)
    return max(settings.least, settings.per_1000_tokens * tokens / 1000)


def _decide(seen: int, loads: int, unknown: int, worth: PairedWorth | None, price: float) -> SkillVerdict:
    if worth is None:
        if unknown > MOST_UNKNOWN * (seen + unknown):
            return "not known"
        return "never loads" if seen >= FEWEST_ROLLOUTS else "not enough evidence"
    if worth.sure is None:
        return "not enough evidence"
    if worth.sure.high < 0:
        return "hurts"
    if worth.sure.high < price:
        return "below its price"
    return "helps" if worth.sure.low > 0 else "not enough evidence"


def find_substitutes(
    full: Mapping[TrialKey, LibraryReading], without: Mapping[TrialKey, LibraryReading]
) -> dict[str, float]:
    """Which skills were loaded in place of one that was left out, and in which share of these rollouts."""
    counts = Counter(name for key, other in without.items() for name in other.loaded - full[key].loaded)
    return {name: count / len(without) for name, count in sorted(counts.items())}


def conclude(skill: SkillWorth, verdict: SkillVerdict, more: str = "") -> SkillWorth:
    """The skill with this verdict, and a sentence that says why."""
    from msgspec.structs import replace

    return replace(skill, verdict=verdict, sentence=" ".join(filter(None, (_explain(skill, verdict), more))))


def _explain(skill: SkillWorth, verdict: SkillVerdict) -> str:
    worth, unknown = skill.worth, f" ({skill.unknown} unknown)" if skill.unknown else ""
    share = f"{skill.loads} of {skill.rollouts} rollouts{unknown}"
    if verdict == "never loads":
        most = f"; at most {100 * skill.most_loads:.1f} % would" if skill.most_loads is not None else ""
        return (
            f"Loaded by {share}{most}. Its text was never tried, so nothing is known of it. If these tasks stand for "
            "your work, nobody needs it; if it should have been loaded, improve its description."
        )
    if verdict == "not known":
        return f"Nobody could see whether it was loaded: {skill.unknown} of {skill.rollouts} rollouts are unknown."
    if worth is None or worth.difference is None:
        return f"Loaded by {share}: too few to say anything."
    band = f"{_points(worth.difference)} {format_band(worth.interval)} on {worth.tasks} tasks"
    price = f"its price is {100 * skill.price:.1f} points"
    sure = f"for all skills together {format_band(worth.sure)}"
    if verdict == "helps":
        weak = "" if worth.sure and worth.sure.low >= skill.price else f"; {price}, which it may not reach"
        return f"Adds {band}{weak}."
    if verdict == "hurts":
        return f"Costs score where it is loaded: {band}; {sure}."
    if verdict == "below its price":
        return f"Adds {band}; {price}, {sure}."
    if verdict == "duplicate":
        return f"Without it nothing is missing: {band}."
    few = f", and {FEWEST_TASKS} is the least" if worth.tasks < FEWEST_TASKS else f"; {sure}, {price}"
    return f"Between too little and too much to tell: {band}{few}. More tasks or a larger env.group_size would tell."


def _points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def format_band(interval: Interval | None) -> str:
    """An interval in points."""
    return "[no interval]" if interval is None else f"[{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def _average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
