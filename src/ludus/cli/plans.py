"""What `ludus train` is about to do: its plan, and with `--dry-run` what it would take.

A plan is everything that is known before any model is there: the environment, the tasks, the settings, the prompts.
Making one finds whatever is wrong with them. The estimate is `ludus.reflact.estimate`; here it is fed with the sizes of
prompts, tools and skill as far as they can be known without running any.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.agent import Policy
from ludus.cli import Arguments
from ludus.cli.skillopt import own_proposer
from ludus.cli.training import print_estimate
from ludus.config import Config
from ludus.config.build import (
    build_env,
    build_ledger,
    build_models,
    build_policy,
    build_proposer,
    has_optimizer,
    open_registry,
    train_settings,
)
from ludus.config.recipes import SameConfig, ServerConfig
from ludus.env import Env
from ludus.models.estimate import prompt_tokens, text_tokens
from ludus.models.server import Price
from ludus.reflact.data import Splits, load
from ludus.reflact.estimate import Assumed, Estimate, Sizes, estimate
from ludus.reflact.proposer import Proposer
from ludus.reflact.run import check_fit, initial_skill
from ludus.reflact.settings import TrainSettings
from ludus.reflact.templates import Prompts
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
    prompts = Prompts.load(Path(config.train.prompts) if config.train.prompts else None)
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
    guess, sizes = estimated(config, plan, policy), plan.sizes
    prices = {role: guess.dollars(role, _price(config, role)) for role in ("agent", "optimizer")}
    assumed = _assumed(config, plan, policy)
    if arguments.json:
        print(json.dumps(_machine_estimate(guess, sizes, assumed, prices)))
        return 0
    print(f"{sizes.train} train, {sizes.selection} selection and {sizes.test} test tasks; {guess.steps} steps\n")
    print_estimate(guess, prices)
    print(
        "\ncalls are the agent's rollouts and the optimizer's replies. "
        f"Assumed: turns per rollout {assumed.turns}, tokens per turn {assumed.reply_tokens}, in the first prompt "
        f"{assumed.opening_tokens}, in the skill {assumed.skill_tokens}; half of the rollouts fail."
    )
    if not any(most for _, most in prices.values()):
        print("no money: set model.price and optimizer.price (dollars per million tokens) to see it.")
    return 0


def estimated(config: Config, plan: Plan, policy: Policy) -> Estimate:
    assumed = _assumed(config, plan, policy)
    analysts = plan.proposer.needs_optimizer
    return estimate(plan.settings, plan.sizes, assumed, analysts=analysts, prompts=plan.prompts)


def _assumed(config: Config, plan: Plan, policy: Policy) -> Assumed:
    """What can be said of the size of things without running any."""
    specs = _specs(plan.env, policy)
    system = (Message("system", policy.system_text(plan.env.system)),)
    own = policy.skill.text if policy.skill else ""
    openings = [prompt_tokens((*system, *plan.env.opening(task)), specs) for task in plan.splits.train[:20]]
    defaults = Assumed()
    return Assumed(
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
    guess: Estimate, sizes: Sizes, assumed: Assumed, prices: dict[str, tuple[float, float]]
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
        {"role": line.role, "stage": line.stage, "calls": line.calls._asdict(), "each": json.loads(to_json(line.each))}
        for line in guess.lines
    ]
    plain = {"sizes": sizes, "assumed": assumed}
    return {"steps": guess.steps, "totals": totals, "lines": lines, **json.loads(to_json(plain))}
