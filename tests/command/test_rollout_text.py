"""A transcript on a terminal; hostile text is harmless."""

import msgspec
from tests.cli_kit import (
    make_shown_rollout,
    print_to_text,
)

from ludus.command.rollout_text import print_rollout


def test_a_transcript_has_everything_in_order():
    text = print_to_text(print_rollout, make_shown_rollout())
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
    assert "not available" not in text


def test_toolsets_that_could_not_be_drawn_are_shown():
    shown = make_shown_rollout()
    provenance = msgspec.structs.replace(shown.provenance, skipped=("vision", "web"))
    text = print_to_text(print_rollout, msgspec.structs.replace(shown, provenance=provenance))
    assert "toolsets terminal · not available: vision, web" in text


def test_a_failure_is_shown_as_one():
    text = print_to_text(print_rollout, make_shown_rollout(None))
    assert "score failed" in text
    assert "the sandbox failed: slot 3 is gone" in text


def test_long_texts_are_trimmed_in_the_middle():
    text = print_to_text(print_rollout, make_shown_rollout(text="a" * 5000 + "END"), longest=300)
    assert "… 4,703 characters …" in text
    assert "END" in text


def test_text_of_models_is_neither_markup_nor_terminal_code():
    text = print_to_text(
        print_rollout, make_shown_rollout(text="[bold red]x[/] \x1b[2J\x1b]0;title\x07 \x9b31m [/nonsense]")
    )
    assert "[bold red]x[/] ␛[2J␛]0;title␇ �31m [/nonsense]" in text
    assert "\x1b" not in text


def test_files_that_were_left_out_are_shown():
    rollout = msgspec.structs.replace(make_shown_rollout(), left_out=("out.txt -> /tmp/expected",))
    text = print_to_text(print_rollout, rollout)
    assert "left out for verify (out of /workspace, or no plain file):\n  out.txt -> /tmp/expected" in text
