"""What a training run would take, for `ludus train --dry-run` and the progress line.

The estimate is that of `ludus.reflact.cost_estimate`. Its input is what calls took in an earlier run beside this one,
or else the sizes of prompts, tools and skill, as far as they are known without a run.
"""

import json
from typing import Any

from ludus.agent import Policy
from ludus.cli.common import NO_SLOT, choose_out
from ludus.cli.output.training_tables import print_estimate
from ludus.cli.train_plan import Plan
from ludus.config import Config, to_record
from ludus.config.build_agent import build_policy
from ludus.config.build_models import build_ledger, build_models, build_vision
from ludus.config.build_tools import open_registry
from ludus.config.tree import SameSettings
from ludus.env import Env
from ludus.models.server import Price, ServerSettings
from ludus.models.token_estimate import estimate_prompt, estimate_text
from ludus.reflact.cost_estimate import Assumptions, Estimate, Sizes, estimate
from ludus.reflact.earlier_runs import EarlierRun, find_earlier_run
from ludus.tools.toolsets import make_tools
from ludus.types import Message, ToolSpec, to_json

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
    assumed = _make_assumptions(config, plan, policy, before)
    guess = _estimate(config, plan, assumed, before)
    prices = {role: guess.compute_dollars(role, _find_price(config, role)) for role in ("agent", "optimizer")}
    if as_json:
        print(json.dumps(_to_json(guess, sizes, assumed, before, prices)))
        return
    print(f"{sizes.train} train, {sizes.selection} selection and {sizes.test} test tasks; {guess.steps} steps\n")
    print_estimate(guess, prices)
    print("\nCalls are the agent's rollouts and the optimizer's replies. " + _explain(guess, assumed, before))
    if not any(most for _, most in prices.values()):
        print("no prices: set model.price and optimizer.price (dollars per million tokens) to see the cost.")


def estimate_run(config: Config, plan: Plan, policy: Policy, before: EarlierRun | None = None) -> Estimate:
    """The estimate for a run whose agent is built. `before`: what calls took, if it is known."""
    before = before or _find_earlier(config)
    return _estimate(config, plan, _make_assumptions(config, plan, policy, before), before)


def _estimate(config: Config, plan: Plan, assumed: Assumptions, before: EarlierRun) -> Estimate:
    return estimate(
        plan.settings,
        plan.sizes,
        assumed,
        analysts=plan.proposer.needs_optimizer,
        prompts=plan.prompts,
        earlier=before,
        rollouts=config.budget.rollouts,
    )


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
    sizes = f"in the first prompt {assumed.opening_tokens}, in the skill {assumed.skill_tokens}"
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
        turns=min(policy.limits.turns, _TURNS) if specs or policy.harness else 1,
        opening_tokens=max(0, sum(openings) // len(openings) - estimate_text(own)),
        reply_tokens=min(config.sampling.max_tokens or defaults.reply_tokens, defaults.reply_tokens),
        skill_tokens=estimate_text(own) + defaults.skill_tokens,
    )


def _list_tools(env: Env, policy: Policy) -> tuple[ToolSpec, ...]:
    """The tools that the agent will be offered, without the environment's own, which need a slot."""
    names = env.toolsets if policy.toolsets is None else policy.toolsets
    return tuple(tool.spec for tool in make_tools(names, NO_SLOT, policy.registry))


def _find_price(config: Config, role: str) -> Price:
    same = role == "agent" or isinstance(config.optimizer, SameSettings)
    model = config.model if same else config.optimizer
    return model.price if isinstance(model, ServerSettings) else Price()


def _to_json(
    guess: Estimate, sizes: Sizes, assumed: Assumptions, before: EarlierRun, prices: dict[str, tuple[float, float]]
) -> dict[str, Any]:
    totals = {
        role: {
            "calls": guess.count_calls(role)._asdict(),
            "tokens": guess.count_tokens(role)._asdict(),
            "dollars": {"likely": likely, "most": most},
        }
        for role, (likely, most) in prices.items()
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
