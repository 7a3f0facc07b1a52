"""What people see: numbers, transcripts and progress, with hostile text kept harmless."""

import io
import os
import pty
import re

import msgspec
import pytest
from rich.console import Console

from ludus.batch import Progress
from ludus.show import (
    ProgressBar,
    compact,
    duration,
    facts,
    money,
    number,
    print_groups,
    print_rollout,
    print_summary,
    progress_bar,
)
from ludus.stats import summarize
from ludus.types import (
    Call,
    Completion,
    Failure,
    Group,
    Message,
    Provenance,
    Reasoning,
    Rollout,
    Score,
    StopReason,
    Task,
    ToolResult,
    Turn,
    Usage,
)

TASK = Task(id="squares", prompt="Write\nsquares", kind="files", answer="THE-ANSWER")


def rollout(score: float | None = 1.0, *, text: str = "It is done.") -> Rollout:
    call = Call("c", "terminal", '{"command":"ls\\npwd","timeout":3}')
    bad = Call("d", "reed", "{oops")
    turn = Turn(
        Completion(Message("assistant", "", (call, bad), reasoning=Reasoning("I wonder.", "think")), usage=Usage(9, 1)),
        (ToolResult(call, "a.txt\nb.txt"), ToolResult(bad, '{"error": "Unknown tool"}', error="Unknown tool")),
    )
    last = Turn(Completion(Message("assistant", text), usage=Usage(20_000, 5, 0, 0.25)), stop=StopReason.FINISHED)
    return Rollout(
        task=TASK,
        provenance=Provenance(policy="abc", model="m", seed=7, toolsets=("terminal",)),
        opening=(Message("system", "Be brief."), Message("user", TASK.prompt)),
        turns=(turn, last),
        stop=StopReason.FINISHED if score is not None else StopReason.FAILED,
        score=Score.of(score, "All files are right.") if score is not None else None,
        failure=Failure("sandbox", "slot 3 is gone") if score is None else None,
        seconds=75,
    )


def printed(what, *arguments, **options) -> str:
    out = io.StringIO()
    what(*arguments, Console(file=out, width=140, highlight=False), **options)
    return out.getvalue()


def test_a_transcript_has_everything_in_order():
    text = printed(print_rollout, rollout())
    expected = [
        "task squares, rollout 1",
        "policy abc",
        "system",
        "Be brief.",
        "user",
        "squares",
        "assistant",
        "I wonder.",
    ]
    expected += ["→ terminal", "command: ls", "    pwd", "│ a.txt", "→ reed {oops", "Unknown tool", "It is done."]
    expected += ["score 1  ended: finished · 2 turns · 20.0k tokens · $0.2500 · 1.2 min", "All files are right."]
    position = 0
    for part in expected:
        position = text.index(part, position)
    assert "THE-ANSWER" not in text


def test_a_failure_is_shown_as_one():
    text = printed(print_rollout, rollout(None))
    assert "score failed" in text
    assert "the sandbox failed: slot 3 is gone" in text


def test_long_texts_are_trimmed_in_the_middle():
    text = printed(print_rollout, rollout(text="a" * 5000 + "END"), longest=300)
    assert "… 4,703 characters …" in text
    assert "END" in text


def test_text_of_models_is_neither_markup_nor_terminal_code():
    text = printed(print_rollout, rollout(text="[bold red]x[/] \x1b[2J\x1b]0;title\x07 \x9b31m [/nonsense]"))
    assert "[bold red]x[/] ␛[2J␛]0;title␇ �31m [/nonsense]" in text
    assert "\x1b" not in text


def test_a_summary_says_what_happened():
    other = msgspec.structs.replace(TASK, id="u", kind="shell")
    groups = [
        Group(task=TASK, rollouts=(rollout(1.0), rollout(0.0)), size=2),
        Group(task=other, rollouts=(rollout(None),), size=2),
    ]
    text = printed(print_summary, summarize(groups))
    for words in ["mean score", "0.5", "pass@1", "pass@2", "2, 1 partial", "3, 1 without a score (sandbox 1)", "$0.75"]:
        assert words in text
    for words in ["finished 2", "6, 3 errors", "reed 3", "files", "shell", "none", "median 1.2 min"]:
        assert words in text


def test_a_summary_reads_no_markup_and_no_terminal_code():
    hostile = "[red]it[/red] said [redacted] \x1b[2J[/]"
    failed = msgspec.structs.replace(rollout(None), failure=Failure("model", hostile))
    text = printed(print_summary, summarize([Group(task=TASK, rollouts=(failed,), size=1)]))
    assert "[red]it[/red] said [redacted] ␛[2J[/]" in text


def test_the_summary_of_nothing_has_no_mean():
    text = printed(print_summary, summarize([]))
    assert "mean score" in text
    assert "none" in text


def test_an_overview_has_a_line_per_group():
    text = printed(print_groups, [Group(task=TASK, rollouts=(rollout(0.5), rollout(None)), size=4)])
    assert "squares" in text
    assert "0.5 (1 of 4)" in text
    assert "0.5 failed" in text
    assert "Write squares" in text


def test_an_overview_fits_a_narrow_terminal_and_many_rollouts():
    long = msgspec.structs.replace(TASK, id="x" * 200, kind="", prompt="word " * 100)
    out = io.StringIO()
    groups = [Group(task=long, rollouts=(rollout(1.0),) * 64, size=64), Group(task=TASK, rollouts=(), size=2)]
    print_groups(groups, Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "1 1 1 1 1 1 … 64 in all" in lines[1]
    assert "none (0 of 2)" in lines[2]


def test_progress_in_words():
    assert (
        facts(Progress(10, 3, 2, 0.5, Usage(12_000, 345, 0, 0.01))) == "mean 0.500 · 1 failed · 12.3k tokens · $0.0100"
    )
    assert facts(Progress(10, 0, 0, None, Usage())) == "no score yet · 0 tokens"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["60", "80", "160"])
def test_the_count_and_the_time_stay_whole_however_narrow_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: str):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", columns)
    screen = Terminal()
    with progress_bar(screen) as bar:
        bar.add_task("rollouts", total=480, completed=120, facts="step 13/40 evaluate 1/40 · " + "words " * 40)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "120/480 step 13/40" in shown and "left -:--:--" in shown and "…" in shown


def test_progress_is_silent_where_nobody_looks():
    out = io.StringIO()
    with ProgressBar(file=out) as bar:
        bar(rollout(), Progress(1, 1, 1, 1.0, Usage()))
    assert out.getvalue() == ""


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as file, ProgressBar(file=file, every=0) as bar:
        for done in (9, 10):
            bar(rollout(), Progress(10, done, done, 0.25, Usage(5, 5)))
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:  # how a terminal says that its other end is closed
        pass
    os.close(ours)
    assert b"10/10" in seen
    assert b"mean 0.250" in seen


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (number(0.5), "0.5"),
        (number(1.0), "1"),
        (number(-0.1254), "-0.125"),
        (compact(9999), "9999"),
        (compact(10_000), "10.0k"),
        (compact(2_500_000), "2.50M"),
        (money(0.0012), "$0.0012"),
        (money(1234.5), "$1,234.50"),
        (duration(3.04), "3.0 s"),
        (duration(90), "1.5 min"),
        (duration(7200), "2.0 h"),
    ],
)
def test_words_for_numbers(words: str, expected: str):
    assert words == expected
