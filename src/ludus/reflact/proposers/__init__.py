"""The seam between the loop and whoever has the ideas.

A `Proposer` reads the rollouts of a step and proposes changes. `Analysts`, the optimizer's language model in three
roles, is one; a proposer without any model is another. What it may see is a `View`: the current skill, the train
rollouts, what was tried before. The selection and test splits are not in it. Whatever it proposes is bounded by the
same budget, applied by the same code and judged by the same gate.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ludus.reflact.items import Item, described, merged_credit
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.records import Reflection
from ludus.reflact.train_settings import TrainSettings, UpdateMode
from ludus.skill import Skill
from ludus.types import Rollout


@dataclass(frozen=True)
class View:
    """What a proposer knows at one step."""

    settings: TrainSettings
    skill: Skill
    """The current one, which the rollouts were made with."""
    epoch: int
    step: int
    history: str
    """What was tried in this epoch, in words."""
    memory: str
    """What the optimizer wrote down for itself, in words."""
    system: str
    """What the agent is told besides the skill."""
    optimizer: Optimizer | None
    """None in a run without an optimizer's model."""
    place: int = 1
    """Of the step within its epoch, from 1."""

    def asked(self) -> Optimizer:
        """The optimizer, where there has to be one."""
        if self.optimizer is None:
            raise ValueError("this proposer needs an optimizer's model, and the run has none")
        return self.optimizer


class Proposer:
    """Base of proposers. `reflect` must be written; the others have an answer that needs no model."""

    name: ClassVar[str] = ""
    version: ClassVar[str] = "1"
    """Raise it when the same rollouts lead to other proposals."""
    modes: ClassVar[tuple[UpdateMode, ...]] = ("patch",)
    """The update modes it can propose items for."""
    needs_optimizer: ClassVar[bool] = False

    @property
    def identity(self) -> str:
        """Equal for proposers that propose alike. One that has options adds them."""
        return f"{self.name}@{self.version}"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        """What one batch teaches. The rollouts come in a fixed order, each as soon as it and those before it are done;
        one without a score broke, and says nothing."""
        raise NotImplementedError(f"{type(self).__name__} does not define reflect")

    async def aggregate(self, view: View, reflections: Sequence[Reflection]) -> tuple[Item, ...]:
        """One list of items out of those of all batches. By default: failures first, equal items once."""
        first = [r for r in reflections if r.source == "failure"] + [r for r in reflections if r.source != "failure"]
        return together([item for reflection in first for item in reflection.items])

    async def select(self, view: View, items: Sequence[Item], budget: int) -> tuple[int, ...]:
        """The places of at most `budget` items, in the order in which they are applied. Called when there are more
        items than that. By default: those with most support."""
        ranked = sorted(range(len(items)), key=lambda place: -items[place].support)
        return tuple(ranked[:budget])


def together(items: Sequence[Item]) -> tuple[Item, ...]:
    """Items that say the same become one, with the evidence of all."""
    kept: dict[str, list[Item]] = {}
    for item in items:
        kept.setdefault(described(item), []).append(item)
    return tuple(same[0] if len(same) == 1 else merged_credit(same[0], same, same[0].level) for same in kept.values())
