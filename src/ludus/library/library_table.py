"""The result of `ludus library` on a terminal."""

import shlex
from pathlib import Path

import msgspec
from rich.console import Console

from ludus.command.terminal import make_console, make_table, make_text
from ludus.errors import StoreError
from ludus.library.line_evidence import NOT_MEASURED, PassageEvidence
from ludus.library.measurement import LibraryReport
from ludus.library.proposals import LibraryChange
from ludus.library.worth import SkillWorth, format_band

REPORT = "library.json"
_COLOURS = {"helps": "green", "hurts": "red", "below its price": "yellow", "never loads": "yellow"}
_SHOWN = 100
"""The characters of a passage that are shown; the report has all of it."""


def read_report(path: Path, state: str = "") -> LibraryReport:
    """The report of a run.

    Raises:
        StoreError: the run has not finished. `state`: how it goes.
    """
    try:
        return msgspec.json.decode((path / REPORT).read_bytes(), type=LibraryReport)
    except FileNotFoundError:
        now = f"not finished ({state})" if state else "not finished"
        raise StoreError(f"{path}: the run is {now}; ludus library --resume --out {path}") from None
    except msgspec.DecodeError as error:
        raise StoreError(f"{path / REPORT} cannot be read: {error}") from None


def show_library(path: Path, state: str = "", *, as_json: bool) -> None:
    """Print a run again."""
    report = read_report(path, state)
    if as_json:
        print((path / REPORT).read_text("utf-8"))
    else:
        print_library(report, path)


def print_library(report: LibraryReport | None, out: Path) -> None:
    """Print what each skill is worth, which are alike, their lines, and the proposals."""
    if report is None:
        return
    console = make_console()
    mean = "no score" if report.mean is None else f"mean {report.mean:.3f}"
    lost = f", {report.failed} without a score" if report.failed else ""
    console.print(make_text(f"{len(report.skills)} skills, {report.tasks} tasks, {mean}{lost}", "bold"))
    _print_skills(console, report.skills)
    for group in report.groups:
        console.print(make_text(f"alike: {group.sentence}"), soft_wrap=True)
    for warning in report.warnings:
        console.print(make_text(warning, "red"), soft_wrap=True)
    _print_lines(console, report.lines)
    console.print(make_text(f"\n{report.summary}", "bold"), soft_wrap=True)
    _print_changes(console, report, out)


def _print_skills(console: Console, skills: tuple[SkillWorth, ...]) -> None:
    table = make_table("skill", "loads", "tasks", "worth in points", "tokens", "verdict")
    for each in skills:
        worth = each.worth
        points = (
            ""
            if worth is None or worth.difference is None
            else f"{100 * worth.difference:+.1f} {format_band(worth.interval)}"
        )
        unknown = f" ({each.unknown} unknown)" if each.unknown else ""
        tokens = f"{each.description_tokens}" + (f" + {each.read_tokens:.0f}" if each.read_tokens is not None else "")
        table.add_row(
            make_text(each.name),
            make_text(f"{each.loads} of {each.rollouts}{unknown}"),
            str(worth.tasks if worth else 0),
            make_text(points),
            make_text(tokens),
            make_text(each.verdict, _COLOURS.get(each.verdict, "")),
        )
    console.print(table)
    console.print(make_text("tokens: of the description in every request + of what is read when it is loaded", "dim"))


def _print_lines(console: Console, lines: tuple[PassageEvidence, ...]) -> None:
    if not lines:
        return
    unmeasured = sum(line.verdict == NOT_MEASURED for line in lines)
    if unmeasured:
        how = "" if unmeasured < len(lines) else ": --library.lines N measures them, --library.evidence RUN reads a run"
        console.print(make_text(f"passages: {unmeasured} of {len(lines)} are not measured{how}", "dim"), soft_wrap=True)
    for line in lines:
        if line.verdict in ("hurts", "small", "helps"):
            text = " ".join(line.text.split())
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            kinds = f" on {', '.join(line.kinds)}" if line.kinds else ""
            console.print(
                make_text(f"  {line.skill} {line.id} {line.verdict}{kinds}: {shown}", _COLOURS.get(line.verdict, "")),
                soft_wrap=True,
            )


def print_change(console: Console, change: LibraryChange, decided: str = "") -> None:
    """A proposal with its reason, and what was decided about it."""
    said = f"  [{decided}]" if decided else ""
    console.print(make_text(f"{change.id}  {change.action} {', '.join(change.skills)}{said}", "bold"), soft_wrap=True)
    console.print(make_text(f"    {change.reason}"), soft_wrap=True)
    if change.written:
        console.print(make_text(f"    writes {', '.join(p.name for p in change.written)}", "dim"), soft_wrap=True)
    if change.removed:
        console.print(make_text(f"    removes {', '.join(change.removed)}", "dim"), soft_wrap=True)


def _print_changes(console: Console, report: LibraryReport, out: Path) -> None:
    if not report.changes:
        console.print(make_text("nothing is proposed"))
        return
    for change in report.changes:
        print_change(console, change)
    if report.proposed is not None:
        console.print(make_text(report.proposed.sentence, "bold"), soft_wrap=True)
    console.print(make_text(f"\n{out}   ludus curate {shlex.quote(str(out))} decides about each; nothing was changed"))
