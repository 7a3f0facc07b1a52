"""Random samples of toolsets, so that an agent learns to work with different tools.

A distribution gives every toolset a percentage. A sample takes each toolset independently with that chance. It is never
empty: if no toolset was sampled, it is the one with the highest chance. There is one sample per group, so that the
rollouts of a group are comparable. The same seed gives the same sample in every process.

`PUBLISHED` has the distributions of the Hermes agent's data generation, with their names and percentages. They also
name toolsets that Ludus does not have. A sample skips the toolsets that the run does not have and lists them. The
random number of a toolset is sampled even if the run does not have it, so one more toolset does not change the samples
of the others.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ludus.errors import ConfigError, suggest
from ludus.tools.toolsets import BUILTIN, Registry

_EVERYTHING = ("web", "vision", "image_gen", "terminal", "file", "moa", "browser")


@dataclass(frozen=True)
class Distribution:
    """Toolsets and the chance, in percent, that each is part of a sample."""

    name: str
    percent: tuple[tuple[str, float], ...]

    def __post_init__(self) -> None:
        for toolset, percent in self.percent:
            if not 0 <= percent <= 100:
                raise ConfigError(f"distribution '{self.name}': {toolset} is {percent}; give a percentage of 0 to 100")
        if not any(percent for _, percent in self.percent):
            raise ConfigError(f"distribution '{self.name}': every toolset is at 0 percent; nothing can be sampled")


@dataclass(frozen=True)
class ToolsetSample:
    """The result of a sample."""

    toolsets: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    """Toolsets of the distribution that the run does not have, or has disabled."""


def _make_distributions(**distributions: Mapping[str, float]) -> Mapping[str, Distribution]:
    return MappingProxyType(
        {name: Distribution(name, tuple(percent.items())) for name, percent in distributions.items()}
    )


PUBLISHED = _make_distributions(
    default=dict.fromkeys(_EVERYTHING, 100),
    image_gen={"image_gen": 90, "vision": 90, "web": 55, "terminal": 45, "moa": 10},
    research={"web": 90, "browser": 70, "vision": 50, "moa": 40, "terminal": 10},
    science={"web": 94, "terminal": 94, "file": 94, "vision": 65, "browser": 50, "image_gen": 15, "moa": 10},
    development={"terminal": 80, "file": 80, "moa": 60, "web": 30, "vision": 10},
    safe={"web": 80, "browser": 70, "vision": 60, "image_gen": 60, "moa": 50},
    balanced=dict.fromkeys(_EVERYTHING, 50),
    minimal={"web": 100},
    terminal_only={"terminal": 100, "file": 100},
    terminal_web={"terminal": 100, "file": 100, "web": 100},
    creative={"image_gen": 90, "vision": 90, "web": 30},
    reasoning={"moa": 90, "web": 30, "terminal": 20},
    browser_use={"browser": 100, "web": 80, "vision": 70},
    browser_only={"browser": 100},
    browser_tasks={"browser": 97, "vision": 12, "terminal": 15},
    terminal_tasks={"terminal": 97, "file": 97, "web": 97, "browser": 75, "vision": 50, "image_gen": 10},
    mixed_tasks={"browser": 92, "terminal": 92, "file": 92, "web": 35, "vision": 15, "image_gen": 15},
)


def find_distribution(
    name: str, own: Mapping[str, Mapping[str, float]] | None = None, registry: Registry = BUILTIN
) -> Distribution:
    """A distribution by name: one of the user's own (toolset → percent), or a published one.

    Raises:
        ConfigError: the name is unknown, or one of the user's own names an unknown toolset.
    """
    own = own or {}
    if name in own:
        for toolset in own[name]:
            registry.get(toolset)
        return Distribution(name, tuple(own[name].items()))
    if name not in PUBLISHED:
        raise ConfigError(f"distribution: unknown distribution '{name}'; {suggest(name, [*own, *PUBLISHED])}")
    return PUBLISHED[name]


def sample_toolsets(
    distribution: Distribution, seed: int, registry: Registry = BUILTIN, disabled: Sequence[str] = ()
) -> ToolsetSample:
    """Sample toolsets from those that the run has and has not disabled."""
    usable = list_possible(distribution, registry, disabled)
    chance = random.Random(seed)
    rolls = [(toolset, percent, chance.random() * 100) for toolset, percent in distribution.percent]
    sampled = tuple(toolset for toolset, percent, roll in rolls if roll < percent and toolset in usable)
    skipped = tuple(toolset for toolset, _, _ in rolls if toolset not in usable)
    return ToolsetSample(
        sampled or (max(usable, key=lambda toolset: usable[toolset]),), skipped
    )  # the first one of equals


def list_possible(
    distribution: Distribution, registry: Registry = BUILTIN, disabled: Sequence[str] = ()
) -> Mapping[str, float]:
    """The toolsets that can be sampled, and their percentages, of which one at least is above 0. Raises ConfigError."""
    off = frozenset(leaf.name for leaf in registry.list_leaves(disabled))
    usable = {toolset: percent for toolset, percent in distribution.percent if _is_usable(toolset, registry, off)}
    if any(usable.values()):
        return usable
    names = ", ".join(toolset for toolset, _ in distribution.percent)
    raise ConfigError(
        f"distribution '{distribution.name}': this run has none of its toolsets ({names}); "
        "configure one of them or choose another distribution"
    )


def _is_usable(toolset: str, registry: Registry, off: frozenset[str]) -> bool:
    if toolset not in registry or registry.find_missing(toolset):
        return False
    return any(leaf.name not in off for leaf in registry.list_leaves([toolset]))
