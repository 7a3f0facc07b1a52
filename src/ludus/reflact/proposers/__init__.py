"""Proposers: where the changes to a skill come from.

A `Proposer` reads the rollouts of a step and proposes changes. `Analysts` asks the optimizer's model; `Exemplars` uses
no model. A proposer gets a `View`: the current skill, and what was tried before. It never sees the selection and test
splits. All proposals are limited by the same budget, applied by the same code and judged by the same gate.

To write your own, subclass `Proposer` and define `name` and `reflect`:

    class Reminder(Proposer):
        name = "reminder"

        async def reflect(self, view, batch, rollouts):
            failed = [rollout.task.id async for rollout in rollouts if rollout.score and not rollout.score.passed]
            edit = credit_item(Edit("append", "Check your answer twice."), "failure", failed)
            return (Reflection("failure", tuple(failed), (edit,)),) if failed else ()
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from ludus.errors import ConfigError
from ludus.reflact.items import Item, credit_merged, describe_item
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
    """The current skill. The rollouts were made with it."""
    epoch: int
    step: int
    history: str
    """What was tried in this epoch, as text."""
    memory: str
    """The optimizer's memory, as text."""
    system: str
    """The agent's system text without the skill."""
    optimizer: Optimizer | None
    """None if the run has no optimizer model."""
    place: int = 1
    """The number of the step within its epoch, from 1."""
    is_package: bool = False
    """Whether the skill is a package, so that proposals may have a `path`."""

    def require_optimizer(self) -> Optimizer:
        """The optimizer. Raises `ConfigError` if the run has none."""
        if self.optimizer is None:
            raise ConfigError(
                "train.proposer: the proposer asks for the optimizer's model, and the run has none; set "
                "`needs_optimizer = True` in the proposer's class, or name a model in optimizer.type"
            )
        return self.optimizer


class Proposer:
    """Base class of proposers. A subclass defines `reflect`. The defaults of the other methods need no model."""

    name: ClassVar[str] = ""
    """The name in records and errors."""
    version: ClassVar[str] = "1"
    """Increase it when the same rollouts lead to different proposals."""
    modes: ClassVar[tuple[UpdateMode, ...]] = ("patch",)
    """The update modes it can propose items for."""
    needs_optimizer: ClassVar[bool] = False
    """Whether it asks the optimizer's model (`View.require_optimizer`)."""
    simulated: ClassVar[bool] = False
    """Whether a simulated optimizer answers its requests (`reflact.stand_ins`), so that estimates call it."""

    own_prompts: ClassVar[tuple[str, ...]] = ()
    """The prompts that only it uses. They are part of the identity of its runs."""
    names_causes: ClassVar[bool] = False
    """Whether the recipe `ledger` asks analysts for the causes of failures instead of this proposer. With any other
    proposer, outcomes alone speak for and against its items."""
    patterns_are_causes: ClassVar[bool] = False
    """Whether the patterns of its reflections are the causes of the failures that they list, and its items are about
    the pattern of their reflection. With the recipe `ledger` items about one pattern compete."""

    @property
    def identity(self) -> str:
        """Equal for proposers that make equal proposals. It is part of the run's identity: add your options to it."""
        return f"{self.name}@{self.version}"

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        """Propose changes from the rollouts of one batch. They come in a fixed order, each when it and all before it
        have ended. Skip a rollout without a score: it failed for reasons outside the agent."""
        raise NotImplementedError(f"{type(self).__name__} does not define reflect")

    async def aggregate(self, view: View, reflections: Sequence[Reflection]) -> tuple[Item, ...]:
        """Make one list of the items of all batches. By default: those from failures first, equal items merged."""
        first = [r for r in reflections if r.source == "failure"] + [r for r in reflections if r.source != "failure"]
        return merge_equal_items([item for reflection in first for item in reflection.items])

    async def select(self, view: View, items: Sequence[Item], budget: int) -> tuple[int, ...]:
        """The indices of at most `budget` items, in the order in which they are applied. Called if there are more items
        than that. By default: the items with the most support."""
        ranked = sorted(range(len(items)), key=lambda place: -items[place].support)
        return tuple(ranked[:budget])


def check_result(proposer: Proposer, method: str, result: Any, kind: Any, words: str) -> tuple[Any, ...]:
    """What a proposer's method returned, as a tuple of `kind`. Proposers are often foreign code.

    Raises:
        ConfigError: it is something else; `words` say what was expected.
    """
    where = f"train.proposer: {type(proposer).__name__}.{method} returned"
    if type(result) not in (list, tuple):
        raise ConfigError(f"{where} {type(result).__name__}, not a tuple of {words}")
    entries: tuple[Any, ...] = tuple(result)
    for entry in entries:
        if not isinstance(entry, kind):
            raise ConfigError(f"{where} a sequence with {type(entry).__name__}, not a tuple of {words}")
    return entries


def merge_equal_items(items: Sequence[Item]) -> tuple[Item, ...]:
    """Merge items with equal content into one, with the evidence of all of them."""
    kept: dict[str, list[Item]] = {}
    for item in items:
        kept.setdefault(describe_item(item), []).append(item)
    return tuple(same[0] if len(same) == 1 else credit_merged(same[0], same, same[0].level) for same in kept.values())


@runtime_checkable
class BringsProposer(Protocol):
    """An environment that brings a proposer, in place of the one that the settings name."""

    def make_proposer(self) -> Proposer | None:
        """None: it has none after all."""
        ...
