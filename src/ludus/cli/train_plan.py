"""The plan of a training run: the environment, the tasks, the settings, the proposer and the prompts.

Making it reads the data and the prompts, so that errors in them are found before a model is used.
"""

from dataclasses import dataclass
from pathlib import Path

from ludus.agent import Policy
from ludus.cli.skillopt_runs import find_proposer, get_adapter_name
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.build_training import build_proposer, build_rule, build_train_settings, has_optimizer
from ludus.env import Env
from ludus.reflact.cost_estimate import Sizes
from ludus.reflact.gate import Rule
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.proposers import Proposer
from ludus.reflact.report.run_files import SkillHead
from ludus.reflact.splits import Splits, choose_selection, load_splits
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import check_fit, get_initial_skill
from ludus.skill import make_name
from ludus.types import Task


@dataclass(frozen=True)
class Plan:
    """Everything about a training run that is known without a model."""

    env: Env
    splits: Splits
    settings: TrainSettings
    proposer: Proposer
    prompts: Prompts
    rule: Rule | None = None
    """A gate rule of the user's own."""

    @property
    def sizes(self) -> Sizes:
        """How many tasks the run uses."""
        test = min(len(self.splits.test), self.settings.test_size or len(self.splits.test))
        return Sizes(len(self.splits.train), len(self.selection), test)

    @property
    def selection(self) -> tuple[Task, ...]:
        """The selection tasks that are used."""
        return choose_selection(self.splits.selection, self.settings)


def make_plan(config: Config) -> Plan:
    """Read the data and the prompts. Raises `ConfigError` if something is wrong with them."""
    env = build_env(config)
    settings = build_train_settings(config)
    splits = load_splits(env, config.data)
    prompts = Prompts.load(Path(config.train.prompts) if config.train.prompts else None, env.name)
    proposer = find_proposer(env) or build_proposer(config.train)
    check_fit(settings, splits, proposer, has_optimizer(config))
    return Plan(env, splits, settings, proposer, prompts, build_rule(config.train))


def hash_content(plan: Plan, policy: Policy) -> dict[str, str]:
    """Hashes of what the settings refer to. Raises `ConfigError` for a skill with invalid front matter."""
    return {
        "env": f"{plan.env.name} {plan.env.version}",
        "tasks": plan.splits.digest,
        "skill": get_initial_skill(policy).hash,
        "prompts": plan.prompts.compute_digest(plan.settings.recipe, plan.settings.support),
        "proposer": plan.proposer.identity,
    }


def make_skill_head(env: Env) -> SkillHead:
    """The name and description in the file of a trained skill, if the initial skill has none."""
    adapter = get_adapter_name(env)
    kind = adapter or env.name
    about = "" if adapter else (type(env).__doc__ or "").strip().partition("\n")[0]
    return SkillHead(
        make_name(kind), f"What to know and do for {kind} tasks, learned by training on them. {about}".strip()[:1024]
    )
