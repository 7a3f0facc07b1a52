"""Words for numbers, safe text, and the live line."""

import io
import re

import pytest

from ludus.cli.output.terminal import (
    format_count,
    format_duration,
    format_money,
    format_number,
    make_printable,
    make_progress_bar,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["60", "80", "160"])
def test_the_count_and_the_time_stay_whole_however_narrow_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: str):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", columns)
    screen = Terminal()
    with make_progress_bar(screen) as bar:
        bar.add_task("rollouts", total=480, completed=120, facts="step 13/40 evaluate 1/40 · " + "words " * 40)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "120/480 step 13/40" in shown and "left -:--:--" in shown and "…" in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (format_number(0.5), "0.5"),
        (format_number(1.0), "1"),
        (format_number(-0.1254), "-0.125"),
        (format_count(9999), "9999"),
        (format_count(10_000), "10.0k"),
        (format_count(2_500_000), "2.50M"),
        (format_money(0.0012), "$0.0012"),
        (format_money(1234.5), "$1,234.50"),
        (format_duration(0.0094), "9 ms"),
        (format_duration(0.0949), "95 ms"),
        (format_duration(0.095), "0.1 s"),
        (format_duration(3.04), "3.0 s"),
        (format_duration(90), "1.5 min"),
        (format_duration(7200), "2.0 h"),
    ],
)
def test_words_for_numbers(words: str, expected: str):
    assert words == expected


def test_control_characters_are_shown_as_symbols():
    assert make_printable("a\r\nb\tc \x1b[2J\x07\x9b") == "a\nb\tc ␛[2J␇\ufffd"
