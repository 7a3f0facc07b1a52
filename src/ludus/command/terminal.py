"""The terminal: safe text, words for numbers, and a line that is drawn while something runs.

Text of models and tools is printed as plain text: markup in it has no effect, and hidden characters are shown as
symbols. The live line goes to stderr. On a terminal it is drawn; in a log it is a new line every few seconds
(`ludus.progress`).
"""

import sys
import threading
import time
from collections.abc import Collection
from contextlib import ExitStack
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ludus.control import RunControl


def print_notice(text: str) -> None:
    """Print a message to the user on stderr. It may hold words of a file or a model."""
    print(f"ludus: {make_printable(text)}", file=sys.stderr, flush=True)


def make_printable(text: str) -> str:
    """The text with hidden characters replaced by symbols (`ludus.hidden_text`)."""
    return text.replace("\r\n", "\n").translate(_list_signs())


@cache
def _list_signs() -> dict[int, int]:
    """The sign in place of each hidden character."""
    from ludus.hidden_text import HIDDEN_CODES  # when something is printed: most of a command's work needs no signs

    return {code: 0x2400 + code if code < 32 else 0xFFFD for code in HIDDEN_CODES}


def count_things(count: int, name: str) -> str:
    """A count in words: `1 change`, `2 changes`."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def make_text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(make_printable(text), style)


def make_console() -> "Console":
    from rich.console import Console

    return Console(highlight=False)


def make_table(*names: str, whole: Collection[int] = ()) -> "Table":
    """A plain table. Where the terminal is too narrow, cells are folded: nothing is cut off. The columns in `whole`,
    counted from 0, are not folded."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for place, name in enumerate(names):
        table.add_column(name, overflow="fold", no_wrap=place in whole)
    return table


def make_facts_table() -> "Table":
    """A table of names and values, without a head."""
    table = make_table("", "")
    table.show_header = False
    table.columns[0].style = "dim"
    return table


def shorten_middle(text: str, longest: int) -> str:
    """A text without its middle if it is too long: names of one kind often differ in their ends."""
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return f"{text[:head]}…{text[len(text) - (longest - 1 - head) :]}"


# ---- words for numbers --------------------------------------------------------------------------------------------


def format_number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def format_count(value: float) -> str:
    if value < 10_000:
        return f"{value:.0f}"
    return f"{value / 1e3:.1f}k" if value < 1_000_000 else f"{value / 1e6:.2f}M"


def format_money(dollars: float) -> str:
    return f"${dollars:.4f}" if dollars < 1 else f"${dollars:,.2f}"


def format_duration(seconds: float) -> str:
    if seconds < 0.095:  # "0.0 s" says nothing
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


# ---- a live line --------------------------------------------------------------------------------------------------


class LiveLine:
    """A line about what runs while its `with` block runs: drawn on a terminal, printed from time to time in a log."""

    def __init__(
        self, title: str, file: TextIO | None = None, *, every: float = 0.1, control: "RunControl | None" = None
    ) -> None:
        """`control`: that of the run, whose line says when it is paused."""
        self._title = title
        self._control = control
        self._watching = ExitStack()
        self._state: tuple[int, int | None, str] | None = None
        self._file = file if file is not None else sys.stderr
        self._every = every
        self._drawn = 0.0
        self._bar: Any = None
        self._row: Any = None
        self._log: _Log | None = None

    def __enter__(self) -> Self:
        if self._file.isatty():
            self._bar = make_progress_bar(self._file)
            self._bar.start()
        else:
            self._log = _Log(self._title, self._file)
            self._log.start()
        if self._control is not None:
            self._watching.enter_context(self._control.watch(self._redraw))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watching.close()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._log is not None:
            self._log.stop()
            self._log = None

    def draw(self, done: int, total: int | None, facts: str) -> None:
        """Show how much is done, with some facts. `total` is None if it is not known."""
        self._state = done, total, facts
        state = describe_control(self._control)
        facts = f"{state} · {facts}" if state else facts
        if self._log is not None:
            self._log.update(done, total, facts)
        if self._bar is None:
            return
        if self._row is None:  # what was done before must not count as the speed of this process
            self._row = self._bar.add_task(self._title, total=total, completed=max(0, done - 1), facts="")
        now = time.monotonic()
        if now - self._drawn >= self._every or done == total:
            self._drawn = now
            self._bar.update(self._row, completed=done, facts=facts)

    def _redraw(self) -> None:
        """Draw the line again: nothing ends in a run that is paused."""
        self._drawn = 0.0
        if self._state is not None:
            self.draw(*self._state)

    def print(self, text: str) -> None:
        """Print a line of its own, on a terminal or not."""
        if self._bar is not None:
            self._bar.console.print(make_text(text))
        else:
            print(make_printable(text), file=self._file, flush=True)


def describe_control(control: "RunControl | None") -> str:
    """The state of a run in a word; empty if it just runs."""
    if control is None:
        return ""
    return "stopping" if control.is_stopping else "paused" if control.paused else ""


class _Log:
    """Prints progress into a log. A thread looks at the clock, so that a line also comes while nothing ends."""

    def __init__(self, title: str, file: TextIO) -> None:
        from ludus.progress import ProgressPace  # a terminal needs none

        self._title = title
        self._file = file
        self._pace = ProgressPace()
        self._first: int | None = None
        self._state: tuple[int, int | None, str] = (0, None, "")
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def update(self, done: int, total: int | None, facts: str) -> None:
        if self._first is None:
            self._first = max(0, done - 1)
        self._state = done, total, facts
        self.print_if_due()

    def print_if_due(self) -> None:
        done, total, facts = self._state
        with self._lock:
            if self._pace.is_due(done, total):
                words = describe_pace(done - (self._first or 0), done, total, self._pace.elapsed)
                print(
                    make_printable(" · ".join(part for part in (f"{self._title}: {words}", facts) if part)),
                    file=self._file,
                    flush=True,
                )

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.print_if_due()


def describe_pace(here: int, done: int, total: int | None, seconds: float) -> str:
    """How much is done and how long the rest takes. `here`: what this process has done in so many seconds."""
    took = f"after {format_duration(seconds)}"
    if total is None:
        return f"{done} done {took}"
    counted = f"{done} of {total}" + (f" ({100 * done // total} %)" if total else "")
    left = f", about {format_duration(seconds * (total - done) / here)} left" if here > 0 and total > done else ""
    return f"{counted} {took}{left}"


_WIDE = 110
"""Columns that a terminal needs for the whole line."""


def make_progress_bar(file: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Eta
    from rich.table import Column
    from rich.text import Text

    class Facts(TextColumn):
        """A column that is shortened if the line is too long, so that the count and the time stay whole."""

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
