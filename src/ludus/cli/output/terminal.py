"""The terminal: safe text, words for numbers, and a line that is drawn while something runs.

Text of models and tools is printed as plain text: markup in it has no effect, and control characters are shown as
symbols. The live line goes to stderr, and only to a terminal, so that logs and pipes stay clean.
"""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

if TYPE_CHECKING:  # importing rich takes a while, and most commands do not draw
    from rich.console import Console
    from rich.text import Text

_CONTROL = {
    **{code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"},
    **dict.fromkeys(range(127, 160), 0xFFFD),
}


def make_printable(text: str) -> str:
    """The text with control characters replaced by symbols."""
    return text.replace("\r\n", "\n").translate(_CONTROL)


def make_text(text: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(make_printable(text), style)


def make_console() -> "Console":
    from rich.console import Console

    return Console(highlight=False)


# ---- words for numbers --------------------------------------------------------------------------------------------


def format_number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def format_count(value: int) -> str:
    if value < 10_000:
        return str(value)
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
    """A line that is drawn while its `with` block runs. On anything but a terminal it is not drawn."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file if file is not None else sys.stderr
        self._drawn = 0.0
        self._bar: Any = None
        self._row: Any = None

    def __enter__(self) -> Self:
        if self._file.isatty():
            self._bar = make_progress_bar(self._file)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


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
