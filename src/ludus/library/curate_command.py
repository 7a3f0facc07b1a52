"""`ludus curate`: decide about the proposals for a library, and write the library that comes out.

Every decision is kept as soon as it is made. Nothing is written before a person asks for it: `--to DIR` writes a copy,
`--apply` changes the library's own folder and keeps a backup (`ludus.library.curation`).
"""

import getpass
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ludus.arguments import Arguments, make_argument
from ludus.command import JSON, RUN, Command
from ludus.command.terminal import make_console, print_notice
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.library.curation import (
    CurateAction,
    CurateDecision,
    apply_in_place,
    find_applied,
    keep_decision,
    list_accepted,
    list_edited,
    read_decisions,
    write_copy,
)
from ludus.library.library_table import print_change, read_report
from ludus.library.measurement import LibraryReport
from ludus.run_info import describe_kind, find_kind
from ludus.store import RunDir


class CurateArguments(Arguments):
    run: str
    list: bool
    accept: Sequence[str]
    reject: Sequence[str]
    reason: str
    who: str
    to: str
    apply: bool


def run(arguments: CurateArguments) -> int:
    path = Path(arguments.run)
    with RunDir.read(path) as directory:
        if (kind := find_kind(directory)) != "library":
            raise ConfigError(f"{path} is {describe_kind(kind)}: ludus curate decides about runs of ludus library")
    report = read_report(path)
    decisions = read_decisions(path, report)
    who = arguments.who or getpass.getuser()
    for decision in list_given(arguments, who):
        decisions[decision.change] = keep_decision(path, report, decision)
    is_direct = bool(arguments.accept or arguments.reject or arguments.list or arguments.to or arguments.apply)
    if not is_direct and not arguments.json:
        walk_proposals(path, report, decisions, who, _ask)
    written = _write(arguments, path, report, decisions)
    if arguments.json:
        print(_describe(arguments.run, report, decisions, written))
    elif arguments.list:
        _print_list(report, decisions)
    elif not written:
        _print_next(arguments.run, report, decisions)
    return 0


def list_given(arguments: CurateArguments, who: str) -> list[CurateDecision]:
    """The decisions that the arguments name."""
    twice = {*arguments.accept} & {*arguments.reject}
    if twice:
        raise ConfigError(f"curate: {sorted(twice)[0]} is given twice, to accept and to reject it")
    given: tuple[tuple[CurateAction, Sequence[str]], ...] = (("accept", arguments.accept), ("reject", arguments.reject))
    return [
        CurateDecision(change=id, action=action, reason=arguments.reason, who=who)
        for action, ids in given
        for id in ids
    ]


def walk_proposals(
    path: Path, report: LibraryReport, decisions: dict[str, CurateDecision], who: str, ask: Callable[[str], str]
) -> None:
    """Ask about each proposal that has no decision."""
    console = make_console()
    for change in report.changes:
        if change.id in decisions:
            continue
        print_change(console, change)
        key = ""
        while key not in ("a", "r", "s", "q"):
            key = ask("[a]ccept [r]eject [s]kip [q]uit > ")[:1].lower()
        if key == "q":
            return
        if key == "s":
            continue
        action: CurateAction = "accept" if key == "a" else "reject"
        reason = ask("reason > ") if action == "reject" else ""
        try:
            decision = CurateDecision(change=change.id, action=action, reason=reason, who=who)
            decisions[change.id] = keep_decision(path, report, decision)
        except ConfigError as error:
            print(error)


def _ask(prompt: str) -> str:
    """What the user types; `q` at the end of the input."""
    print(prompt, end="", flush=True)
    line = sys.stdin.readline()
    return line.strip() if line else "q"


def _write(arguments: CurateArguments, path: Path, report: LibraryReport, decisions: dict[str, CurateDecision]) -> str:
    """Write what was accepted, if that is asked for. Returns the folder that was written."""
    if not arguments.to and not arguments.apply:
        return ""
    if arguments.to and arguments.apply:
        raise ConfigError("--to writes a copy and --apply changes the library itself: name one of them")
    accepted = list_accepted(report, decisions)
    if not accepted:
        raise ConfigError(f"nothing was accepted: ludus curate {shlex.quote(arguments.run)} --accept ID")
    ids = ", ".join(change.id for change in accepted)
    if arguments.to:
        library = write_copy(report, accepted, Path(arguments.to).expanduser())
        print_notice(f"{arguments.to}: {len(library.packages)} skills, with {ids}")
        return arguments.to
    applied = find_applied(path, report, accepted)
    if applied is not None:
        print_notice(f"{applied.folder} has {ids} already; what was there before is in {applied.backup}")
        return applied.folder
    plan = apply_in_place(path, report, accepted)
    print_notice(f"{plan.folder} has {', '.join(plan.changes)}; what was there before is in {plan.backup}")
    for edited in list_edited(plan, report):
        print_notice(f"{edited} was changed after the measurement; that change is in the backup only")
    return plan.folder


def _describe(run: str, report: LibraryReport, decisions: dict[str, CurateDecision], written: str) -> str:
    undecided = [change.id for change in report.changes if change.id not in decisions]
    facts = {
        "run": run,
        "changes": report.changes,
        "decisions": decisions,
        "undecided": undecided,
        "proposed": report.proposed,
        "written": written,
    }
    return to_json(facts).decode()


def _print_list(report: LibraryReport, decisions: dict[str, CurateDecision]) -> None:
    console = make_console()
    for change in report.changes:
        made = decisions.get(change.id)
        print_change(console, change, f"{made.action} by {made.who}" if made else "undecided")
    if report.proposed is not None:
        print(report.proposed.sentence)


def _print_next(run: str, report: LibraryReport, decisions: dict[str, CurateDecision]) -> None:
    accepted, left = list_accepted(report, decisions), len(report.changes) - len(decisions)
    print(f"{len(accepted)} accepted, {len(decisions) - len(accepted)} rejected, {left} undecided; no file was changed")
    if accepted:
        print(
            f"  {shlex.join(['ludus', 'curate', run, '--to', 'skills-new'])}   writes a copy of the library with them"
        )
        print(f"  {shlex.join(['ludus', 'curate', run, '--apply'])}   changes {report.folder}, with a backup")


COMMAND = Command(
    run,
    "ludus curate runs/library                                  # decide about each proposal\n"
    "ludus curate runs/library --list --json\n"
    'ludus curate runs/library --accept C1 --accept C2 --reject C3 --reason "needed in spring"\n'
    "ludus curate runs/library --to skills-new                  # a copy with what was accepted\n"
    "ludus curate runs/library --apply                          # in place, with a backup",
    (
        RUN,
        make_argument("--list", action="store_true", help="print the proposals and what was decided"),
        make_argument("--accept", metavar="ID", action="append", default=[], help="accept a proposal; can be repeated"),
        make_argument("--reject", metavar="ID", action="append", default=[], help="reject one; needs --reason"),
        make_argument("--reason", metavar="TEXT", default="", help="why; it is kept with the decisions"),
        make_argument("--who", metavar="NAME", default="", help="who decides; default: the user"),
        make_argument("--to", metavar="DIR", default="", help="write a copy of the library with what was accepted"),
        make_argument(
            "--apply", action="store_true", help="change the library's own folder; what was there goes to a backup"
        ),
        JSON,
    ),
    CurateArguments,
)
