"""The toolsets of Hermes, by its names."""

from typing import Any

from ludus.errors import ConfigError
from ludus.tools.distributions import draw_toolsets, find_distribution
from ludus.tools.toolsets import Registry, choose_toolsets
from ludus.types import JsonObject

NAMES = {"code_execution": "code", "image_tools": "image_gen"}
"""Toolsets of Hermes that have another name here."""
ALL = ("all", "*")


def map_toolset(name: str) -> str:
    """The name of a toolset here. Hermes also has its older names (`terminal_tools`)."""
    return NAMES.get(name) or NAMES.get(name.removesuffix("_tools")) or name.removesuffix("_tools")


def list_usable(registry: Registry) -> list[str]:
    """All leaf toolsets that can be used."""
    return [each.name for each in registry.toolsets if each.make is not None]


def choose_tools(config: Any, registry: Registry, seed: int) -> tuple[str, ...]:
    """The toolsets of a group. A toolset that cannot be used is refused, unless it is disabled or only drawn."""
    disabled = [map_toolset(name) for name in config.disabled_toolsets or ()]
    known = [name for name in disabled if name in registry]
    if config.distribution:
        drawn = draw_toolsets(find_distribution(config.distribution, {}, registry), seed, registry, known)
        return choose_toolsets(drawn.toolsets, known, registry=registry)
    enabled = config.enabled_toolsets
    names = list_usable(registry) if enabled is None or set(enabled) & set(ALL) else [map_toolset(n) for n in enabled]
    chosen = choose_toolsets(names, known, registry=registry)
    try:
        registry.require_usable(chosen, slot=True)
    except ConfigError as error:
        raise ConfigError(f"env.enabled_toolsets: {error}") from error
    return chosen


def list_schemas(registry: Registry, toolsets: tuple[str, ...]) -> list[JsonObject]:
    """The tools of toolsets in OpenAI's form. They are made without a slot, and so cannot be run."""
    nowhere: Any = object()
    specs = [tool.spec for tool in registry.make_tools(toolsets, nowhere)]
    return [
        {
            "type": "function",
            "function": {"name": spec.name, "description": spec.description, "parameters": spec.parameters},
        }
        for spec in specs
    ]
