"""`ludus envs | tools | config | show`: what there is, and what a run left behind."""

import asyncio
import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ludus.batch import sample_rows, stored_groups
from ludus.cli import Arguments
from ludus.config import load
from ludus.config.build_tools import open_registry
from ludus.config.tree import CONTENT
from ludus.config.references import load_env_class
from ludus.config.settings_page import field_docs, reference
from ludus.env import Env
from ludus.envs import BUILTIN
from ludus.errors import ConfigError, StoreError, suggest
from ludus.show import print_groups, print_rollout, print_summary
from ludus.stats import summarize
from ludus.store import RunDir
from ludus.tools.distributions import PUBLISHED
from ludus.tools.toolsets import Registry, Toolset
from ludus.types import Group, Rollout, to_json

SPLITS = ("train", "validation", "test")
"""Whose tasks are counted in the list of environments."""


def run(arguments: Arguments) -> int:
    match arguments.command:
        case "envs":
            return envs(as_json=arguments.json)
        case "tools":
            return asyncio.run(tools(arguments))
        case "show":
            return show(Path(arguments.run), arguments.rollout, as_json=arguments.json)
        case _:
            print(reference(), end="")
            return 0


# ---- environments -------------------------------------------------------------------------------------------------


def envs(*, as_json: bool) -> int:
    rows = [_env_row(name) for name in BUILTIN]
    if as_json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        tasks = ", ".join(f"{count} {split}" for split, count in row["tasks"].items() if count)
        where = "in a sandbox" if row["sandbox"] else "text only"
        print(f"{row['name']}  (version {row['version']}; {tasks}; {where})")
        print(f"    {row['description']}")
        for option, doc in row["options"].items():
            print(f"    --env.{option}  {doc}")
    print("\nyour own: a file with a class derived from ludus.env.Env, as in: ludus validate my_env.py")
    return 0


def _env_row(name: str) -> dict[str, Any]:
    kind = load_env_class(name)
    env, docs = kind(), field_docs(kind)
    return {
        "name": name,
        "version": kind.version,
        "description": _first_line(kind),
        "sandbox": kind.sandbox is not None,
        "toolsets": list(kind.toolsets),
        "tasks": {split: sum(1 for _ in env.tasks(split)) for split in SPLITS},
        "options": {f.name: docs.get(f.name, "") for f in msgspec.structs.fields(kind)},
    }


def _first_line(kind: type[Env]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]


# ---- tools --------------------------------------------------------------------------------------------------------


async def tools(arguments: Arguments) -> int:
    """The toolsets, those of configured MCP servers included, which are started for it."""
    config = load([Path(path) for path in arguments.config], arguments.flags)
    async with open_registry(config.tools) as registry:
        toolsets = [_toolset_row(registry, toolset) for toolset in registry.toolsets]
    own = config.tools.distributions
    distributions = {name: dict(distribution.percent) for name, distribution in PUBLISHED.items()} | own
    if arguments.json:
        print(json.dumps({"toolsets": toolsets, "distributions": distributions}))
        return 0
    print("toolsets (--tools.enabled, --tools.disabled)")
    for row in toolsets:
        print(f"  {row['name']:<12} {row['description']}{_details(row)}")
    print("\ndistributions (--tools.distribution), in percent; toolsets that a run lacks are left out of the draw")
    for name, percent in distributions.items():
        print(f"  {name:<14} {', '.join(f'{toolset} {chance:g}' for toolset, chance in percent.items())}")
    return 0


def _toolset_row(registry: Registry, toolset: Toolset) -> dict[str, Any]:
    nowhere: Any = object()  # tools are made, not run: none of them looks at its slot before
    specs = [tool.spec for tool in toolset.make(nowhere)] if toolset.make else []
    return {
        "name": toolset.name,
        "description": toolset.description,
        "includes": list(toolset.includes),
        "tools": [{"name": spec.name, "description": spec.description} for spec in specs],
        "needs_sandbox": toolset.needs_box,
        "missing": registry.lacking(toolset.name),
    }


def _details(row: dict[str, Any]) -> str:
    parts = [f": {', '.join(tool['name'] for tool in row['tools'])}" if row["tools"] else ""]
    if row["includes"]:
        parts.append(f" = {' + '.join(row['includes'])}")
    if row["missing"] and not row["includes"]:
        parts.append(f" ({row['missing']})")
    return "".join(parts)


# ---- runs ---------------------------------------------------------------------------------------------------------


def show(path: Path, wanted: str | None, *, as_json: bool) -> int:
    with RunDir.read(path) as run:
        if CONTENT in run.config and wanted is None:
            from ludus.cli.training import show_training

            show_training(run, as_json=as_json)
            return 0
        size = run.config.get("env", {}).get("group_size", 1)
        groups = stored_groups(run, size)
    if wanted is not None:
        rollout = find_rollout(groups, wanted)
        _print_rollout(rollout, as_json=as_json)
        return 0
    summary = summarize(groups)
    if as_json:
        rows = [json.loads(to_json(row)) for index, group in enumerate(groups) for row in sample_rows(group, index)]
        print(json.dumps({"run": str(path), "summary": json.loads(to_json(summary)), "rollouts": rows}))
        return 0
    if not groups:
        print(f"{path}: no rollout has ended yet")
        return 0
    print_summary(summary)
    print()
    print_groups(groups)
    print(f"\none transcript: ludus show {shlex.quote(str(path))} TASK (or TASK#2 for its second rollout)")
    return 0


def _print_rollout(rollout: Rollout, *, as_json: bool) -> None:
    if not as_json:
        print_rollout(rollout)
        return
    (row,) = sample_rows(Group(task=rollout.task, rollouts=(rollout,), size=1))
    print(to_json(row).decode())


def find_rollout(groups: Sequence[Group], wanted: str) -> Rollout:
    """The rollout of `task` or `task#N`; the beginning of an id will do if it is the only one that begins so."""
    by_id: dict[str, list[Rollout]] = {}
    for group in groups:
        by_id.setdefault(group.task.id, []).extend(group.rollouts)
    for task, number in _readings(wanted):
        near = [task] if task in by_id else [id for id in by_id if id.startswith(task)]
        if len(near) == 1:
            rollouts = by_id[near[0]]
            if number <= len(rollouts):
                return rollouts[number - 1]
            raise ConfigError(f"task '{near[0]}' has {len(rollouts)} rollouts in this run, not {number}")
    if not by_id:
        raise StoreError("no rollout has ended in this run yet")
    raise ConfigError(f"no rollout of a task '{wanted}' in this run; {suggest(wanted, list(by_id))}")


def _readings(wanted: str) -> Iterable[tuple[str, int]]:
    """Ids may have a # of their own, so the whole text is tried first."""
    yield wanted, 1
    task, mark, number = wanted.rpartition("#")
    if mark and number.isdecimal() and int(number):
        yield task, int(number)
