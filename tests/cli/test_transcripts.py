"""`ludus transcripts`: what past sessions hold, masked."""

import json
from pathlib import Path

from tests.cli_kit import Ludus
from tests.transcripts_kit import CLAUDE_SESSION, CODEX_SESSION, asked, write_lines


def test_sessions_are_listed_with_skills_and_with_what_was_left_out_and_masked(ludus: Ludus, folder: Path):
    write_lines(folder / "logs" / "one.jsonl", CLAUDE_SESSION)
    write_lines(folder / "logs" / "two.jsonl", CODEX_SESSION)
    (folder / "logs" / "notes.txt").write_text("notes")
    done = ludus("transcripts", "logs")
    assert done.code == 0
    assert "2 sessions from 2 files: 1 claude-code, 1 codex" in done.out
    assert "skills in use: csv-totals 2" in done.out
    assert "left out: files that are not JSON 1" in done.out
    assert "masked: user 2" in done.out
    assert "jane" not in done.out


def test_json_has_every_session_and_file_without_personal_data(ludus: Ludus, folder: Path):
    write_lines(folder / "home" / "jane" / "one.jsonl", CLAUDE_SESSION)
    done = ludus("transcripts", str(folder / "home"), "--json", "--format", "claude-code")
    found = json.loads(done.out)
    assert "jane" not in done.out
    (session,) = found["sessions"]
    assert (session["project"], session["feedback"], session["messages"]) == ("/home/<USER_1>/shop", 1, 10)
    assert [skill["name"] for skill in session["skills"] if skill["used"]] == ["csv-totals"]
    assert [(file["format"], file["sessions"]) for file in found["files"]] == [("claude-code", 1)]
    assert (found["dropped"], found["masked"]) == ({}, {"user": 1})


def test_the_name_of_an_agent_stands_for_its_folder_and_is_said(ludus: Ludus, folder: Path, monkeypatch):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(folder / "codex"))
    failed = ludus("transcripts", "codex")
    assert failed.code == 2
    assert "codex: there are no sessions on this machine" in failed.err
    write_lines(folder / "claude" / "projects" / "p" / "one.jsonl", CLAUDE_SESSION)
    write_lines(folder / "codex" / "archived_sessions" / "rollout-1.jsonl", CODEX_SESSION)
    write_lines(folder / "codex" / "history.jsonl", CODEX_SESSION)
    done = ludus("transcripts", "claude-code", "codex")
    assert f"claude-code: reading {folder / 'claude' / 'projects'}" in done.err
    assert f"codex: reading {folder / 'codex' / 'archived_sessions'}" in done.err
    assert "2 sessions from 2 files" in done.out


def test_the_user_is_told_how_to_read_sessions_that_programs_began(ludus: Ludus, folder: Path):
    write_lines(folder / "one.jsonl", [asked("u", None, "Do it.", entrypoint="sdk-cli")])
    done = ludus("transcripts", "one.jsonl")
    assert "--headless reads them" in done.err
    assert "1 session from 1 file" in ludus("transcripts", "one.jsonl", "--headless").out


def test_text_of_a_transcript_does_nothing_to_the_terminal(ludus: Ludus, folder: Path):
    write_lines(folder / "one.jsonl", [{"role": "user", "content": "\x1b[2J[red]hello[/red]"}])
    done = ludus("transcripts", "one.jsonl")
    assert "\x1b[2J" not in done.out
    assert "[red]" in done.out


def test_a_path_that_is_not_there_is_an_error_that_says_what_to_name(ludus: Ludus, folder: Path):
    failed = ludus("transcripts", "nowhere")
    assert failed.code == 2
    assert "nowhere: there is no such file or folder; name a transcript" in failed.err
