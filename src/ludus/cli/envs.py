"""`ludus envs`: the environments that come with Ludus, with their tasks, facts and options.

With `--markdown` it prints the table of docs/environments.md. The table is the same on every machine: an environment
whose tasks come with the user's data or with an extra says so in words (`EnvFacts.tasks`). They are not counted.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ludus.arguments import Arguments, make_argument
from ludus.audit.audit_record import AuditRecord, read_packaged
from ludus.command import JSON, Command
from ludus.config.references import ENV, load_env_class
from ludus.config.settings_page import read_field_docs
from ludus.env import Env
from ludus.envs import BUILTIN

SPLITS = ("train", "validation", "test")
"""The splits whose tasks are counted."""


COLUMNS = ("environment", "tasks", "licence", "what runs where", "scored by", "extra", "speed", "audit")


class EnvsArguments(Arguments):
    markdown: bool


def run(arguments: EnvsArguments) -> int:
    audits = read_packaged()
    rows = [_describe_env(name, audits.get(name)) for name in BUILTIN]
    if arguments.json:
        print(json.dumps(rows))
        return 0
    if arguments.markdown:
        print(render_table(rows), end="")
        return 0
    for row in rows:
        print(f"{row['name']}  (version {row['version']}; {_describe_tasks(row)}; {_describe_place(row)})")
        print(f"    {row['description']}")
        for fact in ("scored", "licence", "extra", "speed"):
            if row["facts"][fact]:
                print(f"    {fact}: {row['facts'][fact]}")
        print(f"    audit: {row['audit']}")
        for option, doc in row["options"].items():
            print(f"    --env.{option}  {doc}")
    if installed := [name for name in ENV.list_names() if name not in BUILTIN]:
        print(f"\ninstalled: {', '.join(installed)}")
    print("\nyour own: ludus new env NAME, or a file with a class derived from ludus.env.Env: ludus validate my_env.py")
    return 0


def render_table(rows: Sequence[dict[str, Any]]) -> str:
    """The table of environments, in Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for row in rows:
        facts = row["facts"]
        what = row["description"].replace("|", "\\|")
        cells = (f"`{row['name']}`: {what}", _describe_tasks(row), facts["licence"], _describe_place(row))
        lines.append(f"| {' | '.join([*cells, facts['scored'], facts['extra'], facts['speed'], row['audit']])} |")
    return "\n".join(lines) + "\n"


def _describe_env(name: str, audit: AuditRecord | None) -> dict[str, Any]:
    kind = load_env_class(name)
    docs, env = read_field_docs(kind), kind()
    return {
        "name": name,
        "version": kind.version,
        "description": (kind.__doc__ or "").strip().partition("\n")[0],
        "sandbox": env.sandbox is not None,
        "toolsets": list(env.toolsets),
        "tasks": None if kind.facts.tasks else _count_tasks(env),
        "facts": msgspec.structs.asdict(kind.facts),
        "audit": _describe_audit(audit),
        "options": {f.name: docs.get(f.name, "") for f in msgspec.structs.fields(kind)},
    }


def _count_tasks(env: Env) -> dict[str, int]:
    return {split: sum(1 for _ in env.tasks(split)) for split in SPLITS}


def _describe_tasks(row: dict[str, Any]) -> str:
    if row["tasks"] is None:
        return row["facts"]["tasks"]
    return ", ".join(f"{count} {split}" for split, count in row["tasks"].items() if count)


def _describe_place(row: dict[str, Any]) -> str:
    return row["facts"]["runs"] or ("agent and verifier in slots" if row["sandbox"] else "text only, no slot")


def _describe_audit(record: AuditRecord | None) -> str:
    """What its last audit came to."""
    if record is None:
        return "not audited"
    paid = f"{len(record.paid)} of {record.attacks} attacks paid on {record.tasks} tasks"
    guess = f"; the best constant earns {record.guess:.2f}" if record.guess else ""
    return paid + (f" ({', '.join(record.paid)})" if record.paid else "") + guess


MARKDOWN = make_argument("--markdown", action="store_true", help="print the table of docs/environments.md")
COMMAND = Command(run, "ludus envs\nludus envs --markdown", (JSON, MARKDOWN), EnvsArguments)
