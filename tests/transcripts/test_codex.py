"""Sessions of Codex."""

from pathlib import Path

from tests.transcripts_kit import CODEX_SESSION, codex, item, list_roles, read, read_one, spoken, write_lines

from ludus.types import Usage


def test_a_session_becomes_messages_with_what_the_user_said_and_which_skills_were_used(tmp_path: Path):
    session = read_one(write_lines(tmp_path / "rollout-1.jsonl", CODEX_SESSION))
    assert (session.format, session.id, session.agent) == ("codex", "01a1f04d", "codex 0.166.0")
    assert (session.project, session.model) == ("/home/jane/shop", "m-2")
    assert session.begun is not None and session.ended is not None and session.ended - session.begun == 40
    assert list_roles(session) == "system system user user assistant tool assistant tool assistant user assistant"
    assert session.request == "Add up the second column of a.csv."
    assert session.feedback == ("No, in cents please.",)
    first = session.messages[4]
    assert first.reasoning is not None and first.reasoning.text == "Look at the skill."
    assert [call.name for call in first.calls] == ["exec_command"]
    assert session.files == ("total.txt",)
    assert session.usage == Usage(90, 7, 40)
    assert {skill.name: (skill.path, skill.seen) for skill in session.skills} == {
        "csv-totals": ("/home/jane/.agents/skills/csv-totals/SKILL.md", ("listed", "read")),
        "review": ("/opt/skills/review/SKILL.md", ("listed",)),
    }
    assert session.dropped == {}


def test_older_versions_say_in_events_what_the_user_said(tmp_path: Path):
    lines = [
        codex("session_meta", id="s", cwd="/x", cli_version="0.60.0", originator="codex_cli_rs", source="cli"),
        spoken("user", "<something_new>told by the program</something_new>"),
        codex("event_msg", type="user_message", message="Do it.", kind="plain"),
        spoken("user", "Do it."),
        spoken("assistant", "Done."),
    ]
    session = read_one(write_lines(tmp_path / "rollout-1.jsonl", lines))
    assert (session.request, session.feedback) == ("Do it.", ())


def test_the_first_versions_wrote_items_without_a_frame(tmp_path: Path):
    lines = [
        {"id": "old", "timestamp": "2025-07-01T10:00:00Z", "instructions": "Be brief."},
        {"record_type": "state"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Do it."}]},
        {"type": "local_shell_call", "call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "c", "output": "a.txt"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    ]
    session = read_one(write_lines(tmp_path / "rollout-1.jsonl", lines))
    assert (session.id, session.request) == ("old", "Do it.")
    assert [message.role for message in session.messages] == ["system", "user", "assistant", "tool", "assistant"]


def test_turns_that_the_user_took_back_are_left_out_and_counted(tmp_path: Path):
    lines = [
        codex("session_meta", id="s", source="cli"),
        spoken("user", "First.", "user"),
        spoken("assistant", "One."),
        spoken("user", "Wrong way.", "user"),
        spoken("assistant", "Lost."),
        codex("event_msg", type="thread_rolled_back", num_turns=1),
        spoken("user", "Another way.", "user"),
        codex("compacted", message="They worked."),
        item("web_search_call", status="completed"),
    ]
    session = read_one(write_lines(tmp_path / "rollout-1.jsonl", lines))
    assert [message.content for message in session.messages] == ["First.", "One.", "Another way."]
    assert session.dropped == {
        "messages that the user took back": 2,
        "summaries in place of earlier messages": 1,
        "items of the type 'web_search_call'": 1,
    }


def test_sub_agents_and_sessions_without_a_user_are_left_out_and_counted(tmp_path: Path):
    said = [spoken("user", "Do it.", "user"), spoken("assistant", "Done.")]
    source = {"subagent": {"thread_spawn": {"depth": 1}}}
    write_lines(tmp_path / "rollout-1.jsonl", [codex("session_meta", id="a", source=source), *said])
    write_lines(tmp_path / "rollout-2.jsonl", [codex("session_meta", id="b", source="exec"), *said])
    sessions, report = read(tmp_path)
    assert sessions == []
    assert report.dropped["sessions of sub-agents"] == report.dropped["sessions without a user (headless)"] == 1
    sessions, _ = read(tmp_path, headless=True)
    assert [session.id for session in sessions] == ["b"]
