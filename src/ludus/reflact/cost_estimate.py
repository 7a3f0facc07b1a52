"""What a training run will take, before it is started: calls, tokens and money. Pure.

Calls follow from the plan. `least` and `most` are bounds: nothing that the optimizer says and no luck of the gate leads
outside of them, as long as the world does not break (rollouts that are tried again are not in them). `likely` takes
every reply to be usable, every step to come to a candidate, and a given share of the rollouts to fail. Calls are
counted as a run records them: rollouts of the agent, replies of the optimizer.

Tokens are calls times what one takes: as in an earlier run (`ludus.reflact.earlier_runs`), or else assumed (`Assumed`), for
how long replies are and how many turns a rollout has cannot be known. Read them as an order of magnitude.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from ludus.models.server import Price
from ludus.models.token_estimate import text_tokens
from ludus.reflact.earlier_runs import Earlier
from ludus.reflact.items import FORMS
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.train_settings import TrainSettings
from ludus.types import Usage


class Count(NamedTuple):
    """How often something will happen."""

    least: int = 0
    likely: int = 0
    most: int = 0

    def times(self, factor: int) -> "Count":
        return Count(self.least * factor, self.likely * factor, self.most * factor)

    def plus(self, other: "Count") -> "Count":
        return Count(self.least + other.least, self.likely + other.likely, self.most + other.most)


class Sizes(Struct, frozen=True):
    """How many tasks there are to use."""

    train: int
    selection: int
    test: int


class Assumed(Struct, frozen=True, kw_only=True):
    """What cannot be known before the run."""

    failing: float = 0.5
    """The share of train rollouts that fail."""
    turns: int = 1
    """Replies per rollout."""
    opening_tokens: int = 300
    """The first prompt without the skill: system text, tools, task."""
    reply_tokens: int = 300
    """One reply of the agent."""
    result_tokens: int = 300
    """What tools answer to it, where there are further turns."""
    skill_tokens: int = 500
    """The skill, over the run."""
    proposal_tokens: int = 800
    """One reply of the optimizer."""


class Line(Struct, frozen=True):
    """One role in one stage."""

    role: str
    stage: str
    calls: Count
    each: Usage
    """What one call is taken to be, without money."""
    measured: bool = False
    """It is what one took in an earlier run."""


class Estimate(Struct, frozen=True):
    steps: int
    lines: tuple[Line, ...]

    def calls(self, role: str) -> Count:
        return _total(line.calls for line in self.lines if line.role == role)

    def tokens(self, role: str) -> Count:
        return _total(line.calls.times(line.each.tokens) for line in self.lines if line.role == role)

    def dollars(self, role: str, price: Price) -> tuple[float, float]:
        """What is likely, and the most."""
        lines = [(line.calls, line.each) for line in self.lines if line.role == role]
        each = [(calls, price.of(usage.prompt_tokens, usage.completion_tokens)) for calls, usage in lines]
        return math.fsum(c.likely * cost for c, cost in each), math.fsum(c.most * cost for c, cost in each)


def estimate(
    settings: TrainSettings,
    sizes: Sizes,
    assumed: Assumed = Assumed(),
    *,
    analysts: bool,
    prompts: Prompts,
    earlier: Earlier = Earlier(),
) -> Estimate:
    """What a run with these settings takes. `analysts` says whether the optimizer's model proposes the changes."""
    steps = [_step(settings, batches, assumed, analysts) for batches in batch_sizes(sizes.train, settings)]
    selection = sizes.selection * settings.selection_replicates
    unmeasured = settings.appendix.enabled or (settings.slow.enabled and not settings.slow.gated)
    counts: dict[tuple[str, str], Count] = {("agent", "baseline"): Count(*[selection] * 3)}

    def add(role: str, stage: str, count: Count) -> None:
        if count.most:
            counts[role, stage] = counts.get((role, stage), Count()).plus(count)

    for _ in range(settings.epochs):
        for step in steps:
            add("agent", "rollout", Count(*[step.rollouts] * 3))
            for stage, count in step.asked.items():
                add("optimizer", stage, count)
            add("agent", "evaluate", Count(0, selection, selection * (2 if unmeasured else 1)))
    for _ in range(1, settings.epochs):
        for role, stage, count in _epoch_end(settings, sizes, selection, unmeasured):
            add(role, stage, count)
    add("agent", "validate", Count(0, selection if unmeasured else 0, selection))
    if settings.test:
        add("agent", "test", Count(1, 2, 3).times(sizes.test * settings.test_replicates))
    each = _Each(settings, sizes, assumed, prompts)
    lines: list[Line] = []
    for (role, stage), count in counts.items():
        known = earlier.each(role, stage)
        lines.append(Line(role, stage, count, known or each.of(role, stage), known is not None))
    return Estimate(len(steps) * settings.epochs, tuple(lines))


def batch_sizes(train: int, settings: TrainSettings) -> list[list[int]]:
    """The batches of each step of an epoch, as `plan_epoch` cuts them."""
    size, together = settings.batch_size, settings.accumulation
    starts = range(0, train, size * together)
    whole = min(size, train)  # a batch that would be empty is filled anew
    return [[max(0, min(size, train - start - n * size)) or whole for n in range(together)] for start in starts]


@dataclass(frozen=True)
class _Step:
    rollouts: int
    asked: dict[str, Count]


