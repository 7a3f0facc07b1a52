"""Words for numbers, safe text, and the live line."""

import io
import re
import time

import pytest

from ludus import progress
from ludus.command.terminal import (
    LiveLine,
    describe_pace,
    format_count,
    format_duration,
    format_money,
    format_number,
    make_printable,
    make_progress_bar,
    shorten_middle,
)
from ludus.control import RunControl
from ludus.progress import ProgressPace


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


# ---- progress -----------------------------------------------------------------------------------------------------


def test_a_log_has_lines_from_time_to_time_also_while_nothing_ends(monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    pace = ProgressPace(lambda: now[0])
    monkeypatch.setattr(progress, "ProgressPace", lambda: pace)
    log = io.StringIO()
    with LiveLine("sums", log) as line:
        line.draw(1, 200, "mean 1.000")
        now[0] = 6.0
        line.draw(65, 200, "mean 0.500")
        line.draw(66, 200, "mean 0.500")
        now[0] = 70.0
        for _ in range(100):  # the thread looks once a second
            if log.getvalue().count("\n") == 2:
                break
            time.sleep(0.05)
    assert log.getvalue().splitlines() == [
        "sums: 65 of 200 (32 %) after 6.0 s, about 12.5 s left · mean 0.500",
        "sums: 66 of 200 (33 %) after 1.2 min, about 2.4 min left · mean 0.500",
    ]


def test_a_short_run_leaves_no_line_in_a_log():
    log = io.StringIO()
    with LiveLine("sums", log) as line:
        line.draw(1, 1, "")
        line.print("a line of its own")
    assert log.getvalue() == "a line of its own\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (describe_pace(0, 0, None, 60.0), "0 done after 1.0 min"),
        (describe_pace(0, 0, 200, 60.0), "0 of 200 (0 %) after 1.0 min"),
        (describe_pace(50, 150, 200, 10.0), "150 of 200 (75 %) after 10.0 s, about 10.0 s left"),
        (describe_pace(200, 200, 200, 10.0), "200 of 200 (100 %) after 10.0 s"),
    ],
)
def test_the_pace_in_words(words: str, expected: str):
    assert words == expected


def test_a_long_name_loses_its_middle():
    assert shorten_middle("repository__issue-1234", 24) == "repository__issue-1234"
    assert shorten_middle("a-long-name-of-a-repository__issue-1234", 16) == "a-long-…sue-1234"


def test_the_line_says_that_a_run_is_paused_also_while_nothing_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "160")
    file, control = Terminal(), RunControl()
    with LiveLine("rollouts", file, every=0.0, control=control) as line:
        line.draw(1, 4, "mean 0.5")
        control.pause()
        time.sleep(0.5)  # the line is drawn five times a second
        assert "paused · mean 0.5" in file.getvalue()
        control.resume()
        line.draw(2, 4, "mean 0.7")
        control.stop()
    assert file.getvalue().rpartition("mean 0.7")[0].endswith("stopping · ")
    control.resume()  # nobody watches any more
