"""The plan of a training run: the environment, the tasks, the settings, the proposer and the prompts.

It is made of data and prompts, so that errors in them are found before a model is used.
"""

from dataclasses import dataclass

from ludus.env import Env
from ludus.policy import Policy
from ludus.reflact.gate import Rule
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.proposers import BringsProposer, Proposer
from ludus.reflact.report.run_files import SkillHead
from ludus.reflact.splits import Sizes, Splits, choose_selection
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.training_run import ClaimPlan, get_initial_skill
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
    claim: ClaimPlan | None = None
    """What the claim is compared with, without the other model, which is opened with the run."""

    @property
    def sizes(self) -> Sizes:
        """How many tasks the run uses."""
        test = min(len(self.splits.test), self.settings.test_size or len(self.splits.test))
        return Sizes(len(self.splits.train), len(self.selection), test)

    @property
    def split_sizes(self) -> Sizes:
        """How many tasks the splits have, used or not."""
        return Sizes(len(self.splits.train), len(self.splits.selection), len(self.splits.test))

    @property
    def selection(self) -> tuple[Task, ...]:
        """The selection tasks that are used."""
        return choose_selection(self.splits.selection, self.settings)


def find_own_proposer(env: Env) -> Proposer | None:
    """The proposer that an environment brings, if it brings one."""
    return env.make_proposer() if isinstance(env, BringsProposer) else None


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
    kind = env.title
    about = "" if kind != env.name else (type(env).__doc__ or "").strip().partition("\n")[0]
    return SkillHead(
        make_name(kind), f"What to know and do for {kind} tasks, learned by training on them. {about}".strip()[:1024]
    )
