"""A batch on a terminal: numbers, groups and progress."""

import io
import os
import pty

import msgspec
import pytest
from rich.console import Console
from tests.build import make_group
from tests.cli_kit import (
    SHOWN_TASK,
    make_shown_rollout,
    print_to_text,
)

from ludus.batch import BatchProgress
from ludus.batch.run_tables import ProgressBar, describe_progress, print_groups, print_summary
from ludus.stats import summarize
from ludus.types import (
    Failure,
    Usage,
)


def test_a_summary_says_what_happened():
    other = msgspec.structs.replace(SHOWN_TASK, id="u", kind="shell")
    groups = [
        make_group(make_shown_rollout(1.0), make_shown_rollout(0.0)),
        make_group(make_shown_rollout(None), task=other, size=2),
    ]
    text = print_to_text(print_summary, summarize(groups))
    for words in ["mean score", "0.5", "pass@1", "pass@2", "2, 1 partial", "3, 1 without a score (slot 1)", "$0.75"]:
        assert words in text
    for words in ["bounds", "0.25 to", "warning: 1 of 3 rollouts (33.3 %) have no score and are in no mean"]:
        assert words in text
    for words in ["finished 2", "6, 3 errors", "reed 3", "files", "shell", "none", "median 1.2 min"]:
        assert words in text


def test_a_summary_reads_no_markup_and_no_terminal_code():
    hostile = "[red]it[/red] said [redacted] \x1b[2J[/]"
    failed = msgspec.structs.replace(make_shown_rollout(None), failure=Failure("model", hostile))
    text = print_to_text(print_summary, summarize([make_group(failed)]))
    assert "[red]it[/red] said [redacted] ␛[2J[/]" in text


def test_the_summary_of_nothing_has_no_mean():
    text = print_to_text(print_summary, summarize([]))
    assert "mean score" in text
    assert "none" in text


def test_an_overview_has_a_line_per_group():
    text = print_to_text(print_groups, [make_group(make_shown_rollout(0.5), make_shown_rollout(None), size=4)])
    assert "squares" in text
    assert "0.5 (1 of 4; 0.25 with zeros)" in text
    assert "0.5 failed" in text
    assert "Write squares" in text


def test_an_overview_fits_a_narrow_terminal_and_many_rollouts():
    long = msgspec.structs.replace(SHOWN_TASK, id="x" * 200, kind="", prompt="word " * 100)
    out = io.StringIO()
    groups = [
        make_group(*[make_shown_rollout(1.0)] * 64, task=long),
        make_group(task=SHOWN_TASK, size=2),
    ]
    print_groups(groups, Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) <= 80
    assert "1 1 1 1 1 1 … 64 in all" in lines[1]
    assert "none (0 of 2)" in lines[2]


def test_progress_in_words():
    assert (
        describe_progress(BatchProgress(10, 3, 2, 0.5, Usage(12_000, 345, 0, 0.01)))
        == "mean 0.500 · 1 failed · 12.3k tokens · $0.0100"
    )
    assert describe_progress(BatchProgress(10, 0, 0, None, Usage())) == "no score yet · 0 tokens"


def test_a_short_batch_leaves_no_progress_in_a_log():
    out = io.StringIO()
    with ProgressBar(file=out) as bar:
        bar(make_shown_rollout(), BatchProgress(1, 1, 1, 1.0, Usage()))
    assert out.getvalue() == ""


def test_progress_on_a_terminal(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as file, ProgressBar(file=file, every=0) as bar:
        for done in (9, 10):
            bar(make_shown_rollout(), BatchProgress(10, done, done, 0.25, Usage(5, 5)))
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:  # how a terminal says that its other end is closed
        pass
    os.close(ours)
    assert b"10/10" in seen
    assert b"mean 0.250" in seen
