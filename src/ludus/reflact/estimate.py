"""Estimate what a training run takes by running it: calls, tokens and money.

The trainer itself runs, on the real tasks and with the real settings, but with stand-ins for agent and optimizer
(`ludus.reflact.stand_ins`), which cost nothing. Its own books then say how many rollouts and replies it asked for. So a
change of the trainer needs no change here.

It runs three times: the optimizer proposes nothing, or rules that prevent half of the failures (this is `likely`), or
rules that prevent all of them. Replies that have to be asked for again and rollouts that have to be retried are not in
these numbers.

The tokens of one call come from an earlier run (`ludus.reflact.earlier_runs`), or else from the prompts that the
stand-ins got and from what is assumed about replies (`Assumptions`). Read them as an order of magnitude.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec.structs
from msgspec import Struct

from ludus.env import Env
from ludus.models.scripted import ScriptedModel
from ludus.models.server import Price
from ludus.policy import Policy
from ludus.reflact.earlier_runs import EarlierRun
from ludus.reflact.gate import Rule
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.proposers import Proposer
from ludus.reflact.proposers.analysts import Analysts
from ludus.reflact.records import StageCost, Summary
from ludus.reflact.request_sizes import (
    LARGER,
    Prices,
    RequestSizes,
    SizeChoice,
    apply_sizes,
    count_cached,
    guess_run_tokens,
    read_sizes,
)
from ludus.reflact.splits import Splits
from ludus.reflact.stand_ins import Assumptions, StandInRunner, StandInStore, StandInWorld
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.trainer import run_parts
from ludus.reflact.training_run import ClaimPlan, Resources, get_initial_skill, start_run
from ludus.runner import Runner
from ludus.types import Usage

CLAIM_MODEL = "claim_model"
"""The role of the model that the skill is not trained with, in an estimate."""


class LikelyRange(NamedTuple):
    """A number if the proposals prevent half of the failures, and the smallest and largest one if none or all."""

    least: float
    likely: float
    most: float


class EstimateLine(Struct, frozen=True):
    """The calls of one role in one stage."""

    role: str
    stage: str
    calls: LikelyRange
    each: Usage
    """The tokens of one call, without money."""
    measured: bool = False
    """Whether `each` was measured in an earlier run."""


class Estimate(Struct, frozen=True):
    """What a run takes."""

    steps: int
    lines: tuple[EstimateLine, ...]

    def count_calls(self, role: str) -> LikelyRange:
        return self._add_up(role, lambda each: 1)

    def count_tokens(self, role: str) -> LikelyRange:
        return self._add_up(role, lambda each: each.tokens)

    def count_cached_tokens(self, role: str) -> LikelyRange:
        """The prompt tokens that the server is likely to have in its cache, as in the earlier run."""
        return self._add_up(role, lambda each: each.cached_tokens)

    def compute_dollars(self, role: str, price: Price) -> LikelyRange:
        return self._add_up(
            role, lambda each: price.compute_cost(each.prompt_tokens, each.completion_tokens, each.cached_tokens)
        )

    def _add_up(self, role: str, weigh: Callable[[Usage], float]) -> LikelyRange:
        """The sum over the calls of a role."""
        own = [(line.calls, weigh(line.each)) for line in self.lines if line.role == role]
        return LikelyRange(*(sum(calls[place] * weight for calls, weight in own) for place in range(3)))


class SizeEstimate(NamedTuple):
    """What a run takes with other sizes of steps and requests."""

    sizes: RequestSizes
    estimate: Estimate
    cached: float
    """The agent's prompt tokens that the server is likely to have in its cache."""
    dollars: float
    seconds: float | None
    """None if no earlier run says how long rollouts and requests take."""


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A training run that has not begun: what `train` gets, but for the models."""

    env: Env
    policy: Policy
    splits: Splits
    settings: TrainSettings
    proposer: Proposer = Analysts()
    """It is called if it has stand-ins (`Proposer.simulated`). Any other that needs the optimizer counts as asking what
    the analysts ask."""
    prompts: Prompts | None = None
    make_rule: Callable[[], Rule | None] = lambda: None
    """Makes the gate rule. A rule may have state, so each run gets its own."""
    has_optimizer: bool = True
    rollouts: int | None = None
    """The limit of the budget."""
    claim: ClaimPlan | None = None


ALL_OUTCOMES = (0.5, 0.0, 1.0)
"""The shares of failures that proposals prevent: the likely one first."""


async def estimate(
    planned: PlannedRun,
    assumed: Assumptions = Assumptions(),
    earlier: EarlierRun = EarlierRun(),
    outcomes: Sequence[float] = ALL_OUTCOMES,
) -> Estimate:
    """Estimate what a run takes. Raises `ConfigError` where the run would. `outcomes`: what is simulated; with the
    first alone, there is no range."""
    likely, *others = [await simulate(planned, assumed, curable=curable) for curable in outcomes]
    spent = [_list_costs(planned, run) for run in (likely, *others)]
    places = sorted(set[tuple[str, str]]().union(*spent))
    lines = (_make_line(*place, [costs.get(place) for costs in spent], earlier) for place in places)
    return Estimate(likely.steps, tuple(lines))


async def estimate_sizes(
    planned: PlannedRun, assumed: Assumptions, earlier: EarlierRun, prices: Prices, concurrency: int
) -> list[SizeEstimate]:
    """What a run of the recipe `ledger` takes with the default sizes, with larger ones if there are tasks for them, and
    with its own."""
    own = read_sizes(planned.settings)
    default = RequestSizes(block=own.block)
    larger = msgspec.structs.replace(default, batch=LARGER[0], minibatch=LARGER[1])
    tokens = guess_run_tokens(planned.env, planned.policy, planned.splits, planned.settings, planned.rollouts)
    found: list[SizeEstimate] = []
    for sizes in dict.fromkeys((default, larger, own) if tokens.tasks >= larger.batch else (default, own)):
        settings = apply_sizes(planned.settings, SizeChoice(sizes))
        guess = await estimate(dataclasses.replace(planned, settings=settings), assumed, earlier, ALL_OUTCOMES[:1])
        dollars = guess.compute_dollars("agent", prices.agent).likely
        if prices.optimizer is not None:
            dollars += guess.compute_dollars("optimizer", prices.optimizer).likely
        measured = guess.count_cached_tokens("agent").likely
        saved = 0.0 if measured else guess.count_calls("agent").likely * count_cached(sizes.block, tokens, prices.agent)
        if saved and prices.agent.cached is not None:
            dollars -= saved * ((prices.agent.prompt or 0.0) - prices.agent.cached) / 1_000_000
        seconds = earlier.estimate_seconds(guess.steps, sizes.batch, concurrency)
        found.append(SizeEstimate(sizes, guess, measured or saved, dollars, seconds))
    return found


def _list_costs(planned: PlannedRun, simulated: Summary) -> dict[tuple[str, str], StageCost]:
    """What a simulated run spent, by role and stage, without what the planned run asks nobody for."""
    free = {"agent": (), "optimizer": () if planned.proposer.needs_optimizer else ("analyst", "merge", "rank")}
    roles = ("agent", "optimizer") if planned.has_optimizer else ("agent",)
    costs = (cost for cost in simulated.spent if cost.role in roles and cost.stage not in free[cost.role])
    return {(cost.role, cost.stage): cost for cost in costs}


def _make_line(role: str, stage: str, costs: Sequence[StageCost | None], earlier: EarlierRun) -> EstimateLine:
    """The line of one stage, from its costs in several runs, the likely one first."""
    counts = [cost.calls if cost else 0 for cost in costs]
    known = earlier.average_usage(role, stage)
    role = CLAIM_MODEL if stage == "other_model" else role  # it has a price of its own
    each = known or next(_average_usage(cost) for cost in costs if cost)
    return EstimateLine(role, stage, LikelyRange(min(counts), counts[0], max(counts)), each, known is not None)


def _average_usage(cost: StageCost) -> Usage:
    return Usage(cost.usage.prompt_tokens // cost.calls, cost.usage.completion_tokens // cost.calls)


async def simulate(planned: PlannedRun, assumed: Assumptions = Assumptions(), *, curable: float = 0.5) -> Summary:
    """Run a training run to its end with stand-ins in place of agent and optimizer."""
    initial = get_initial_skill(planned.policy)
    world = StandInWorld(initial, len(planned.splits.train), assumed, curable)
    run = start_run(
        Runner(planned.env, store=StandInStore()),
        planned.policy,
        planned.splits,
        planned.settings,
        optimizer=ScriptedModel(world.answer),
        proposer=planned.proposer if planned.proposer.simulated else Analysts(),
        prompts=planned.prompts,
        rule=planned.make_rule(),
        resources=Resources(rollouts=planned.rollouts, claim=planned.claim),
    )
    run = dataclasses.replace(run, runner=StandInRunner(**vars(run.runner), world=world))
    *_, summary = [record async for record in run_parts(run, initial) if isinstance(record, Summary)]
    return summary