def _step(settings: TrainSettings, batches: Sequence[int], assumed: Assumed, analysts: bool) -> _Step:
    """The rollouts of a step, and what the optimizer is asked after them."""
    tries, limited = settings.optimizer_tries, FORMS[settings.update_mode].limited
    once = Count(0, 1, tries)
    asked: dict[str, Count] = {}
    if analysts:
        dealt = [_dealt(n, round(n * assumed.failing), settings) for n in batches]
        readings = [_readings(n, settings) for n in batches]
        likely = (sum(failed for failed, _ in dealt), sum(passed for _, passed in dealt))
        most = sum(most for _, most in readings)
        asked["analyst"] = Count(sum(least for least, _ in readings), sum(likely), most * tries)
        asked["merge"] = Count(0, _merges(*likely, settings), _most_merges(most, settings) * tries)
        if limited and settings.control != "none":
            asked["rank"] = once
    if limited and settings.control == "autonomous":
        asked["budget"] = once
    if settings.update_mode == "rewrite_from_suggestions":
        asked["rewrite"] = once
    if settings.appendix.enabled and settings.appendix.consolidate_above:
        asked["consolidate"] = Count(0, 0, tries)
    return _Step(sum(batches), asked)


def _dealt(rollouts: int, failed: int, settings: TrainSettings) -> tuple[int, int]:
    """The minibatches of failures and of successes."""
    passed = 0 if settings.failure_only else rollouts - failed
    return math.ceil(failed / settings.minibatch_size), math.ceil(passed / settings.minibatch_size)


def _readings(rollouts: int, settings: TrainSettings) -> tuple[int, int]:
    """The fewest and the most minibatches that a batch can make."""
    ways = [sum(_dealt(rollouts, failed, settings)) for failed in range(rollouts + 1)]
    return min(ways), max(ways)


def _merges(failure: int, success: int, settings: TrainSettings) -> int:
    """How many merges it takes to make one list of so many proposals."""
    both = 1 if failure and success else 0
    return _levels(failure, settings.merge_batch_size) + _levels(success, settings.merge_batch_size) + both


def _levels(patches: int, size: int) -> int:
    merges = 0
    while patches > 1:
        whole, rest = divmod(patches, size)
        merges += whole + (rest > 1)  # a group of one is passed on as it is
        patches = whole + (rest > 0)
    return merges


def _most_merges(patches: int, settings: TrainSettings) -> int:
    return max(_merges(n, patches - n, settings) for n in range(patches + 1))


def _epoch_end(
    settings: TrainSettings, sizes: Sizes, selection: int, unmeasured: bool
) -> Iterable[tuple[str, str, Count]]:
    """From the second epoch's end on. Both skills are run once where they are the same."""
    slow = settings.slow
    if not slow.enabled and not settings.memory:
        return
    shown = min(slow.samples, sizes.train)
    yield "agent", "slow", Count(shown, 2 * shown, 2 * (sizes.train if slow.pairs == "changed" else shown))
    once = Count(0, 1, settings.optimizer_tries)
    if slow.enabled:
        yield "optimizer", "slow", once
        if slow.gated:
            yield "agent", "evaluate", Count(0, selection, selection * (2 if unmeasured else 1))
    if settings.memory:
        yield "optimizer", "meta", once


def _total(counts: Iterable[Count]) -> Count:
    total = Count()
    for count in counts:
        total = total.plus(count)
    return total


# ---- what one call takes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Each:
    settings: TrainSettings
    sizes: Sizes
    assumed: Assumed
    prompts: Prompts

    def of(self, role: str, stage: str) -> Usage:
        return self._rollout() if role == "agent" else self._reply(stage)

    def _rollout(self) -> Usage:
        """Every turn sends again what was said before."""
        a = self.assumed
        growth = (a.reply_tokens + a.result_tokens) * a.turns * (a.turns - 1) // 2
        return Usage(a.turns * (a.opening_tokens + a.skill_tokens) + growth, a.turns * a.reply_tokens)

    def _reply(self, stage: str) -> Usage:
        a, settings = self.assumed, self.settings
        transcript = a.opening_tokens + a.turns * a.reply_tokens + (a.turns - 1) * a.result_tokens
        batch = min(settings.batch_size, self.sizes.train)
        proposals = 2 * math.ceil(batch / 2 / settings.minibatch_size) * settings.accumulation
        compared = 2 * min(settings.slow.samples, self.sizes.train) * transcript
        material = {
            "analyst": min(settings.trajectory_tokens, min(settings.minibatch_size, batch) * transcript),
            "merge": min(settings.merge_batch_size, proposals) * a.proposal_tokens // 2,
            "slow": a.skill_tokens + min(settings.trajectory_tokens, compared),
            "meta": a.skill_tokens + min(settings.trajectory_tokens, compared),
        }
        reply = a.proposal_tokens + (a.skill_tokens if stage == "rewrite" else 0)
        return Usage(self._words(stage) + a.skill_tokens + material.get(stage, a.proposal_tokens), reply)

    def _words(self, stage: str) -> int:
        """The prompt itself, the longest where a stage has several."""
        names = [name for name in self.prompts.names if name.startswith(stage)]
        return max((text_tokens(self.prompts.text(name)) for name in names), default=0)
