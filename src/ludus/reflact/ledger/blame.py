"""Blame: the probability of each line that it spoils rollouts of a kind of task. Pure.

A rollout fails if any of several causes occurs: bad luck, the task itself, a situation that no line of the text is
about, or a line that does harm. The first three occur with rates of their own. A line does harm to a kind of task or
not, and where it does, it spoils a share `DAMAGE` of the rollouts. Everything that is known speaks for or against that:

    a rollout that went well     against all lines of its text, always by the same amount
    a failure                    for each line of its text: the more, the less likely it was without this line
    a failure that is explained  less: a situation was named that no line prevents
    a suspect                    for the suspected line and against the others, as much as suspicions have been worth
                                 in this run. Where nobody is ever suspected, it means nothing that a line is not

So lines are told apart by the rollouts that left them out, with no need of suspects, and with suspects much sooner.
Each step looks at the latest rollouts again, with what is known by now. What older ones said stays: what else spoils
rollouts was different then.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ludus.reflact.ledger.line_records import Blame, BlamedRollout, Suspicions, compute_logit

DAMAGE = 0.42
"""The share of the rollouts of a kind of task that a line spoils if it does harm to them. Where hardly any rollout with
it goes well, its cost is higher."""
_HARMFUL = 0.2
"""How likely a new line does harm to any kind of task."""
_EXPLAINS = 0.8
"""How likely a failure has the cause that was named, and no line prevents."""
_LUCK, _TASK, _MISSING = (3.0, 10.0), (1.0, 8.0), (1.0, 5.0)
"""What each other cause begins with: in how many of how many rollouts it occurred."""
_GUILTY, _INNOCENT = (1.6, 8.0), (4.0, 400.0)
"""How often a line that spoiled a rollout is suspected, and one that did not: what they begin with."""
_REVISITED = 240
"""How many of the latest rollouts are looked at again in each step. What else spoils rollouts changes while the text
grows, so its rates are those of these rollouts."""
_CAUTION = 0.5
"""How much of the new probability is taken over in a step. Lines of the same rollouts are judged at once, and all of
them would be blamed for the same failure."""
_CLEARED = math.log(1.0 - DAMAGE)
"""What a rollout that went well adds to the log-odds that a line of its text does harm."""
_CLEAR, _CLEAR_CHANCE = -15.0, 0.003
"""The log-odds of doing harm by older rollouts, and the probability by all, below which a line is not blamed for a
failure."""
_SUREST = 6.0
"""The most log-odds of doing harm, for and against."""
_MOST_PASSING = 0.995
"""The highest probability of passing that is ever predicted."""
_SURE = 0.9
"""The probability of harm from which its size is estimated."""
_FEW = 2.0
"""Rollouts that went well although a line does harm: how many are taken for granted when its damage is estimated."""
_PASSING = 0.55
"""About how many rollouts pass that a line does not spoil."""

_LUCK_CAUSE, _MISSING_CAUSE, _TASK_CAUSE = "luck", "missing", "task "


class HarmEvidence(NamedTuple):
    """What a rollout says about the lines in its text."""

    task: str
    kind: str
    lines: Sequence[str]
    """The ids of the lines that could do harm."""
    went_well: float
    """From 0 to 1."""
    missing: bool = False
    """Whether no line of its text is about a situation that called the task."""
    explained: bool = False
    """Whether something was named that spoiled it, and that is none of these lines."""
    suspects: Sequence[str] = ()


class Cost(NamedTuple):
    """What a line costs by the harm that it may do."""

    mean: float
    """In accuracy."""
    deviation: float
    """The standard deviation of that."""
    spoiled: float
    """The share of all rollouts that it spoils."""


def add_outcomes(blame: Blame, outcomes: Sequence[HarmEvidence], kinds: int) -> Blame:
    """Add rollouts, and judge all lines anew. `kinds`: how many kinds of tasks there are."""
    unknown = compute_prior_harm(kinds)
    blame = _add_rollouts(blame, outcomes, unknown)
    old, recent = blame.recent[:-_REVISITED], blame.recent[-_REVISITED:]
    table = _Table(blame)
    for rollout in old:
        table.weigh(rollout)
        table.count_suspicions(rollout)
    settled = replace(
        blame,
        odds=tuple(table.odds),
        plain_odds=tuple(table.plain_odds),
        suspicions=Suspicions(*table.suspicions),
        recent=recent,
    )
    table.start_causes(recent)
    for rollout in recent:
        table.weigh(rollout)
    prior = compute_logit(unknown)
    starts = [prior + passes * _CLEARED for passes in blame.passes]
    harmful = _move(blame.harmful, starts, table.odds)
    by_outcome = _move(blame.by_outcome, starts, table.plain_odds) if blame.has_suspects else harmful
    return replace(settled, rates=table.compute_rates(), harmful=harmful, by_outcome=by_outcome)


def _move(chances: Sequence[float], starts: Sequence[float], odds: Sequence[float]) -> tuple[float, ...]:
    """The probabilities, moved towards what the log-odds say now."""
    exp = math.exp  # of a thousand numbers in every step
    against = [-start - own for start, own in zip(starts, odds, strict=True)]
    bounded = [_SUREST if each > _SUREST else -_SUREST if each < -_SUREST else each for each in against]
    return tuple(
        [chance + _CAUTION * (1.0 / (1.0 + exp(each)) - chance) for chance, each in zip(chances, bounded, strict=True)]
    )


def compute_prior_harm(kinds: int) -> float:
    """The probability that a new line does harm to one kind of task, of so many."""
    return 1.0 - (1.0 - _HARMFUL) ** (1.0 / max(1, kinds))


def _add_rollouts(blame: Blame, outcomes: Sequence[HarmEvidence], prior: float) -> Blame:
    """The counts with new rollouts, which are the last of the latest ones."""
    causes = {cause: place for place, cause in enumerate(blame.other_causes)}
    lines = dict(number_names(blame.lines))
    rates, passes, rollouts, new = list(blame.rates), list(blame.passes), list(blame.runs), 0
    recent = list(blame.recent)
    for outcome in outcomes:
        own = [_LUCK_CAUSE, f"{_TASK_CAUSE}{outcome.task}", *([_MISSING_CAUSE] if outcome.missing else [])]
        for cause in own:
            if cause not in causes:
                causes[cause] = len(causes)
                occurred, began = _get_start(cause)
                rates.append(occurred / began)
        present = [name_harm(line, outcome.kind) for line in outcome.lines]
        for name in present:
            if name not in lines:
                lines[name] = len(lines)
                passes.append(0.0)
                rollouts.append(0)
                new += 1
            rollouts[lines[name]] += 1
            passes[lines[name]] += outcome.went_well
        places = tuple([causes[cause] for cause in own])
        if outcome.went_well == 1.0:
            recent.append(BlamedRollout(0.0, places))
            continue
        suspects = {name_harm(line, outcome.kind) for line in outcome.suspects}
        doubted = [name for name in present if _is_doubted(lines[name], passes, blame)]
        recent.append(
            BlamedRollout(
                1.0 - outcome.went_well,
                places,
                tuple([lines[name] for name in doubted if name not in suspects]),
                tuple([lines[name] for name in doubted if name in suspects]),
                outcome.explained,
            )
        )
    return replace(
        blame,
        other_causes=tuple(causes),
        rates=tuple(rates),
        lines=tuple(lines),
        runs=tuple(rollouts),
        passes=tuple(passes),
        odds=blame.odds + (0.0,) * new,
        harmful=blame.harmful + (prior,) * new,
        plain_odds=blame.plain_odds + (0.0,) * new,
        by_outcome=blame.by_outcome + (prior,) * new,
        recent=tuple(recent),
        has_suspects=blame.has_suspects or any(rollout.suspects for rollout in recent),
    )


def _is_doubted(place: int, passes: Sequence[float], blame: Blame) -> bool:
    """Whether a failure can say anything about a line. So many rollouts with it have gone well that most cannot."""
    if place >= len(blame.odds) or blame.harmful[place] > _CLEAR_CHANCE:
        return True
    return passes[place] * _CLEARED + blame.odds[place] > _CLEAR


def _get_start(cause: str) -> tuple[float, float]:
    return _LUCK if cause == _LUCK_CAUSE else _MISSING if cause == _MISSING_CAUSE else _TASK


def name_harm(line: str, kind: str) -> str:
    return f"{line}/{kind}"


@lru_cache(maxsize=2)  # each step asks twice, and the next one begins with the same names
def number_names(names: tuple[str, ...]) -> Mapping[str, int]:
    """The place of each name."""
    return {name: place for place, name in enumerate(names)}


class _Table:
    """Sums that rollouts are added to. Thousands of numbers are added in every step, so they are lists."""

    def __init__(self, blame: Blame) -> None:
        self.odds, self.suspicions = list(blame.odds), list(blame.suspicions)
        self.plain_odds = list(blame.plain_odds) if blame.has_suspects else self.odds
        self._causes, self._rates, self._by_outcome = blame.other_causes, blame.rates, blame.by_outcome
        self._occurred, self._rollouts = [0.0] * len(self._causes), [1.0] * len(self._causes)
        self._spared = [math.log(1.0 - rate) for rate in self._rates]
        """The logarithm of the probability that a cause does not occur."""
        self._unharmed = [1.0 - DAMAGE * chance for chance in blame.harmful]
        self._logs = list(map(math.log, self._unharmed))
        guilty, of_guilty, innocent, of_innocent = blame.suspicions
        self._guilty = (_GUILTY[0] + guilty) / (_GUILTY[1] + of_guilty) if blame.has_suspects else 0.0
        self._innocent = (_INNOCENT[0] + innocent) / (_INNOCENT[1] + of_innocent) if blame.has_suspects else 0.0
        self._cleared = DAMAGE * (1.0 - self._guilty) / (1.0 - self._innocent)
        self._accused = DAMAGE * self._guilty / self._innocent if blame.has_suspects else 0.0

    def start_causes(self, rollouts: Sequence[BlamedRollout]) -> None:
        """Begin to count how often each cause occurs in these rollouts."""
        starts = [_get_start(cause) for cause in self._causes]
        self._occurred = [occurred for occurred, _ in starts]
        self._rollouts = [began for _, began in starts]
        for rollout in rollouts:
            for place in rollout.causes:
                self._rollouts[place] += 1.0

    def compute_rates(self) -> tuple[float, ...]:
        return tuple(occurred / count for occurred, count in zip(self._occurred, self._rollouts, strict=True))

    def weigh(self, rollout: BlamedRollout) -> None:
        """Divide a failure among its causes, and add what it says about the lines of its text."""
        weight = rollout.failed
        if not weight:
            return
        odds, plain, unharmed, kept = self.odds, self.plain_odds, self._unharmed, 1.0 - DAMAGE
        log, least = math.log, 1.0 - _MOST_PASSING
        passed = self._predict(rollout)
        occurred = weight / (1.0 - passed)
        for place in rollout.causes:
            self._occurred[place] += min(weight, self._rates[place] * occurred)
        for places, harm in ((rollout.lines, self._cleared), (rollout.suspects, self._accused)):
            for place in places:
                others = 1.0 - passed / unharmed[place]
                if others < least:
                    others = least
                odds[place] += weight * log(kept + harm / others)
                if plain is not odds:
                    plain[place] += weight * log(kept + DAMAGE / others)

    def _predict(self, rollout: BlamedRollout) -> float:
        """How likely a rollout passes, by what is known."""
        spared, logs = self._spared, self._logs
        score = sum([spared[place] for place in rollout.causes]) + sum([logs[place] for place in rollout.lines])
        passed = math.exp(score + sum([logs[place] for place in rollout.suspects]))
        return passed * (1.0 - _EXPLAINS) if rollout.explained else min(_MOST_PASSING, passed)

    def count_suspicions(self, rollout: BlamedRollout) -> None:
        """Add what a failure says about suspicions: how often a line that spoiled a rollout is suspected."""
        passed = self._predict(rollout)
        guilty, of_guilty, innocent, of_innocent = self.suspicions
        for places, suspected in ((rollout.lines, False), (rollout.suspects, True)):
            named = (self._guilty, self._innocent) if suspected else (1.0 - self._guilty, 1.0 - self._innocent)
            for place in places:
                others = 1.0 - min(_MOST_PASSING, passed / self._unharmed[place])
                spoiled = self._by_outcome[place] * DAMAGE * named[0]
                spared = (1.0 - self._by_outcome[place] * DAMAGE) * others * named[1]
                share = rollout.failed * spoiled / (spoiled + spared) if spoiled else 0.0
                of_guilty += share
                of_innocent += rollout.failed - share
                if suspected:
                    guilty += share
                    innocent += rollout.failed - share
        self.suspicions = [guilty, of_guilty, innocent, of_innocent]


class Harm(Struct, frozen=True, gc=False):
    """The harm that a line may do to a kind of task."""

    chance: float
    """The probability that it does any."""
    damage: float
    """The share of the rollouts that it spoils if it does."""


class HarmTable:
    """The harm that lines may do to kinds of tasks."""

    def __init__(self, blame: Blame) -> None:
        self._blame = blame
        self._places = number_names(blame.lines)

    def get(self, line: str, kind: str) -> Harm | None:
        """None if no rollout has said anything about it."""
        place = self._places.get(name_harm(line, kind))
        if place is None:
            return None
        chance, damage = self._blame.harmful[place], DAMAGE
        if chance > _SURE:
            passes, rollouts = self._blame.passes[place], self._blame.runs[place]
            damage = max(DAMAGE, 1.0 - (passes + _FEW) / (_PASSING * rollouts + _FEW))
        return Harm(chance, damage)


def compute_cost(harm: HarmTable, line: str, shares: Mapping[str, float]) -> Cost:
    """What a line costs by the harm that it may do. `shares`: how many of the tasks are of each kind, and read it."""
    spoiled = variance = 0.0
    unknown = Harm(compute_prior_harm(len(shares)), DAMAGE)
    for kind, share in shares.items():
        known = harm.get(line, kind) or unknown
        chance, most = known.chance, share * known.damage
        spoiled += most * chance
        variance += most**2 * chance * (1.0 - chance)
    return Cost(_PASSING * spoiled, _PASSING * math.sqrt(variance), spoiled)
