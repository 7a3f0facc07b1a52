"""Conversations in OpenAI's form and in ShareGPT's."""

from pathlib import Path
from typing import Any

import pytest
from tests.transcripts_kit import PIXEL, list_roles, read, read_one, write_json, write_lines

from ludus.types import Message

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "<available_skills><skill><name>sums</name></skill></available_skills>"},
    {"role": "user", "content": [{"type": "text", "text": "Add."}, {"type": "image_url", "image_url": {"url": PIXEL}}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "read", "arguments": '{"path": "skills/sums/SKILL.md"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "# Sums\nAdd one number after the other."},
    {"role": "assistant", "content": "It is 3."},
    {"role": "user", "content": "Thanks, right."},
]


def check(session: Any) -> None:
    assert session.format == "openai"
    assert list_roles(session) == "system user assistant tool assistant user"
    assert (session.request, session.feedback) == ("Add.", ("Thanks, right.",))
    assert session.messages[1].images[0].url == PIXEL
    assert session.messages[2].reasoning.text == "Hm."
    assert session.messages[3].call_id == session.messages[2].calls[0].id == "c1"
    assert [(skill.name, skill.path, skill.seen) for skill in session.skills] == [
        ("sums", "skills/sums/SKILL.md", ("listed", "read"))
    ]
    assert session.files == ("skills/sums/SKILL.md",)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("list.json", MESSAGES),
        ("row.json", {"messages": MESSAGES}),
        ("rows.json", [{"messages": MESSAGES}]),
        ("batch.json", {"custom_id": "x", "body": {"model": "m", "messages": MESSAGES}}),
    ],
)
def test_a_conversation_is_found_in_every_form_of_a_file(tmp_path: Path, name: str, value: Any):
    check(read_one(write_json(tmp_path / name, value)))


def test_lines_are_rows_or_messages(tmp_path: Path):
    check(read_one(write_lines(tmp_path / "messages.jsonl", MESSAGES)))
    row = {
        "messages": MESSAGES,
        "model": "m-3",
        "usage": {"prompt_tokens": 9, "completion_tokens": 2},
        "created": 1.7e9,
    }
    rows = [{**row, "id": "a"}, MESSAGES, {"prompt": "no messages"}, {**row, "id": "b", "metadata": {"project": "/p"}}]
    sessions, report = read(write_lines(tmp_path / "rows.jsonl", rows))
    assert [session.id for session in sessions][::2] == ["a", "b"]
    assert (sessions[0].model, sessions[0].usage.tokens, sessions[0].begun) == ("m-3", 11, 1.7e9)
    assert sessions[2].project == "/p"
    assert report.dropped["rows without messages"] == 1
    for session in sessions:
        check(session)


def test_blocks_of_anthropic_are_read_too(tmp_path: Path):
    messages = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "3"}]}],
        },
    ]
    session = read_one(write_json(tmp_path / "a.json", messages))
    assert session.messages[1].calls[0].arguments == '{"a":1}'
    assert session.messages[2] == Message("tool", "3", call_id="t")
    assert session.feedback == ()


def test_a_row_of_sharegpt_has_calls_in_its_texts(tmp_path: Path):
    row = {
        "id": "g1",
        "conversations": [
            {"from": "system", "value": "You add."},
            {"from": "human", "value": "Add."},
            {"from": "gpt", "value": 'So.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'},
            {"from": "tool", "value": '<tool_response>\n{"sum": 3}\n</tool_response>'},
            {"from": "gpt", "value": "It is 3."},
            {"from": "human", "value": "Right."},
            {"from": "narrator", "value": "They left."},
        ],
    }
    session = read_one(write_lines(tmp_path / "s.jsonl", [row]))
    assert (session.format, session.id) == ("sharegpt", "g1")
    assert list_roles(session) == "system user assistant tool assistant user"
    call = session.messages[2].calls[0]
    assert (call.name, call.arguments, session.messages[2].content) == ("add", '{"a": 1}', "So.")
    assert session.messages[3] == Message("tool", '{"sum": 3}', call_id=call.id)
    assert (session.request, session.feedback) == ("Add.", ("Right.",))
    assert session.dropped == {"messages of an unknown form": 1}


def test_a_call_that_cannot_be_read_stays_text(tmp_path: Path):
    said = [{"from": "human", "value": "Add."}, {"from": "gpt", "value": "<tool_call>{broken</tool_call>"}]
    session = read_one(write_json(tmp_path / "s.json", [{"conversations": said}]))
    assert session.messages[1] == Message("assistant", "<tool_call>{broken</tool_call>")
