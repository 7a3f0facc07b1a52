"""Rollouts in words, within a budget."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.reflact.transcript import fit_texts, render_heading, render_transcript, shorten
from ludus.types import (
    Call,
    Completion,
    Message,
    Provenance,
    Reasoning,
    Rollout,
    Score,
    StopReason,
    Task,
    ToolResult,
    Turn,
)


def rollout(answer: object = "42", feedback: str = "off by one", text: str = "It is 41.") -> Rollout:
    call = Call("c", "add", '{"a": 1}')
    thought = Message("assistant", "", (call,), reasoning=Reasoning("Let me add.", "think"))
    return Rollout(
        task=Task(id="t1", prompt="What is it?", kind="sums", answer=answer),
        provenance=Provenance(policy="p", model="m"),
        turns=(
            Turn(Completion(thought), (ToolResult(call, "41"),)),
            Turn(Completion(Message("assistant", text)), stop=StopReason.FINISHED),
        ),
        stop=StopReason.FINISHED,
        score=Score(0.5, False, 0.5, feedback),
    )


def test_a_transcript_tells_the_task_the_verdict_and_every_turn():
    assert render_transcript(rollout(), reference=True, title="Rollout 1").splitlines() == [
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
    assert "42" not in render_transcript(rollout(), reference=False)
    assert '{"n":[42]}' in render_heading(rollout({"n": [42]}), reference=True)
    assert "verifier" not in render_heading(rollout(None), reference=True)


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
