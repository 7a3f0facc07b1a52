"""What a training run would take, for `ludus train --dry-run` and the progress line.

The estimate is that of `ludus.reflact.estimate`. Its input is what calls took in an earlier run beside this one, or
else the sizes of prompts and tools, as far as they are known without a run.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ludus.command import NO_SLOT
from ludus.command.settings import choose_out
from ludus.config import Config, to_record
from ludus.config.build_agent import build_policy
from ludus.config.build_models import build_ledger, build_models, build_vision
from ludus.config.build_tools import open_registry
from ludus.config.build_training import build_rule, has_optimizer
from ludus.config.tree import NoModelSettings, SameSettings
from ludus.encoding import to_json
from ludus.env import Env
from ludus.models.no_model import NoModel
from ludus.models.server import Price, ServerSettings
from ludus.models.token_estimate import estimate_prompt, estimate_text
from ludus.policy import Policy
from ludus.reflact.earlier_runs import EarlierRun, find_earlier_run
from ludus.reflact.estimate import (
    CLAIM_MODEL,
    Estimate,
    LikelyRange,
    PlannedRun,
    SizeEstimate,
    estimate,
    estimate_sizes,
    simulate,
)
from ludus.reflact.plan import Plan
from ludus.reflact.records import Summary
from ludus.reflact.request_sizes import Prices, SizeChoice, apply_sizes, choose_sizes, guess_run_tokens, read_sizes
from ludus.reflact.size_table import describe_size_options, print_size_options
from ludus.reflact.splits import Sizes
from ludus.reflact.stand_ins import Assumptions
from ludus.reflact.training_run import ClaimPlan
from ludus.reflact.training_tables import print_estimate
from ludus.tools.toolsets import make_tools
from ludus.types import Message, ToolSpec

_TURNS = 6
"""Turns that a rollout with tools is assumed to have."""


async def print_dry_run(config: Config, plan: Plan, *, as_json: bool) -> None:
    """Print what the run would take. Nothing is started, and no model is called."""
    async with open_registry(config.tools, build_vision(config, build_ledger(config))) as registry:
        agent, optimizer = build_models(config, build_ledger(config))
        try:
            policy = build_policy(config, plan.env, agent, registry)
        finally:
            await agent.close()
            if optimizer is not None and not isinstance(config.optimizer, SameSettings):
                await optimizer.close()
    sizes, before = plan.sizes, _find_earlier(config)
    held = f", {len(plan.splits.held_out)} tasks held out" if len(plan.splits.held_out) else ""
    assumed = _make_assumptions(config, plan, policy, before)
    planned = _make_planned(config, plan, policy)
    guess = await estimate(planned, assumed, before)
    options = list[SizeEstimate]()
    if plan.settings.recipe == "ledger":
        options = await estimate_sizes(planned, assumed, before, _list_prices(config, plan), config.run.concurrency)
    choice = _choose_sizes(config, plan, policy)
    roles = ("agent", "optimizer", CLAIM_MODEL)
    dollars = {role: guess.compute_dollars(role, _find_price(config, role)) for role in roles}
    if as_json:
        print(json.dumps(_to_json(guess, sizes, assumed, before, dollars) | describe_size_options(options, choice)))
        return
    print(f"{sizes.train} train, {sizes.selection} selection and {sizes.test} test tasks{held}; {guess.steps} steps\n")
    print_estimate(guess, dollars)
    print(
        "\nCalls are the agent's rollouts and the optimizer's replies if the proposals prevent half of the failures; "
        f"between: none or all of them. Retries come on top. {_explain(guess, assumed, before)}"
    )
    print_size_options(options, read_sizes(planned.settings), choice)
    if plan.claim is None:
        print(
            "With --claim, the run takes as many rollouts as training and shipping again, for the arm of equal budget."
        )
    if not any(cost.most for cost in dollars.values()):
        print("no prices: set model.price and optimizer.price (dollars per million tokens) to see the cost.")


async def estimate_run(config: Config, plan: Plan, policy: Policy, before: EarlierRun) -> Estimate:
    """The estimate for a run whose agent is built. `before`: what calls took."""
    return await estimate(_make_planned(config, plan, policy), _make_assumptions(config, plan, policy, before), before)


async def simulate_run(config: Config, plan: Plan, policy: Policy) -> Summary:
    """The end of a likely run without any model. Its books say how many rollouts it takes."""
    assumed = _make_assumptions(config, plan, policy, _find_earlier(config))
    return await simulate(_make_planned(config, plan, policy), assumed)


def _make_planned(config: Config, plan: Plan, policy: Policy) -> PlannedRun:
    return PlannedRun(
        plan.env,
        policy,
        plan.splits,
        apply_sizes(plan.settings, _choose_sizes(config, plan, policy)),
        proposer=plan.proposer,
        prompts=plan.prompts,
        make_rule=lambda: build_rule(config.train),
        has_optimizer=has_optimizer(config),
        rollouts=config.budget.rollouts,
        claim=_plan_claim(config, plan),
    )


def _choose_sizes(config: Config, plan: Plan, policy: Policy) -> SizeChoice | None:
    """The sizes that the run will choose."""
    return choose_sizes(
        plan.settings,
        _list_prices(config, plan),
        lambda: guess_run_tokens(plan.env, policy, plan.splits, plan.settings, config.budget.rollouts),
    )


def _list_prices(config: Config, plan: Plan) -> Prices:
    asks = plan.proposer.needs_optimizer and has_optimizer(config)
    return Prices(_find_price(config, "agent"), _find_price(config, "optimizer") if asks else None)


def _plan_claim(config: Config, plan: Plan) -> ClaimPlan | None:
    """The arms of the claim, with a model that is only a name."""
    if plan.claim is None or isinstance(config.claim_model, NoModelSettings):
        return plan.claim
    return dataclasses.replace(plan.claim, model=NoModel("claim_model"))


def _find_earlier(config: Config) -> EarlierRun:
    """The latest run with the same settings, among those beside this one."""
    return find_earlier_run(choose_out(config).parent, to_record(config))


def _explain(guess: Estimate, assumed: Assumptions, before: EarlierRun) -> str:
    """What the number of tokens is based on."""
    words = ""
    if before.run:
        words = f"Tokens of a call are as they were in {before.run}"
        left = list(dict.fromkeys(line.stage for line in guess.lines if not line.measured and line.calls.likely))
        if not left:
            return f"{words}; {assumed.failing:.0%} of the train rollouts fail, as there."
        words += f", and assumed for {', '.join(left)}. "
    sizes = f"in the first prompt {assumed.opening_tokens}, in a new rule {assumed.rule_tokens}"
    return (
        f"{words}Assumed: turns per rollout {assumed.turns}, tokens per turn {assumed.reply_tokens}, {sizes}; "
        f"{assumed.failing:.0%} of the train rollouts fail."
    )


def _make_assumptions(config: Config, plan: Plan, policy: Policy, before: EarlierRun) -> Assumptions:
    """The sizes that are known without a run."""
    specs = _list_tools(plan.env, policy)
    system = (Message("system", policy.build_system_text(plan.env.system)),)
    own = policy.skill.text if policy.skill else ""
    openings = [estimate_prompt((*system, *plan.env.opening(task)), specs) for task in plan.splits.train[:20]]
    defaults = Assumptions()
    return Assumptions(
        failing=defaults.failing if before.failing is None else before.failing,
        turns=min(policy.limits.turns, _TURNS) if specs or policy.agent else 1,
        opening_tokens=max(0, sum(openings) // len(openings) - estimate_text(own)),
        reply_tokens=min(config.sampling.max_tokens or defaults.reply_tokens, defaults.reply_tokens),
    )


def _list_tools(env: Env, policy: Policy) -> tuple[ToolSpec, ...]:
    """The tools that the agent will be offered, without the environment's own, which need a slot."""
    names = env.toolsets if policy.toolsets is None else policy.toolsets
    return tuple(tool.spec for tool in make_tools(names, NO_SLOT, policy.registry))


def _find_price(config: Config, role: str) -> Price:
    same = role == "agent" or (role == "optimizer" and isinstance(config.optimizer, SameSettings))
    model = config.model if same else config.claim_model if role == CLAIM_MODEL else config.optimizer
    return model.price if isinstance(model, ServerSettings) else Price()


def _to_json(
    guess: Estimate, sizes: Sizes, assumed: Assumptions, before: EarlierRun, dollars: Mapping[str, LikelyRange]
) -> dict[str, Any]:
    totals = {
        role: {
            "calls": guess.count_calls(role)._asdict(),
            "tokens": guess.count_tokens(role)._asdict(),
            "dollars": cost._asdict(),
        }
        for role, cost in dollars.items()
    }
    lines = [
        {
            "role": line.role,
            "stage": line.stage,
            "calls": line.calls._asdict(),
            "each": json.loads(to_json(line.each)),
            "measured": line.measured,
        }
        for line in guess.lines
    ]
    plain = {"sizes": sizes, "assumed": assumed, "earlier": before.run}
    return {"steps": guess.steps, "totals": totals, "lines": lines, **json.loads(to_json(plain))}
