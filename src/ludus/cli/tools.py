"""`ludus tools`: the toolsets and distributions, those of the settings included.

The MCP servers of the settings are started to list their tools.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from ludus.arguments import Arguments
from ludus.command import CONFIG, JSON, NO_SLOT, Command
from ludus.config import load
from ludus.config.build_models import build_ledger, build_vision
from ludus.config.build_tools import open_registry
from ludus.tools.distributions import PUBLISHED
from ludus.tools.toolsets import Registry, Toolset


def run(arguments: Arguments) -> int:
    return asyncio.run(_list_tools(arguments))


async def _list_tools(arguments: Arguments) -> int:
    config = load([Path(path) for path in arguments.config], arguments.flags)
    async with open_registry(config.tools, build_vision(config, build_ledger(config))) as registry:
        toolsets = [_describe_toolset(registry, toolset) for toolset in registry.toolsets]
    own = config.tools.distributions
    distributions = {name: dict(distribution.percent) for name, distribution in PUBLISHED.items()} | own
    named = dict.fromkeys(toolset for percent in distributions.values() for toolset in percent)
    unusable = {toolset: why for toolset in named if (why := _explain_unusable(registry, toolset))}
    if arguments.json:
        print(json.dumps({"toolsets": toolsets, "distributions": distributions, "unusable": unusable}))
        return 0
    print("toolsets (--tools.enabled, --tools.disabled)")
    for row in toolsets:
        print(f"  {row['name']:<12} {row['description'].rstrip('.')}{_format_details(row)}")
    print("\ndistributions (--tools.distribution), in percent; toolsets in brackets cannot be sampled")
    for name, percent in distributions.items():
        entries = (
            f"[{toolset} {chance:g}]" if toolset in unusable else f"{toolset} {chance:g}"
            for toolset, chance in percent.items()
        )
        print(f"  {name:<14} {', '.join(entries)}")
    if unusable:
        print("\nin brackets: " + "; ".join(f"{toolset} ({why})" for toolset, why in unusable.items()))
    return 0


def _explain_unusable(registry: Registry, toolset: str) -> str:
    """Why a toolset of a distribution cannot be sampled; empty if it can."""
    return registry.find_missing(toolset) if toolset in registry else "Ludus does not have it"


def _describe_toolset(registry: Registry, toolset: Toolset) -> dict[str, Any]:
    specs = [tool.spec for tool in toolset.make(NO_SLOT)] if toolset.make else []
    return {
        "name": toolset.name,
        "description": toolset.description,
        "includes": list(toolset.includes),
        "tools": [{"name": spec.name, "description": spec.description} for spec in specs],
        "needs_sandbox": toolset.needs_box,
        "missing": registry.find_missing(toolset.name),
    }


def _format_details(row: dict[str, Any]) -> str:
    parts = [f": {', '.join(tool['name'] for tool in row['tools'])}" if row["tools"] else ""]
    if row["includes"]:
        parts.append(f" = {' + '.join(row['includes'])}")
    if row["missing"] and not row["includes"]:
        parts.append(f" ({row['missing']})")
    return "".join(parts)


COMMAND = Command(
    run,
    "ludus tools\nludus tools --tools.mcp.files.command '[my-mcp-server, --stdio]'",
    (CONFIG, JSON),
    uses=frozenset({"tools", "vision"}),
)
