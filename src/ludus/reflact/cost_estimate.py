"""Estimate the cost of a training run before it starts: calls, tokens and money. Pure.

The calls follow from the plan. `least` and `most` are bounds that hold for all replies of the optimizer and all
decisions of the gate, as long as no rollout has to be retried. `likely` assumes that every reply is usable, that every
step makes a candidate, and that a given share of the rollouts fail. Calls are counted as a run records them: rollouts
of the agent, replies of the optimizer.

Tokens are calls times the tokens of one call. These come from an earlier run (`ludus.reflact.earlier_runs`) or are
assumed (`Assumptions`), because the length of replies and the number of turns are not known before. Read them as an
order of magnitude.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from ludus.models.server import Price
from ludus.models.token_estimate import estimate_text
from ludus.reflact.earlier_runs import EarlierRun
from ludus.reflact.items import FORMS
from ludus.reflact.ledger.rollout_plan import plan_rollouts
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.train_settings import TrainSettings
from ludus.types import Usage


class CallCount(NamedTuple):
    """The number of calls: bounds and an estimate."""

    least: int = 0
    likely: int = 0
    most: int = 0

    def scale(self, factor: int) -> "CallCount":
        return CallCount(self.least * factor, self.likely * factor, self.most * factor)

    def add(self, other: "CallCount") -> "CallCount":
        return CallCount(self.least + other.least, self.likely + other.likely, self.most + other.most)


class Sizes(Struct, frozen=True):
    """The number of tasks in each split."""

    train: int
    selection: int
    test: int


class Assumptions(Struct, frozen=True, kw_only=True):
    """Assumptions about what is not known before the run."""

    failing: float = 0.5
    """The share of train rollouts that fail."""
    turns: int = 1
    """Replies per rollout."""
    opening_tokens: int = 300
    """The first prompt without the skill: system text, tools and task."""
    reply_tokens: int = 300
    """One reply of the agent."""
    result_tokens: int = 300
    """The tool results after a reply, if there are more turns."""
    skill_tokens: int = 500
    """The length of the skill, on average over the run."""
    proposal_tokens: int = 800
    """One reply of the optimizer."""


class EstimateLine(Struct, frozen=True):
    """The calls of one role in one stage."""

    role: str
    stage: str
    calls: CallCount
    each: Usage
    """The tokens of one call, without money."""
    measured: bool = False
    """Whether `each` was measured in an earlier run."""


class Estimate(Struct, frozen=True):
    steps: int
    lines: tuple[EstimateLine, ...]

    def count_calls(self, role: str) -> CallCount:
        return _sum_counts(line.calls for line in self.lines if line.role == role)

    def count_tokens(self, role: str) -> CallCount:
        return _sum_counts(line.calls.scale(line.each.tokens) for line in self.lines if line.role == role)

    def compute_dollars(self, role: str, price: Price) -> tuple[float, float]:
        """The likely and the largest cost."""
        lines = [(line.calls, line.each) for line in self.lines if line.role == role]
        each = [(calls, price.compute_cost(usage.prompt_tokens, usage.completion_tokens)) for calls, usage in lines]
        return math.fsum(c.likely * cost for c, cost in each), math.fsum(c.most * cost for c, cost in each)


def estimate(
    settings: TrainSettings,
    sizes: Sizes,
    assumed: Assumptions = Assumptions(),
    *,
    analysts: bool,
    prompts: Prompts,
    earlier: EarlierRun = EarlierRun(),
    rollouts: int | None = None,
) -> Estimate:
    """Estimate a run with these settings. `analysts` says whether the optimizer's model proposes the changes, and
    `rollouts` is the limit of the budget."""
    if settings.recipe == "ledger":
        steps, counts = _count_ledger_calls(settings, sizes, assumed, analysts, rollouts)
    else:
        steps, counts = _count_gated_calls(settings, sizes, assumed, analysts)
    if canaries := 2 * min(settings.guards.canaries, sizes.selection):
        counts["agent", "canary"] = CallCount(0, canaries, canaries)
    if settings.test:
        counts["agent", "test"] = CallCount(1, 2, 2).scale(sizes.test * settings.test_replicates)
    each = _UsagePerCall(settings, sizes, assumed, prompts)
    lines: list[EstimateLine] = []
    for (role, stage), count in counts.items():
        known = earlier.average_usage(role, stage)
        lines.append(EstimateLine(role, stage, count, known or each.estimate(role, stage), known is not None))
    return Estimate(steps, tuple(lines))


Counts = dict[tuple[str, str], CallCount]
"""Calls by role and stage."""


def _count_ledger_calls(
    settings: TrainSettings, sizes: Sizes, assumed: Assumptions, analysts: bool, rollouts: int | None
) -> tuple[int, Counts]:
    """The steps of the recipe `ledger` and its calls, without the test."""
    test = 2 * sizes.test * settings.test_replicates if settings.test else 0
    plan = plan_rollouts(settings, sizes.train, test, rollouts)
    batch = min(settings.ledger.batch_size, sizes.train)
    steps = plan.training // batch
    passes = (
        4 + 3 * (settings.shipping.passes - 1)
    ) * sizes.selection  # three candidates and the initial skill, then two
    most = passes if plan.total is None else plan.total - steps * batch
    counts: Counts = {("agent", "rollout"): CallCount(*[steps * batch] * 3)}
    if analysts:
        parts = math.ceil(batch / settings.minibatch_size)
        likely = math.ceil(batch * assumed.failing / settings.minibatch_size)
        counts["optimizer", "analyst"] = CallCount(0, likely, parts * settings.optimizer_tries).scale(steps)
    if settings.appendix.enabled and settings.appendix.consolidate_above:
        counts["optimizer", "consolidate"] = CallCount(0, 0, settings.optimizer_tries).scale(steps)
    counts["agent", "ship"] = CallCount(0, min(most, 4 * sizes.selection), most)
    return steps, counts


def _count_gated_calls(
    settings: TrainSettings, sizes: Sizes, assumed: Assumptions, analysts: bool
) -> tuple[int, Counts]:
    """The steps of the recipe `reflact` and its calls, without the test."""
    steps = [
        _estimate_step(settings, batches, assumed, analysts) for batches in list_batch_sizes(sizes.train, settings)
    ]
    selection = sizes.selection * settings.selection_replicates
    unmeasured = settings.appendix.enabled or (settings.slow.enabled and not settings.slow.gated)
    counts: Counts = {("agent", "baseline"): CallCount(*[selection] * 3)}

    def add(role: str, stage: str, count: CallCount) -> None:
        if count.most:
            counts[role, stage] = counts.get((role, stage), CallCount()).add(count)

    for _ in range(settings.epochs):
        for step in steps:
            add("agent", "rollout", CallCount(*[step.rollouts] * 3))
            for stage, count in step.requests.items():
                add("optimizer", stage, count)
            add("agent", "evaluate", CallCount(0, selection, selection * _bound_passes(settings, unmeasured)))
    for _ in range(1, settings.epochs):
        for role, stage, count in _estimate_epoch_end(settings, sizes, selection, unmeasured):
            add(role, stage, count)
    # Two candidates and the initial skill in the first pass, one candidate in the others.
    once = sizes.selection
    add("agent", "ship", CallCount(0, 2 * once, (3 + 2 * (settings.shipping.passes - 1)) * once))
    return len(steps) * settings.epochs, counts


def list_batch_sizes(train: int, settings: TrainSettings) -> list[list[int]]:
    """The batch sizes of each step of an epoch, as `plan_epoch` makes them."""
    size, together = settings.batch_size, settings.accumulation
    starts = range(0, train, size * together)
    whole = min(size, train)  # a batch without tasks gets a new sample
    return [[max(0, min(size, train - start - n * size)) or whole for n in range(together)] for start in starts]


@dataclass(frozen=True)
class _StepEstimate:
    rollouts: int
    requests: dict[str, CallCount]


def _estimate_step(
    settings: TrainSettings, batches: Sequence[int], assumed: Assumptions, analysts: bool
) -> _StepEstimate:
    """The rollouts of a step and the requests to the optimizer after them."""
    tries, limited = settings.optimizer_tries, FORMS[settings.update_mode].limited
    once = CallCount(0, 1, tries)
    requests: dict[str, CallCount] = {}
    if analysts:
        minibatches = [_count_minibatches(n, round(n * assumed.failing), settings) for n in batches]
        bounds = [_bound_minibatches(n, settings) for n in batches]
        likely = (sum(failed for failed, _ in minibatches), sum(passed for _, passed in minibatches))
        most = sum(most for _, most in bounds)
        requests["analyst"] = CallCount(sum(least for least, _ in bounds), sum(likely), most * tries)
        requests["merge"] = CallCount(0, _count_merges(*likely, settings), _bound_merges(most, settings) * tries)
        if limited and settings.control != "none":
            requests["rank"] = once
    if limited and settings.control == "autonomous":
        requests["budget"] = once
    if settings.update_mode == "rewrite_from_suggestions":
        requests["rewrite"] = once
    if settings.appendix.enabled and settings.appendix.consolidate_above:
        requests["consolidate"] = CallCount(0, 0, tries)
    return _StepEstimate(sum(batches), requests)


def _count_minibatches(rollouts: int, failed: int, settings: TrainSettings) -> tuple[int, int]:
    """The number of minibatches of failures and of successes."""
    passed = 0 if settings.failure_only else rollouts - failed
    return math.ceil(failed / settings.minibatch_size), math.ceil(passed / settings.minibatch_size)


def _bound_minibatches(rollouts: int, settings: TrainSettings) -> tuple[int, int]:
    """The smallest and the largest number of minibatches of a batch."""
    ways = [sum(_count_minibatches(rollouts, failed, settings)) for failed in range(rollouts + 1)]
    return min(ways), max(ways)


def _count_merges(failure: int, success: int, settings: TrainSettings) -> int:
    """The number of merges that make one list of these proposals."""
    both = 1 if failure and success else 0
    return (
        _count_level_merges(failure, settings.merge_batch_size)
        + _count_level_merges(success, settings.merge_batch_size)
        + both
    )


def _count_level_merges(patches: int, size: int) -> int:
    merges = 0
    while patches > 1:
        whole, rest = divmod(patches, size)
        merges += whole + (rest > 1)  # a group of one needs no merge
        patches = whole + (rest > 0)
    return merges


def _bound_merges(patches: int, settings: TrainSettings) -> int:
    return max(_count_merges(n, patches - n, settings) for n in range(patches + 1))


def _estimate_epoch_end(
    settings: TrainSettings, sizes: Sizes, selection: int, unmeasured: bool
) -> Iterable[tuple[str, str, CallCount]]:
    """The calls at the end of an epoch, from the second on. Equal skills are run only once."""
    slow = settings.slow
    if not slow.enabled and not settings.memory:
        return
    shown = min(slow.samples, sizes.train)
    yield "agent", "slow", CallCount(shown, 2 * shown, 2 * (sizes.train if slow.pairs == "changed" else shown))
    once = CallCount(0, 1, settings.optimizer_tries)
    if slow.enabled:
        yield "optimizer", "slow", once
        if slow.gated:
            yield "agent", "evaluate", CallCount(0, selection, selection * _bound_passes(settings, unmeasured))
    if settings.memory:
        yield "optimizer", "meta", once


def _bound_passes(settings: TrainSettings, unmeasured: bool) -> int:
    """How often the items are run for one decision, at most: for the candidate, and for the current skill."""
    gate = settings.gate
    if gate.rule == "sequential":
        return 2 * gate.passes + gate.refresh
    return 1 + max(gate.refresh, unmeasured)


def _sum_counts(counts: Iterable[CallCount]) -> CallCount:
    total = CallCount()
    for count in counts:
        total = total.add(count)
    return total


# ---- tokens of one call ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _UsagePerCall:
    settings: TrainSettings
    sizes: Sizes
    assumed: Assumptions
    prompts: Prompts

    def estimate(self, role: str, stage: str) -> Usage:
        return self._estimate_rollout() if role == "agent" else self._estimate_reply(stage)

    def _estimate_rollout(self) -> Usage:
        """Every turn sends the conversation so far again."""
        a = self.assumed
        growth = (a.reply_tokens + a.result_tokens) * a.turns * (a.turns - 1) // 2
        return Usage(a.turns * (a.opening_tokens + a.skill_tokens) + growth, a.turns * a.reply_tokens)

    def _estimate_reply(self, stage: str) -> Usage:
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
        return Usage(self._count_prompt_tokens(stage) + a.skill_tokens + material.get(stage, a.proposal_tokens), reply)

    def _count_prompt_tokens(self, stage: str) -> int:
        """The tokens of the stage's prompt template, of the longest one if it has several."""
        names = [name for name in self.prompts.names if name.startswith(stage)]
        return max((estimate_text(self.prompts.get_text(name)) for name in names), default=0)
