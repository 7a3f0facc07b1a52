"""The intake: formats, folders, limits, and files that are made to do harm."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.transcripts_kit import CLAUDE_SESSION, CODEX_SESSION, read, read_one, write_json, write_lines

from ludus.errors import ConfigError
from ludus.transcripts.intake import detect_format, read_sessions
from ludus.transcripts.transcript_lines import IntakeLimits

CHAT = [{"role": "user", "content": "Add."}, {"role": "assistant", "content": "3"}]
SHARED = [{"from": "human", "value": "Add."}, {"from": "gpt", "value": "3"}]


@pytest.mark.parametrize(
    ("value", "format"),
    [
        (CLAUDE_SESSION[1], "claude-code"),
        ({"type": "summary", "summary": "x", "leafUuid": "u"}, "claude-code"),
        (CODEX_SESSION[0], "codex"),
        ({"id": "x", "timestamp": "t", "instructions": None}, "codex"),
        ({"messages": CHAT}, "openai"),
        (CHAT[0], "openai"),
        ({"conversations": SHARED}, "sharegpt"),
        ({"schema_version": "ATIF-v1.7", "steps": []}, "atif"),
        ({"name": "s", "model": "m", "requests": 1}, "gateway"),
        ({"name": "a package", "version": "1"}, None),
        ({"messages": ["a", "b"]}, None),
        ({"type": "module"}, None),
        ({"type": [], "role": {}, "payload": {}}, None),
        ([], None),
        (3, None),
    ],
)
def test_the_format_is_told_by_a_line(value: Any, format: str | None):
    assert detect_format(value) == format


def test_a_folder_is_walked_and_everything_left_out_is_counted(tmp_path: Path):
    write_lines(tmp_path / "projects" / "a" / "one.jsonl", CLAUDE_SESSION)
    write_lines(tmp_path / "codex" / "rollout-1.jsonl", CODEX_SESSION)
    write_json(tmp_path / "package.json", {"name": "x"})
    (tmp_path / "notes.txt").write_text("notes")
    write_lines(tmp_path / "copy.jsonl", CLAUDE_SESSION)
    sessions, report = read(tmp_path)
    assert {session.format for session in sessions} == {"claude-code", "codex"}
    assert len(report.files) == 4
    assert +report.dropped == {
        "sessions that were there before": 1,
        "files of another format": 1,
        "files that are not JSON": 1,
    }
    sessions, report = read(tmp_path, format="codex")
    assert [session.format for session in sessions] == ["codex"]
    assert report.dropped["files of another format"] == 3


def test_no_link_is_followed(tmp_path: Path):
    outside = write_json(tmp_path / "outside" / "secret.json", CHAT)
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "file.json").symlink_to(outside)
    (inside / "folder").symlink_to(outside.parent)
    (inside / "loop").symlink_to(inside)
    (inside / "gone.json").symlink_to(tmp_path / "nowhere")
    sessions, report = read(inside)
    assert sessions == []
    assert report.dropped["links"] == 4
    assert read_one(inside / "file.json").request == "Add.", "a link that the user names is read"


def test_pipes_and_closed_files_do_not_stop_the_walk(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.jsonl")
    write_json(tmp_path / "ok.json", CHAT)
    sessions, report = read(tmp_path)
    assert len(sessions) == 1
    assert report.dropped["files that cannot be opened"] == 1
    with pytest.raises(ConfigError, match="no plain file"):
        read(tmp_path / "pipe.jsonl")


def test_two_sessions_never_share_an_id(tmp_path: Path):
    rows = [{"id": "x", "messages": CHAT}, {"id": "x", "messages": CHAT[:1]}, {"id": "x", "messages": CHAT}]
    sessions, report = read(write_lines(tmp_path / "rows.jsonl", rows))
    assert len({session.id for session in sessions}) == len(sessions) == 2
    assert report.dropped["sessions that were there before"] == 1


@pytest.mark.parametrize("name", ["gone.jsonl", "a"])
def test_a_path_that_is_not_there_is_named(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match="there is no such file or folder"):
        list(read_sessions([tmp_path / name]))


def test_a_named_file_without_a_transcript_is_an_error_that_lists_the_formats(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"no transcript in a format that is known.*openai, claude-code"):
        read(write_json(tmp_path / "package.json", {"name": "x"}))
    with pytest.raises(ConfigError, match="not in codex"):
        read(write_json(tmp_path / "chat.json", CHAT), format="codex")


def test_a_live_session_is_read_up_to_its_last_whole_line(tmp_path: Path):
    path = write_lines(tmp_path / "s.jsonl", CLAUDE_SESSION)
    path.write_text(path.read_text() + '{"type":"assistant","uuid":"zz","mess')
    session = read_one(path)
    assert session.feedback == ("No, in cents please.",)
    assert session.dropped == {"unfinished last lines": 1}


def test_damaged_lines_cost_themselves_alone(tmp_path: Path):
    lines = [json.dumps(value).encode() for value in CLAUDE_SESSION]
    deep = b'{"type":"user","uuid":"d","a":' + b"[" * 200 + b"]" * 200 + b"}"
    deeper = b"[" * 100_000 + b"]" * 100_000
    half = rb'{"type":"user","uuid":"h","sessionId":"s","message":{"role":"user","content":"half \ud800 pair"}}'
    broken = b'{"type":"user","uuid":"b","sessionId":"s","message":{"role":"user","content":"caf\xe9"}}'
    bad = [b"{", b"\0" * 400, b"null", deep, deeper, half, broken, b"x" * 5000]
    path = tmp_path / "s.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join([*lines, *bad]) + b"\n")
    (session,), _ = read(path, limits=IntakeLimits(line_bytes=4000))
    assert session.feedback == ("No, in cents please.", "half \ufffd pair", "caf\ufffd")
    assert session.dropped == {
        "lines that are not JSON": 1,
        "lines with NUL bytes, read without them": 1,
        "lines of another format": 1,
        "values that are nested too deeply": 1,
        "lines with broken UTF-8, read with replacements": 1,
        "lines that are too long": 2,
    }


def test_limits_are_kept_and_counted(tmp_path: Path):
    for number in range(4):
        write_json(tmp_path / f"{number}.json", [{"role": "user", "content": f"Add {number}."}])
    write_lines(tmp_path / "long.jsonl", CHAT * 50)
    sessions, report = read(tmp_path, limits=IntakeLimits(files=3, file_bytes=1000, document_bytes=1000))
    assert len(sessions) == 3
    assert report.dropped["files beyond the limit"] == 2
    _, report = read(tmp_path, limits=IntakeLimits(file_bytes=1000, document_bytes=1000))
    assert report.dropped["files that are too long"] == 1


def mutate(value: Any, chance: random.Random) -> Any:
    """A value with parts replaced by values of other types."""
    if chance.random() < 0.08:
        return chance.choice([None, True, -1, 1e300, "", "x" * 30, [], {}, [[]], {"type": 3}, ["a", 1]])
    if isinstance(value, dict):
        return {key: mutate(inner, chance) for key, inner in value.items() if chance.random() > 0.03}
    return [mutate(inner, chance) for inner in value] if isinstance(value, list) else value


def test_no_value_of_any_type_breaks_a_reader(tmp_path: Path):
    atif = {
        "schema_version": "ATIF-v1.7",
        "agent": {"name": "a"},
        "steps": [
            {"source": "user", "message": "Add."},
            {"source": "agent", "message": "3", "tool_calls": [{"tool_call_id": "c", "arguments": {}}]},
        ],
        "final_metrics": {"total_prompt_tokens": 3, "total_cost_usd": 0.1},
    }
    record = {"name": "s", "model": "m", "requests": 1, "exchanges": [{"api": "chat", "messages": CHAT}]}
    files = (
        CLAUDE_SESSION,
        CODEX_SESSION,
        [{"messages": CHAT, "usage": {}}],
        [{"conversations": SHARED}],
        [atif],
        [record],
    )
    chance = random.Random(3)
    for number in range(240):
        lines = [mutate(line, chance) for line in files[number % len(files)]]
        write_lines(tmp_path / f"{number}.jsonl", lines)
    sessions, report = read(tmp_path, headless=True)
    assert len(report.files) == 240
    assert len(sessions) > 60
