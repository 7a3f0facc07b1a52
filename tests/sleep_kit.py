"""Live skills and staged patches for tests of adoption, and a process that is killed at its n-th change of a disk."""

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.cli_kit import is_killed

from ludus.skill_folder import read_skill
from ludus.sleep import live_tree as trees
from ludus.sleep.adoption import NewFile
from ludus.sleep.live_tree import Tree, select_package
from ludus.sleep.night import NIGHT, PROPOSED, Night, Receipt, make_private, write_receipt, write_struct

CHANGES = {f"os.{name}" for name in ("rename", "mkdir", "remove", "rmdir", "chmod", "symlink", "truncate", "utime")}
"""Audit events of what a process does to a disk."""


def kill_at(number: int, do: Callable[[], object]) -> bool:
    """Run in a copy of this process, which is killed before its n-th change of the disk. Whether it was killed."""

    def run() -> None:
        count = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal count
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
            if writes or event in CHANGES:
                count += 1
                if count == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        do()

    return is_killed(run)


def write_live(folder: Path) -> Path:
    """A package with a script, modes of its own, and files that are no part of a package."""
    live = folder / "forms"
    (live / "scripts").mkdir(parents=True)
    (live / "references").mkdir()
    (live / ".git").mkdir()
    (live / "SKILL.md").write_text("---\nname: forms\ndescription: Fills forms.\n---\n\n# Forms\n\nFill every field.\n")
    (live / "scripts" / "fill.py").write_text("print('fill')\n")
    (live / "scripts" / "fill.py").chmod(0o750)
    (live / "references" / "old.md").write_text("Old.\n")
    (live / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (live / ".git" / "link").symlink_to("/etc/passwd")
    (live / "SKILL.md").chmod(0o640)
    live.chmod(0o751)
    return live


def read_whole(path: Path) -> Tree:
    with trees.open_parent(path) as parent:
        return trees.read_tree(parent, path.name)


def stage(night: Path, live: Path, files: Mapping[str, bytes], executable: frozenset[str] = frozenset()) -> Receipt:
    """A staged patch that leaves exactly these files."""
    base = select_package(read_whole(live))
    new = {path: NewFile(content, None, path in executable) for path, content in files.items()}
    for path, entry in base.items():
        if path in new and entry.mode & 0o100:
            new[path] = new[path]._replace(executable=True)
    make_private(night / PROPOSED)
    trees.write_files(night / PROPOSED, live.name, new, base)
    target = trees.describe_files(new, base)
    receipt = Receipt(
        night=night.parent.name,
        skill=night.name,
        live=str(live),
        base="base",
        proposal=read_skill(night / PROPOSED / live.name).hash,
        base_files=base,
        proposed_files=target,
        changes=tuple(trees.list_changes(base, target)),
        measured=True,
        claim="better",
    )
    if not (night.parent / NIGHT).exists():
        write_struct(night.parent / NIGHT, Night(name=night.parent.name, begun=0.0, status="staged"))
    write_receipt(night, receipt)
    return receipt


# ---- a team whose sessions are transcripts --------------------------------------------------------------------------

REPORTS = """---
name: reports
description: Answers questions about the state of orders.
---

# Reports

Say the number of the order and its state, in one line.
"""
LESSON = "End every answer with the line: Signed: Ops Team"
STATES = ("shipped", "packed", "lost", "returned", "paid", "open")

MODELS = '''
import json, re
from ludus.models.scripted import say

LESSON = "End every answer with the line: Signed: Ops Team"
STATES = ("shipped", "packed", "lost", "returned", "paid", "open")

def agent(messages, tools, sampling):
    """Knows the state of every order, and signs if its skill says so."""
    number = int(re.search(r"order (\\d+)", messages[-1].content)[1])
    signed = any(LESSON in message.content for message in messages if message.role == "system")
    return say(f"Order {number} is {STATES[number % 6]}." + ("\\nSigned: Ops Team" if signed else ""))

def optimizer(messages, tools, sampling):
    asked = messages[-1].content
    with open("asked.txt", "a") as file:
        file.write(f"#### {sampling.stage}\\n{asked}\\n")
    if sampling.stage == "checkers":
        number = re.search(r"order (\\d+)", asked.split("# What the user objected")[0])[1]
        checkers = [{"kind": "contains", "text": f"order {number} is {STATES[int(number) % 6]}"}]
        if "Signed: Ops Team" in asked.split("# The accepted answer")[1]:
            checkers.append({"kind": "regex", "text": "Signed: Ops Team$"})
        return say(json.dumps({"checkers": checkers + BAD_CHECKERS}))
    if sampling.stage == "analyst_lines":
        count = int(re.search(r"# Failed rollouts: (\\d+)", asked)[1])
        cause = "the signature is missing"
        rollouts = [{"rollout": n, "situations": [cause], "suspects": []} for n in range(1, count + 1)]
        items = [{"situation": cause, "content": LESSON, "rollouts": [1]}]
        known = LESSON in asked.split("# Lines that")[0]
        return say(json.dumps({"rollouts": rollouts, "items": [] if known else items}))
    if sampling.stage == "traces":
        return say(json.dumps({"edits": [{"op": "append", "content": EDIT, "sessions": [1, 2]}]}))
    return say("{}")

BAD_CHECKERS = []
EDIT = LESSON
'''


def answer(number: int, *, signed: bool = True) -> str:
    return f"Order {number} is {STATES[number % 6]}." + ("\nSigned: Ops Team" if signed else "")


def make_turns(number: int, *extra: tuple[str, str]) -> list[tuple[str, str]]:
    """A session: every second user has to ask for the signature."""
    turns = [("user", f"What is the state of order {number}?")]
    if number % 2:
        turns += [("assistant", answer(number, signed=False)), ("user", "No, please end with Signed: Ops Team")]
    return [*turns, ("assistant", answer(number)), ("user", "Thanks!"), *extra]


def write_openai(path: Path, sessions: Mapping[str, list[tuple[str, str]]], system: str = REPORTS) -> None:
    rows = [
        {
            "id": name,
            "messages": [
                {"role": "system", "content": system},
                *({"role": role, "content": text} for role, text in turns),
            ],
        }
        for name, turns in sessions.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_claude_code(path: Path, turns: list[tuple[str, str]], skill: str = "reports") -> None:
    """A session file of Claude Code, in which the agent calls the skill first."""
    common = {"sessionId": path.stem, "cwd": "/home/u/work", "version": "2.1.0", "timestamp": "2026-11-17T10:00:00Z"}
    lines: list[dict[str, object]] = []

    def add(kind: str, content: object) -> None:
        place = len(lines)
        parent = f"{path.stem}-{place - 1}" if place else None
        message = {"role": kind, "content": content}
        lines.append({**common, "type": kind, "uuid": f"{path.stem}-{place}", "parentUuid": parent, "message": message})

    for number, (role, text) in enumerate(turns):
        add(role, text if role == "user" else [{"type": "text", "text": text}])
        if number == 0:
            add("assistant", [{"type": "tool_use", "id": "t1", "name": "Skill", "input": {"skill": skill}}])
            add("user", [{"type": "tool_result", "tool_use_id": "t1", "content": f"Launching skill: {skill}"}])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_team(folder: Path, count: int = 24) -> Path:
    """Transcripts of a team, half of them of each form; and models in `models.py`."""
    work = folder / "work"
    work.mkdir()
    numbers = range(1000, 1000 + count)
    write_openai(work / "api.jsonl", {f"api-{n}": make_turns(n) for n in numbers if n % 4 < 2})
    for number in numbers:
        if number % 4 >= 2:
            write_claude_code(work / f"cc-{number}.jsonl", make_turns(number))
    (folder / "models.py").write_text(MODELS)
    (folder / "reports").mkdir()
    (folder / "reports" / "SKILL.md").write_text(REPORTS)
    return work
