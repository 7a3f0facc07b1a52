"""A batch on a terminal: its progress while it runs, then its numbers and its groups as tables."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TextIO

from ludus.command.rollout_text import format_verdict
from ludus.command.terminal import (
    LiveLine,
    format_count,
    format_duration,
    format_money,
    format_number,
    make_console,
    make_facts_table,
    make_table,
    make_text,
    shorten_middle,
)
from ludus.stats import (
    FailureLedger,
    JudgeAgreement,
    RunSummary,
    ScoreStats,
    Spread,
    compute_mean_with_zeros,
    describe_loads,
    warn_of_exclusions,
)
from ludus.types import Group, Rollout, Usage

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console
    from rich.text import Text

    from ludus.batch import BatchProgress
    from ludus.control import RunControl


class ProgressBar(LiveLine):
    """A line with the progress of a batch. Call it with each rollout and its progress, as `on_rollout` does."""

    def __init__(
        self,
        title: str = "rollouts",
        *,
        file: TextIO | None = None,
        every: float = 0.1,
        control: "RunControl | None" = None,
    ) -> None:
        super().__init__(title, file, every=every, control=control)

    def __call__(self, rollout: Rollout, progress: "BatchProgress") -> None:
        self.update(progress)

    def update(self, progress: "BatchProgress") -> None:
        self.draw(progress.done, progress.total, describe_progress(progress))


def describe_progress(progress: "BatchProgress") -> str:
    """The progress in a few words."""
    parts = [f"mean {progress.mean:.3f}" if progress.mean is not None else "no score yet"]
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    parts.append(f"{format_count(progress.usage.tokens)} tokens")
    if progress.usage.dollars:
        parts.append(format_money(progress.usage.dollars))
    return " · ".join(parts)


def print_summary(summary: RunSummary, console: "Console | None" = None, *, spent: Usage | None = None) -> None:
    """Print the numbers of a run as a table. `spent` is what the ledger has booked, which includes attempts that were
    repeated; without it, the usage of the recorded attempts is shown."""
    console = console or make_console()
    table = make_facts_table()
    for name, value in _list_numbers(summary, spent if spent and spent.tokens else summary.usage):
        table.add_row(name, make_text(value))
    console.print(table)
    if summary.kinds:
        kinds = make_table("kind", "tasks", "rollouts", "mean", "95 %", "pass@1", whole=(1, 2, 4, 5))
        for kind, stats in summary.kinds.items():
            first = format_number(stats.pass_at[0].value) if stats.pass_at else "none"
            counts = (str(stats.tasks), str(stats.rollouts))
            mean = _format_mean(stats)
            if stats.mean_with_zeros is not None:
                mean += f" ({format_number(stats.mean_with_zeros)} with zeros)"
            if stats.suspects:
                mean += f" ({format_without_suspects(stats)})"
            kinds.add_row(make_text(kind or "(none)"), *counts, mean, _format_interval(stats), first)
        console.print()
        console.print(kinds)
    if warning := warn_of_exclusions(summary.overall.excluded, summary.overall.rollouts):
        console.print()
        console.print(make_text(f"warning: {warning}", "yellow"), soft_wrap=True)


def _list_numbers(summary: RunSummary, usage: Usage) -> list[tuple[str, str]]:
    """The rows of the table: name and value."""
    overall = summary.overall
    failed = overall.excluded
    failures, loads = summary.failures, summary.skill_loads
    causes = ", ".join(f"{cause} {count}" for cause, count in failures.causes.items())
    errors = ", ".join(f"{use.tool} {use.errors}" for use in summary.tools if use.errors)
    rows = [
        ("mean score", f"{_format_mean(overall)}  {_format_interval(overall)}".rstrip()),
        ("bounds", _format_bounds(failures)),
        ("suspects", f"{overall.suspects} rollouts; {format_without_suspects(overall)}" if overall.suspects else ""),
        *((f"pass@{p.k}", format_number(p.value)) for p in overall.pass_at),
        ("tasks", f"{overall.tasks}" + (f", {summary.partial} partial" if summary.partial else "")),
        ("rollouts", f"{overall.rollouts}" + (f", {failed} without a score ({causes})" if failed else "")),
        ("broken by agents", f"{failures.broken} rollouts, which count as 0" if failures.broken else ""),
        *(("failed with", reason) for reason in summary.reasons),
        ("ended as", ", ".join(f"{stop} {count}" for stop, count in summary.stops.items())),
        ("skill loaded", describe_loads(loads) if loads else ""),
        ("its files", _format_counts(loads.files) if loads else ""),
        ("its scripts run", _format_counts(loads.scripts) if loads else ""),
        *((f"{name} loaded", describe_loads(each)) for name, each in (summary.library_loads or {}).items()),
        ("tool calls", f"{sum(use.calls for use in summary.tools)}, {summary.tool_errors} errors"),
        ("errors by tool", errors),
        ("tokens", f"{format_count(usage.prompt_tokens)} in, {format_count(usage.completion_tokens)} out"),
        ("cost", format_money(usage.dollars) if usage.dollars else ""),
        ("judges agree", _format_agreement(summary.agreement)),
        ("turns", _format_spread(summary.turns, format_number)),
        ("time per rollout", _format_spread(summary.seconds, format_duration)),
    ]
    return [(name, value) for name, value in rows if value]


def print_groups(groups: Iterable[Group], console: "Console | None" = None) -> None:
    """Print a line for each group: the task, its scores, and the beginning of the prompt."""
    console = console or make_console()
    rows = [_describe_group(group) for group in groups]
    names = ("task", "kind", "mean", "scores", "prompt")
    widths = [max((row[i].cell_len for row in rows), default=0) for i in range(4)]
    shown = [i for i in range(4) if widths[i]]
    room = console.width - sum(max(widths[i], len(names[i])) + 2 for i in shown)
    if room >= 12:
        shown.append(4)
    table = make_table(*(names[i] for i in shown))
    for row in rows:
        row[4].truncate(max(0, room), overflow="ellipsis")
        table.add_row(*(row[i] for i in shown))
    console.print(table)


def _describe_group(group: Group) -> "tuple[Text, Text, Text, Text, Text]":
    """The cells of a group: task, kind, mean, scores, prompt."""
    values = [r.score.value for r in group.scored if r.score]
    mean = format_number(sum(values) / len(values)) if values else "none"
    if group.partial:
        lowest = compute_mean_with_zeros(values, group.excluded) if group.excluded and values else None
        zeros = "" if lowest is None else f"; {format_number(lowest)} with zeros"
        mean += f" ({len(values)} of {group.size}{zeros})"
    scores = make_text(" ").join(format_verdict(rollout) for rollout in group.rollouts[:6])
    if len(group.rollouts) > 6:
        scores += make_text(f" … {len(group.rollouts)} in all")
    id = make_text(shorten_middle(" ".join(group.task.id.split()), 24))
    prompt = make_text(" ".join(group.task.prompt.split()), "dim")
    return id, make_text(group.task.kind), make_text(mean), scores, prompt


def _format_agreement(found: JudgeAgreement | None) -> str:
    if found is None:
        return ""
    kappa = "none: one of them gives all the same verdict" if found.kappa is None else format_number(found.kappa)
    share = f"{format_number(100 * found.same)} % of {found.rollouts} rollouts"
    return f"{share}, kappa {kappa}, mean difference {format_number(found.difference)}"


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _format_mean(stats: ScoreStats) -> str:
    return "none" if stats.mean is None else format_number(stats.mean)


def _format_bounds(failures: FailureLedger) -> str:
    if not failures.lost or failures.lowest is None or failures.highest is None:
        return ""
    bounds = f"{format_number(failures.lowest)} to {format_number(failures.highest)}"
    return f"{bounds}  the mean if each rollout without a score had scored 0, or 1"


def format_without_suspects(stats: ScoreStats) -> str:
    """The mean without suspects, in words."""
    if stats.mean_without_suspects is None:
        return "no other has a score"
    return f"mean {format_number(stats.mean_without_suspects)} without them"


def _format_interval(stats: ScoreStats) -> str:
    return f"[{format_number(stats.interval.low)}, {format_number(stats.interval.high)}]" if stats.interval else ""


def _format_spread(spread: Spread | None, format: Callable[[float], str]) -> str:
    if spread is None:
        return ""
    return f"median {format(spread.median)}, 95 % within {format(spread.p95)}, most {format(spread.most)}"
