"""`ludus envs`: the environments that come with Ludus, with their tasks and options."""

import json
from typing import Any

import msgspec

from ludus.cli.command import JSON, Arguments, Command
from ludus.config.references import ENV, load_env_class
from ludus.config.settings_page import read_field_docs
from ludus.envs import BUILTIN

SPLITS = ("train", "validation", "test")
"""The splits whose tasks are counted."""


def run(arguments: Arguments) -> int:
    rows = [_describe_env(name) for name in BUILTIN]
    if arguments.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        tasks = ", ".join(f"{count} {split}" for split, count in row["tasks"].items() if count)
        where = "in a sandbox" if row["sandbox"] else "text only"
        print(f"{row['name']}  (version {row['version']}; {tasks}; {where})")
        print(f"    {row['description']}")
        for option, doc in row["options"].items():
            print(f"    --env.{option}  {doc}")
    if installed := [name for name in ENV.list_names() if name not in BUILTIN]:
        print(f"\ninstalled: {', '.join(installed)}")
    print("\nyour own: a file with a class derived from ludus.env.Env, as in: ludus validate my_env.py")
    return 0


def _describe_env(name: str) -> dict[str, Any]:
    kind = load_env_class(name)
    env, docs = kind(), read_field_docs(kind)
    return {
        "name": name,
        "version": kind.version,
        "description": (kind.__doc__ or "").strip().partition("\n")[0],
        "sandbox": kind.sandbox is not None,
        "toolsets": list(kind.toolsets),
        "tasks": {split: sum(1 for _ in env.tasks(split)) for split in SPLITS},
        "options": {f.name: docs.get(f.name, "") for f in msgspec.structs.fields(kind)},
    }


COMMAND = Command(run, "ludus envs", (JSON,))
