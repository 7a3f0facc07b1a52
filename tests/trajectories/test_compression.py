"""What is cut from a trajectory, and what stays."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.trajectories.compression import (
    MARK,
    NOTICE,
    CompressionRules,
    Conversation,
    Cut,
    Part,
    list_contents,
    list_units,
    plan_cut,
    read_conversation,
    replace_middle,
    shorten_text,
    show_parts,
)

RULES = CompressionRules(tokens=100, summary_tokens=10, keep_last=2, frame=0, marks=0)
ROLES = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}


def make(roles: str, size: int = 20) -> Conversation:
    """A conversation of messages of one size, by the first letters of their roles."""
    return Conversation("messages", [Part(ROLES[r], r, size, {"role": ROLES[r], "content": r}) for r in roles], 0)


@pytest.mark.parametrize(
    ("roles", "cut"),
    [
        ("suata", None),  # it fits
        ("suatatata", Cut(4, 6, False)),  # the last two stay, with the call of a result
        ("suattatata", Cut(5, 7, False)),  # both results of a call stay with it
        ("suatatatata", Cut(4, 8, False)),
        ("suatuatata", Cut(4, 7, False)),  # the user's words in the middle go, too
        ("sauauaua", Cut(2, 6, True)),
        ("suaattttt", Cut(3, 3, False)),  # all that is left is the unit of the last messages
        ("tttttttt", Cut(8, 8, False)),  # no reply at all
    ],
)
def test_what_is_cut(roles: str, cut: Cut | None):
    assert plan_cut(make(roles), RULES) == cut


def test_no_more_is_cut_than_must_be():
    assert plan_cut(make("suatatatatatata", 8), RULES) == Cut(4, 8, True)


@given(st.text("uat", min_size=1, max_size=40), st.integers(1, 6), st.integers(20, 400))
def test_a_cut_keeps_calls_with_their_results_and_the_ends(roles: str, keep_last: int, tokens: int):
    rules = CompressionRules(tokens=tokens, summary_tokens=10, keep_last=keep_last, frame=1)
    conversation = make("s" + roles)
    cut = plan_cut(conversation, rules)
    if cut is None or cut.start == cut.stop:
        return
    starts = {first for first, _ in list_units([part.role for part in conversation.parts])}
    assert {cut.start, cut.stop} <= starts | {len(roles) + 1}
    assert cut.stop <= len(roles) + 1 - keep_last
    kept = [*conversation.parts[: cut.start], *conversation.parts[cut.stop :]]
    size = Conversation("messages", kept, 0).count(rules) + rules.summary_tokens + rules.frame + rules.marks
    assert (size <= tokens) is cut.fits


CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "do it"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}]},
    {"role": "tool", "content": "a.txt", "tool_call_id": "c"},
    {"role": "user", "content": "go on"},
    {"role": "assistant", "content": "done"},
]
SHAREGPT = [
    {"from": "human", "value": "do it"},
    {"from": "gpt", "value": '<tool_call>\n{"name": "ls", "arguments": {}}\n</tool_call>'},
    {"from": "tool", "value": "<tool_response>…"},
    {"from": "gpt", "value": "done"},
]


def test_rows_of_both_forms_are_read():
    chat = read_conversation({"messages": CHAT, "tools": [{"type": "function"}]}, len)
    assert [part.role for part in chat.parts] == ["system", "user", "assistant", "tool", "user", "assistant"]
    assert "ls" in chat.parts[2].text
    assert chat.tools == len(json.dumps([{"type": "function"}]))
    shared = read_conversation({"conversations": SHAREGPT}, len)
    assert [part.role for part in shared.parts] == ["user", "assistant", "tool", "assistant"]
    with pytest.raises(ValueError, match="neither messages nor conversations"):
        read_conversation({"text": "x"}, len)
    with pytest.raises(ValueError, match="not an object"):
        read_conversation({"messages": ["x"]}, len)


def test_a_summary_is_a_message_of_its_own_and_the_system_text_says_so():
    row = {"messages": CHAT, "id": "t1"}
    made = replace_middle(row, read_conversation(row, len), Cut(3, 5, True), "It was listed.")
    assert [message["role"] for message in made["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    assert made["messages"][0]["content"] == f"S\n\n{NOTICE}"
    assert made["messages"][3]["content"] == f"{MARK} It was listed."
    assert (made["id"], CHAT[0]["content"]) == ("t1", "S")


def test_a_user_who_speaks_next_has_it_before_the_own_words():
    row = {"messages": CHAT}
    made = replace_middle(row, read_conversation(row, len), Cut(2, 4, True), "It was listed.")
    assert [message["role"] for message in made["messages"]] == ["system", "user", "user", "assistant"]
    assert made["messages"][2]["content"] == f"{MARK} It was listed.\n\ngo on"
    shared = {"conversations": SHAREGPT}
    made = replace_middle(shared, read_conversation(shared, len), Cut(1, 3, True), "L.")
    assert made["conversations"][1] == {"from": "human", "value": f"{MARK} L."}


@pytest.mark.parametrize("row", [{"messages": CHAT}, {"conversations": SHAREGPT}])
def test_a_list_of_what_was_done_claims_nothing_else(row: dict[str, Any]):
    parts = read_conversation(row, len).parts
    words = list_contents(parts)
    assert words.startswith(f"{len(parts)} messages are left out")
    assert words.endswith("Tools that were called there: ls 1.")


def test_texts_are_shortened():
    assert shorten_text("a" * 100, len, 30) == "a" * 30
    assert shorten_text("short", len, 30) == "short"
    shown = show_parts([Part("tool", "x" * 9000, 1, {})])
    assert (len(shown) < 2100, shown.startswith("[tool]\nxxx")) == (True, True)
