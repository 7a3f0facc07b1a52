"""The toolsets of Hermes, by its names."""

from dataclasses import dataclass, field
from typing import Any

from ludus.chat_form import write_tools
from ludus.errors import ConfigError, suggest
from ludus.tools.distributions import find_distribution, sample_toolsets
from ludus.tools.toolsets import Registry, choose_toolsets
from ludus.types import JsonObject

NAMES = {"code_execution": ("code",), "image": ("image_gen",), "safe": ("web", "vision", "image_gen")}
"""Toolsets of Hermes that are others here."""
ALL = ("all", "*")
ONLY_THERE = (
    *("clarify", "computer_use", "cronjob", "delegation", "discord", "discord_admin", "feishu_doc", "feishu_drive"),
    *("homeassistant", "kanban", "memory", "messaging", "rl", "session_search", "skills", "spotify", "tts", "video"),
    *("video_gen", "yuanbao"),
)
"""Toolsets of Hermes that rollouts do not have here, unless they are tools of the user's own (`tools.own`). So are
those of its platforms (`hermes-cli` …)."""
_PLATFORM = "hermes-"


@dataclass(frozen=True)
class ChosenTools:
    """The toolsets of a group."""

    toolsets: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    """Those that were asked for, or could have been sampled, and cannot be used."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What the user is told about them."""


def map_toolset(name: str) -> tuple[str, ...]:
    """The names of a toolset here. Hermes also has its older names (`terminal_tools`)."""
    short = name.removesuffix("_tools")
    return NAMES.get(name) or NAMES.get(short) or (short,)


def list_usable(registry: Registry) -> list[str]:
    """All leaf toolsets that can be used."""
    return [each.name for each in registry.toolsets if each.make is not None]


def choose_tools(config: Any, registry: Registry, seed: int) -> ChosenTools:
    """The toolsets of a group. One that is asked for by name and cannot be used is left out, with a note.

    Raises:
        ConfigError: a name is unknown, here and in Hermes, or a distribution has nothing to sample from.
    """
    disabled = [name for name in _map_all(config.disabled_toolsets or (), registry, "disabled") if name in registry]
    if config.distribution:
        return _sample_tools(config.distribution, disabled, registry, seed)
    enabled = config.enabled_toolsets
    if enabled is None or set(enabled) & set(ALL):
        return ChosenTools(choose_toolsets(list_usable(registry), disabled, registry=registry))
    names = _map_all(enabled, registry, "enabled")
    lacking = {name: "rollouts have no such tools here" for name in names if name not in registry}
    chosen = choose_toolsets([name for name in names if name in registry], disabled, registry=registry)
    lacking |= {name: registry.get(name).missing for name in chosen if registry.get(name).missing}
    notes = (f"env.enabled_toolsets: the toolset '{name}' is left out: {why}" for name, why in lacking.items())
    return ChosenTools(tuple(name for name in chosen if name not in lacking), tuple(lacking), tuple(notes))


def _sample_tools(distribution: str, disabled: list[str], registry: Registry, seed: int) -> ChosenTools:
    try:
        sampled = sample_toolsets(find_distribution(distribution, {}, registry), seed, registry, disabled)
    except ConfigError as error:
        raise ConfigError(f"env.{error}") from error
    return ChosenTools(choose_toolsets(sampled.toolsets, disabled, registry=registry), sampled.skipped)


def _map_all(names: Any, registry: Registry, setting: str) -> list[str]:
    """The names here of those in a setting. One that is unknown in both systems is an error."""
    found: list[str] = []
    for name in names:
        here = (name,) if name in registry else map_toolset(name)
        for each in here:
            if each not in registry and each not in ONLY_THERE and not each.startswith(_PLATFORM):
                known = suggest(name, [*registry.names, *ONLY_THERE])
                raise ConfigError(f"env.{setting}_toolsets: unknown toolset '{name}'; {known}")
        found += here
    return found


def list_schemas(registry: Registry, toolsets: tuple[str, ...]) -> list[JsonObject]:
    """The tools of toolsets in OpenAI's form. They are made without a slot, and so cannot be run."""
    nowhere: Any = object()
    specs = [tool.spec for tool in registry.make_tools(toolsets, nowhere)]
    return write_tools(specs)
