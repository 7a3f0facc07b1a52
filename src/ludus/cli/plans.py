"""What `ludus train` is about to do: its plan, and with `--dry-run` what it would take.

A plan is everything that is known before any model is there: the environment, the tasks, the settings, the prompts.
Making one finds whatever is wrong with them. The estimate is `ludus.reflact.cost_estimate`; here it is fed with what calls
took in an earlier run beside this one, or else with the sizes of prompts, tools and skill as far as they can be known
without running any.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.agent import Policy
from ludus.cli import Arguments
from ludus.cli.batches import out_of
from ludus.cli.skillopt import adapter_name, own_proposer
from ludus.cli.training import print_estimate
from ludus.config import Config, to_record
from ludus.config.build_agent import build_env, build_policy
from ludus.config.build_models import build_ledger, build_models
from ludus.config.build_tools import open_registry
from ludus.config.build_training import build_proposer, has_optimizer, train_settings
from ludus.config.tree import SameConfig, ServerConfig
from ludus.env import Env
from ludus.models.server import Price
from ludus.models.token_estimate import prompt_tokens, text_tokens
from ludus.reflact.cost_estimate import Assumed, Estimate, Sizes, estimate
from ludus.reflact.earlier_runs import Earlier, find
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.proposers import Proposer
from ludus.reflact.report.run_files import Head
from ludus.reflact.splits import Splits, load
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import check_fit, initial_skill
from ludus.skill import named
from ludus.tools.toolsets import make_tools
from ludus.types import Message, ToolSpec, to_json

_TURNS = 6
"""Replies that a rollout with tools is taken to have."""


@dataclass(frozen=True)
class Plan:
    """What a run is about: everything that is known before any model is there."""

    env: Env
    splits: Splits
    settings: TrainSettings
    proposer: Proposer
    prompts: Prompts

    @property
    def sizes(self) -> Sizes:
        """The tasks that are really used."""
        selection = self.splits.selection[: self.settings.selection_size or None]
        test = min(len(self.splits.test), self.settings.test_size or len(self.splits.test))
        return Sizes(len(self.splits.train), len(selection), test)


def planned(config: Config) -> Plan:
    """Read the data and the prompts; raises `ConfigError` if anything is wrong with them."""
    env = build_env(config)
    told = train_settings(config)
    splits = load(env, config.data)
    prompts = Prompts.load(Path(config.train.prompts) if config.train.prompts else None, env.name)
    proposer = own_proposer(env) or build_proposer(config.train)
    check_fit(told, splits, proposer, has_optimizer(config))
    return Plan(env, splits, told, proposer, prompts)


def content(plan: Plan, policy: Policy) -> dict[str, str]:
    """What the settings point at, as hashes. Raises `ConfigError` for a skill whose head is not in form."""
    return {
        "env": f"{plan.env.name} {plan.env.version}",
        "tasks": plan.splits.digest,
        "skill": initial_skill(policy).hash,
        "prompts": plan.prompts.digest,
        "proposer": plan.proposer.identity,
    }


def skill_head(env: Env) -> Head:
    """What the file of a trained skill says about it, where the skill had no head to begin with."""
    adapter = adapter_name(env)
    kind = adapter or env.name
    about = "" if adapter else (type(env).__doc__ or "").strip().partition("\n")[0]
    return Head(
        named(kind), f"What to know and do for {kind} tasks, learned by training on them. {about}".strip()[:1024]
    )


# ---- what it would take -------------------------------------------------------------------------------------------


async def dry_run(config: Config, plan: Plan, arguments: Arguments) -> int:
    """Print what the run would take. Nothing is started, and no model is asked."""
    async with open_registry(config.tools) as registry:
        agent, optimizer = build_models(config, build_ledger(config))
        try:
            policy = build_policy(config, plan.env, agent, registry)
        finally:
            await agent.close()
            if optimizer is not None and not isinstance(config.optimizer, SameConfig):
                await optimizer.close()
    sizes, before = plan.sizes, _earlier(config)
    assumed = _assumed(config, plan, policy, before)
    guess = _estimate(plan, assumed, before)
    prices = {role: guess.dollars(role, _price(config, role)) for role in ("agent", "optimizer")}
    if arguments.json:
        print(json.dumps(_machine_estimate(guess, sizes, assumed, before, prices)))
        return 0
    print(f"{sizes.train} train, {sizes.selection} selection and {sizes.test} test tasks; {guess.steps} steps\n")
    print_estimate(guess, prices)
    print("\ncalls are the agent's rollouts and the optimizer's replies. " + _grounds(guess, assumed, before))
    if not any(most for _, most in prices.values()):
        print("no money: set model.price and optimizer.price (dollars per million tokens) to see it.")
    return 0


def estimated(config: Config, plan: Plan, policy: Policy) -> Estimate:
    before = _earlier(config)
    return _estimate(plan, _assumed(config, plan, policy, before), before)


def _estimate(plan: Plan, assumed: Assumed, before: Earlier) -> Estimate:
    analysts = plan.proposer.needs_optimizer
    return estimate(plan.settings, plan.sizes, assumed, analysts=analysts, prompts=plan.prompts, earlier=before)


def _earlier(config: Config) -> Earlier:
    """The latest run like this one, among those beside it."""
    return find(out_of(config).parent, to_record(config))


def _grounds(guess: Estimate, assumed: Assumed, before: Earlier) -> str:
    """What the tokens rest on, in words."""
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


def _assumed(config: Config, plan: Plan, policy: Policy, before: Earlier) -> Assumed:
    """What can be said of the size of things without running any."""
    specs = _specs(plan.env, policy)
    system = (Message("system", policy.system_text(plan.env.system)),)
    own = policy.skill.text if policy.skill else ""
    openings = [prompt_tokens((*system, *plan.env.opening(task)), specs) for task in plan.splits.train[:20]]
    defaults = Assumed()
    return Assumed(
        failing=defaults.failing if before.failing is None else before.failing,
        turns=min(policy.limits.turns, _TURNS) if specs or policy.harness else 1,
        opening_tokens=max(0, sum(openings) // len(openings) - text_tokens(own)),
        reply_tokens=min(config.sampling.max_tokens or defaults.reply_tokens, defaults.reply_tokens),
        skill_tokens=text_tokens(own) + defaults.skill_tokens,
    )


def _specs(env: Env, policy: Policy) -> tuple[ToolSpec, ...]:
    """The tools that the agent will be offered, beside the environment's own, which need a slot."""
    nowhere: Any = object()  # tools are made, not run: none of them looks at its slot before
    names = env.toolsets if policy.toolsets is None else policy.toolsets
    return tuple(tool.spec for tool in make_tools(names, nowhere, policy.registry))


def _price(config: Config, role: str) -> Price:
    same = role == "agent" or isinstance(config.optimizer, SameConfig)
    model = config.model if same else config.optimizer
    return model.price if isinstance(model, ServerConfig) else Price()


def _machine_estimate(
    guess: Estimate, sizes: Sizes, assumed: Assumed, before: Earlier, prices: dict[str, tuple[float, float]]
) -> dict[str, Any]:
    totals = {
        role: {
            "calls": guess.calls(role)._asdict(),
            "tokens": guess.tokens(role)._asdict(),
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
