"""The result of `ludus triggers` on a terminal."""

import shlex
from pathlib import Path

import msgspec

from ludus.command.terminal import make_console, make_table, make_text, shorten_middle
from ludus.errors import StoreError
from ludus.stats import Interval
from ludus.triggers.claims import TriggerClaim, TriggerOutcome
from ludus.triggers.controls import ControlReport
from ludus.triggers.trigger_stats import TriggerReport

REPORT = "triggers.json"
_FLAKY = 8
"""How many flaky queries are shown."""


def print_triggers(outcome: TriggerOutcome | None, out: Path) -> None:
    """Print the controls, the numbers of each skill, who is taken for whom, and the claim."""
    if outcome is None:
        return
    console = make_console()
    _print_controls(outcome.controls)
    _print_skills(outcome.report)
    _print_confusion(outcome.report)
    if outcome.claim is not None:
        if outcome.silence:
            words = (
                f"\nNo reply of the optimizer was usable, so nothing was learned. The first problem: {outcome.silence}"
            )
            console.print(make_text(words, "bold red"), soft_wrap=True)
        _print_claim(outcome.claim)
        if outcome.trained is not None:
            console.print(
                make_text(f"skills with their trained descriptions: {out / 'trained'}", "dim"), soft_wrap=True
            )
    look = f"ludus show {shlex.quote(str(out))} 'words of a query'"
    console.print(make_text(f"\n{out}\n  {look}   prints a transcript", "dim"), soft_wrap=True)


def show_triggers(path: Path, state: str = "", *, as_json: bool) -> None:
    """Print a run again. `state`: how it goes, if it is not finished."""
    try:
        data = (path / REPORT).read_bytes()
    except FileNotFoundError:
        now = f"not finished ({state})" if state else "not finished"
        raise StoreError(f"{path}: the run is {now}; ludus triggers --resume --out {path}") from None
    if as_json:
        print(data.decode())
    else:
        print_triggers(msgspec.json.decode(data, type=TriggerOutcome), path)


def _print_controls(controls: ControlReport) -> None:
    console = make_console()
    same = controls.same
    words = "the controls pass" if controls.works else "THE CONTROLS FAIL: the numbers below say nothing of the skills"
    console.print(make_text(words, "" if controls.works else "bold red"), soft_wrap=True)
    twice = f"{_points(same.difference)} {_band(same.interval)}" if same else "not known: one run per query only"
    for name, found in (
        ("a made-up skill that fits its requests", f"loaded in {_share(controls.winner)} of the runs"),
        ("one that is about something else", f"loaded in {_share(controls.loser)}"),
        ("your skills, measured twice", f"differ by {twice}"),
    ):
        console.print(make_text(f"  {name:<40}{found}", "dim"))
    for problem in controls.problems:
        console.print(make_text(f"  {problem}", "red"), soft_wrap=True)


def _print_skills(report: TriggerReport) -> None:
    console = make_console()
    interval = f" {_band(report.interval, share=True)}" if report.interval else ""
    lost = f"; {report.failed} rollouts have no verdict" if report.failed else ""
    console.print(
        make_text(
            f"\n{_share(report.accuracy)}{interval} of {report.queries} queries are routed right "
            f"({report.runs} runs{lost})"
        )
    )
    if report.unchecked:
        words = f"{report.unchecked} of the queries were proposed by a model or are of transcripts: no person has "
        console.print(make_text(f"{words}checked which skill is right for them", "yellow"), soft_wrap=True)
    table = make_table("skill", "queries", "recall", "loads", "precision")
    for each in report.skills:
        table.add_row(
            make_text(each.skill),
            str(each.queries),
            make_text(f"{_share(each.recall)} {_band(each.recall_interval, share=True)}".strip()),
            str(each.loads),
            make_text(f"{_share(each.precision)} {_band(each.precision_interval, share=True)}".strip()),
        )
    console.print(table)
    if report.flaky:
        count = "1 query is" if len(report.flaky) == 1 else f"{len(report.flaky)} queries are"
        console.print(make_text(f"{count} flaky: in some runs right, in others not", "dim"))
        for text in report.flaky_texts[:_FLAKY]:
            console.print(make_text(f"  {shorten_middle(' '.join(text.split()), console.width - 3)}", "dim"))
        if len(report.flaky_texts) > _FLAKY:
            console.print(make_text("  …", "dim"))


def _print_confusion(report: TriggerReport) -> None:
    """Who was loaded in place of whom; nothing if nobody was."""
    wrong = [
        (count, right, loaded)
        for right, row in report.confusion.items()
        for loaded, count in row.items()
        if loaded != right
    ]
    if not wrong:
        return
    table = make_table("right", "loaded instead", "runs")
    for count, right, loaded in sorted(wrong, key=lambda each: (-each[0], each[1:]))[:12]:
        table.add_row(make_text(right), make_text(loaded), str(count))
    make_console().print(table)


def _print_claim(claim: TriggerClaim) -> None:
    console = make_console()
    console.print(make_text(f"\n{claim.sentence}", "bold"), soft_wrap=True)
    if not claim.changes:
        return
    table = make_table("skill", "its queries", "recall before", "after", "precision before", "after")
    for each in claim.changes:
        paired = f"{_points(each.paired.difference)} {_band(each.paired.interval)}" if each.paired else ""
        before, after = each.before, each.after
        cells = (paired, _share(before.recall), _share(after.recall), _share(before.precision), _share(after.precision))
        table.add_row(make_text(each.skill), *map(make_text, cells))
    console.print(table)


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.0%}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f} points"


def _band(interval: Interval | None, *, share: bool = False) -> str:
    if interval is None:
        return ""
    if share:
        return f"[{interval.low:.0%}, {interval.high:.0%}]"
    return f"[{100 * interval.low:+.0f}, {100 * interval.high:+.0f}]"
