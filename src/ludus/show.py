"""For people at a terminal: progress while a batch runs, and its numbers, groups and transcripts afterwards.

Nothing here decides or records anything. Progress goes to stderr and only if that is a terminal, so a log or a pipe
stays clean. What models and tools wrote is printed as plain text: markup in it is not read, and control characters are
shown as symbols instead of reaching the terminal.
"""

import sys
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

import msgspec

from ludus.stats import Marks, Spread, Summary
from ludus.types import Call, Group, Message, Rollout, ToolResult

if TYPE_CHECKING:  # rich takes a while to import, and most commands do not draw
    from rich.console import Console
    from rich.text import Text

    from ludus.batch import Progress

_CONTROL = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    **dict.fromkeys(range(127, 160), 0xFFFD),
}


def printable(text: str) -> str:
    """The text without anything that a terminal would act on."""
    return text.replace("\r\n", "\n").translate(_CONTROL)


# ---- while it runs ------------------------------------------------------------------------------------------------


class LiveLine:
    """A line that is drawn while its block runs, if it goes to a terminal."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file if file is not None else sys.stderr
        self._drawn = 0.0
        self._bar: Any = None
        self._row: Any = None

    def __enter__(self) -> Self:
        if self._file.isatty():
            self._bar = progress_bar(self._file)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class ProgressBar(LiveLine):
    """One line about a batch, kept up to date. Call it with each rollout and the `Progress` that came with it."""

    def __init__(self, title: str = "rollouts", *, file: TextIO | None = None, every: float = 0.1) -> None:
        super().__init__(file)
        self._title = title
        self._every = every

    def __call__(self, rollout: Rollout, progress: "Progress") -> None:
        if self._bar is None:
            return
        if self._row is None:  # what an earlier run had done must not count as this one's speed
            self._row = self._bar.add_task(self._title, total=progress.total, completed=progress.done - 1, facts="")
        now = time.monotonic()
        if now - self._drawn >= self._every or progress.done == progress.total:
            self._drawn = now
            self._bar.update(self._row, completed=progress.done, facts=facts(progress))


def facts(progress: "Progress") -> str:
    """What is known so far, in a few words."""
    parts = [f"mean {progress.mean:.3f}" if progress.mean is not None else "no score yet"]
    if progress.failed:
        parts.append(f"{progress.failed} failed")
    parts.append(f"{compact(progress.usage.tokens)} tokens")
    if progress.usage.dollars:
        parts.append(money(progress.usage.dollars))
    return " · ".join(parts)


_WIDE = 110
"""Columns of a terminal that has room for all of the line."""


def progress_bar(file: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Eta
    from rich.table import Column
    from rich.text import Text

    class Facts(TextColumn):
        """Gives way where the line is too long: the count and the time stay whole."""

        def render(self, task: Any) -> Text:
            text = super().render(task)
            text.no_wrap, text.overflow = True, "ellipsis"
            return text

    console = Console(file=file)
    wide = console.width >= _WIDE
    columns = (
        *((TextColumn("{task.description}"),) if wide else ()),
        BarColumn(bar_width=24 if wide else 8, table_column=Column(no_wrap=True)),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        Facts("{task.fields[facts]}", markup=False, table_column=Column()),
        *((TimeElapsedColumn(table_column=Column(no_wrap=True)),) if wide else ()),
        TextColumn("left"),
        Eta(table_column=Column(no_wrap=True)),
    )
    return Progress(*columns, console=console, refresh_per_second=5)


# ---- numbers ------------------------------------------------------------------------------------------------------


def print_summary(summary: Summary, console: "Console | None" = None) -> None:
    """The numbers of a run as a table."""
    from rich.table import Table

    console = console or stdout()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    for name, value in _numbers(summary):
        table.add_row(name, as_text(value))
    console.print(table)
    if summary.kinds:
        kinds = Table("kind", "tasks", "rollouts", "mean", "95 %", "pass@1", box=None, padding=(0, 2, 0, 0))
        for kind, marks in summary.kinds.items():
            first = number(marks.pass_at[0].value) if marks.pass_at else "none"
            counts = (str(marks.tasks), str(marks.rollouts))
            kinds.add_row(as_text(kind or "(none)"), *counts, _mean(marks), _range(marks), first)
        console.print()
        console.print(kinds)


def _numbers(summary: Summary) -> list[tuple[str, str]]:
    """The rows of the table: what it is called and what it came to."""
    overall, usage = summary.overall, summary.usage
    failed = overall.rollouts - overall.scored
    boundaries = ", ".join(f"{where} {count}" for where, count in summary.failed.items())
    errors = ", ".join(f"{use.tool} {use.errors}" for use in summary.tools if use.errors)
    rows = [
        ("mean score", f"{_mean(overall)}  {_range(overall)}".rstrip()),
        *((f"pass@{p.k}", number(p.value)) for p in overall.pass_at),
        ("tasks", f"{overall.tasks}" + (f", {summary.partial} partial" if summary.partial else "")),
        ("rollouts", f"{overall.rollouts}" + (f", {failed} without a score ({boundaries})" if failed else "")),
        *(("failed with", reason) for reason in summary.reasons),
        ("ended as", ", ".join(f"{stop} {count}" for stop, count in summary.stops.items())),
        ("tool calls", f"{sum(use.calls for use in summary.tools)}, {summary.tool_errors} errors"),
        ("errors by tool", errors),
        ("tokens", f"{compact(usage.prompt_tokens)} in, {compact(usage.completion_tokens)} out"),
        ("cost", money(usage.dollars) if usage.dollars else ""),
        ("turns", _spread(summary.turns, number)),
        ("time per rollout", _spread(summary.seconds, duration)),
    ]
    return [(name, value) for name, value in rows if value]


def print_groups(groups: Iterable[Group], console: "Console | None" = None) -> None:
    """One line per group: the task, its scores, and how it begins, as far as the line goes."""
    from rich.table import Table

    console = console or stdout()
    rows = [_overview(group) for group in groups]
    names = ("task", "kind", "mean", "scores", "prompt")
    widths = [max((row[i].cell_len for row in rows), default=0) for i in range(4)]
    shown = [i for i in range(4) if widths[i]]
    room = console.width - sum(max(widths[i], len(names[i])) + 2 for i in shown)
    if room >= 12:
        shown.append(4)
    table = Table(*(names[i] for i in shown), box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for row in rows:
        row[4].truncate(max(0, room), overflow="ellipsis")
        table.add_row(*(row[i] for i in shown))
    console.print(table)


def _overview(group: Group) -> "tuple[Text, Text, Text, Text, Text]":
    """Task, kind, mean, scores, prompt."""
    values = [r.score.value for r in group.scored if r.score]
    mean = number(sum(values) / len(values)) if values else "none"
    if group.partial:
        mean += f" ({len(values)} of {group.size})"
    scores = as_text(" ").join(_verdict(rollout) for rollout in group.rollouts[:6])
    if len(group.rollouts) > 6:
        scores += as_text(f" … {len(group.rollouts)} in all")
    id = as_text(" ".join(group.task.id.split()))
    id.truncate(24, overflow="ellipsis")
    return id, as_text(group.task.kind), as_text(mean), scores, as_text(" ".join(group.task.prompt.split()), "dim")


# ---- one rollout --------------------------------------------------------------------------------------------------


def print_rollout(rollout: Rollout, console: "Console | None" = None, *, longest: int = 2_000) -> None:
    """A transcript, with texts longer than `longest` characters trimmed, and the verdict."""
    console = console or stdout()
    provenance = rollout.provenance
    console.print(as_text(f"task {rollout.task.id}, rollout {provenance.replicate + 1}", "bold"))
    origin = f"{provenance.model} · policy {provenance.policy} · seed {provenance.seed}"
    if provenance.toolsets:
        origin += f" · toolsets {', '.join(provenance.toolsets)}"
    console.print(as_text(origin, "dim"))
    for message in rollout.opening:
        _print_message(message, console, longest)
        for call in message.calls:
            _print_call(call, console, longest)
    for turn in rollout.turns:
        _print_message(turn.completion.message, console, longest)
        for result in turn.results:
            _print_call(result.call, console, longest)
            _print_result(result, console, longest)
        for message in turn.heard:
            _print_message(message, console, longest)
    console.print()
    console.print(_closing(rollout))
    if rollout.score is not None and rollout.score.feedback:
        console.print(as_text(_trimmed(rollout.score.feedback, longest)))
    if rollout.failure is not None:
        failure = rollout.failure
        console.print(as_text(f"the {failure.boundary} failed: {_trimmed(failure.message, longest)}", "magenta"))
    if rollout.exit is not None and rollout.exit.code != 0:
        console.print(as_text(f"the agent's program ended with exit code {rollout.exit.code}", "magenta"))
        console.print(as_text(_trimmed(rollout.exit.output, longest), "dim"))


_ROLES = {"system": "dim", "user": "bold blue", "assistant": "bold green", "tool": "yellow"}


def _print_message(message: Message, console: "Console", longest: int) -> None:
    console.print()
    console.print(as_text(message.role, _ROLES[message.role]))
    if message.reasoning is not None:
        console.print(as_text(_trimmed(message.reasoning.text, longest), "dim italic"))
    if message.content:
        console.print(as_text(_trimmed(message.content, longest), "dim" if message.role == "system" else ""))


def _print_call(call: Call, console: "Console", longest: int) -> None:
    console.print(
        as_text("→ ", "yellow") + as_text(call.name, "bold yellow") + as_text(" " + _arguments(call, longest))
    )


def _print_result(result: ToolResult, console: "Console", longest: int) -> None:
    style = "red" if result.error else "dim"
    for shown in _trimmed(result.content, longest).splitlines() or ["(nothing)"]:
        console.print(as_text("  │ ", style) + as_text(shown, style))


def _arguments(call: Call, longest: int) -> str:
    """One argument per line where one has line breaks of its own, else the JSON as it is."""
    raw = call.arguments
    try:
        value = msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.MsgspecError:
        return _trimmed(raw, longest)
    if not any(isinstance(v, str) and "\n" in v for v in value.values()):
        return _trimmed(raw, longest)
    parts = (f"{k}: {v if isinstance(v, str) else msgspec.json.encode(v).decode()}" for k, v in value.items())
    return _trimmed("\n    " + "\n".join(parts).replace("\n", "\n    "), longest)


def _closing(rollout: Rollout) -> "Text":
    usage = rollout.usage
    rest = f"  ended: {rollout.stop.value} · {len(rollout.turns)} turns · {compact(usage.tokens)} tokens"
    if usage.dollars:
        rest += f" · {money(usage.dollars)}"
    return as_text("score ") + _verdict(rollout) + as_text(f"{rest} · {duration(rollout.seconds)}", "dim")


def _verdict(rollout: Rollout) -> "Text":
    if rollout.score is None:
        return as_text("failed", "magenta")
    value = rollout.score.value
    return as_text(number(value), "green" if value > 0 else "red" if value < 0 else "yellow")


def _trimmed(text: str, longest: int) -> str:
    """The beginning and the end of a long text: what a tool did is often said last."""
    if len(text) <= longest:
        return text
    head, tail = longest * 2 // 3, longest // 3
    return f"{text[:head]}\n… {len(text) - head - tail:,} characters …\n{text[len(text) - tail :]}"


# ---- words for numbers --------------------------------------------------------------------------------------------


def number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def compact(value: int) -> str:
    if value < 10_000:
        return str(value)
    return f"{value / 1e3:.1f}k" if value < 1_000_000 else f"{value / 1e6:.2f}M"


def money(dollars: float) -> str:
    return f"${dollars:.4f}" if dollars < 1 else f"${dollars:,.2f}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def _mean(marks: Marks) -> str:
    return "none" if marks.mean is None else number(marks.mean)


def _range(marks: Marks) -> str:
    return f"[{number(marks.interval.low)}, {number(marks.interval.high)}]" if marks.interval else ""


def _spread(spread: Spread | None, say: Callable[[float], str]) -> str:
    return f"median {say(spread.median)}, 95 % within {say(spread.p95)}, most {say(spread.most)}" if spread else ""


def as_text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(printable(text), style)


def stdout() -> "Console":
    from rich.console import Console

    return Console(highlight=False)
