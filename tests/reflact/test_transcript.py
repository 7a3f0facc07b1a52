"""Transcripts: rollouts as text, within a budget."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.build import make_rollout, make_task, make_turn

from ludus.reflact.transcript import fit_texts, render_heading, render_transcript, shorten
from ludus.types import (
    Call,
    Rollout,
    Score,
    ToolResult,
)


def make_failure(answer: object = "42", feedback: str = "off by one", text: str = "It is 41.") -> Rollout:
    call = Call("c", "add", '{"a": 1}')
    return make_rollout(
        Score(0.5, False, 0.5, feedback),
        make_turn("", ToolResult(call, "41"), thinking="Let me add."),
        text,
        task=make_task("t1", "What is it?", kind="sums", answer=answer),
    )


def test_a_transcript_names_files_that_were_left_out():
    rollout = msgspec.structs.replace(make_failure(), left_out=("out.txt -> /tmp/expected",))
    assert "(out of /workspace, or no plain file): out.txt -> /tmp/expected" in render_heading(rollout, reference=False)


def test_a_transcript_tells_the_task_the_verdict_and_every_turn():
    assert render_transcript(make_failure(), reference=True, title="Rollout 1").splitlines() == [
        "### Rollout 1",
        "Task: What is it?",
        "Type: sums",
        "Result: failed (partial credit 0.50) after 2 turns, ended: finished; off by one",
        "What the verifier knows (hidden from the agent): 42",
        "",
        "[thinks] Let me add.",
        '[calls add] {"a": 1}',
        "[result] 41",
        "[agent] It is 41.",
    ]


def test_the_reference_is_shown_only_on_request():
    assert "42" not in render_transcript(make_failure(), reference=False)
    assert '{"n":[42]}' in render_heading(make_failure({"n": [42]}), reference=True)
    assert "verifier" not in render_heading(make_failure(None), reference=True)


def test_a_text_that_is_too_long_keeps_its_ends_and_says_what_is_missing():
    text = shorten("a" * 500 + "b" * 500, 100)
    assert text.startswith("a" * 40 + "\n[… 900 characters left out …]\n")
    assert text.endswith("b" * 60)
    assert shorten("short", 100) == "short"
    assert shorten("abc", 0) == "\n[… 3 characters left out …]\n"


def test_one_huge_transcript_does_not_crowd_out_the_short_ones():
    short, huge = "s" * 100, "h" * 1_000_000
    kept = fit_texts([short, huge, short], tokens=1000)
    assert kept[0] == kept[2] == short
    assert 3000 < len(kept[1]) < 4000


@settings(deadline=None)
@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(1, 1000))
def test_transcripts_fit_their_budget_together(sizes: list[int], tokens: int):
    texts = ["x" * size for size in sizes]
    kept = fit_texts(texts, tokens)
    assert sum(text.count("x") for text in kept) <= max(tokens * 4, 0)
    if sum(sizes) <= tokens * 4:
        assert kept == texts
