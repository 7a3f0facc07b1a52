"""Queries of past sessions: only what was loaded for the first request, masked, and marked."""

import json
from pathlib import Path

import pytest
from tests.test_catalogue import write_skill
from tests.transcripts_kit import CLAUDE_SESSION

from ludus.catalogue import SkillCard, make_catalogue
from ludus.cli import main
from ludus.transcripts.past_session import PastSession, PastSkill
from ludus.triggers.past_queries import make_past_queries
from ludus.types import Call, Message

CATALOGUE = make_catalogue([SkillCard("forms", "Fills forms."), SkillCard("csv-totals", "Adds columns of numbers.")])


def use(name: str, id: str = "1") -> Message:
    return Message("assistant", calls=(Call(id, "Skill", json.dumps({"skill": name})),))


def session(request: str, *messages: Message, feedback: tuple[str, ...] = (), **fields) -> PastSession:
    skills = tuple(
        PastSkill(name=json.loads(call.arguments)["skill"], seen=("called",))
        for message in messages
        for call in message.calls
    )
    said = (Message("user", request), *messages)
    facts = {"id": request, "format": "claude-code", "path": "a", "skills": skills, "masked": {}, **fields}
    return PastSession(request=request, messages=said, feedback=feedback, **facts)


def test_a_session_that_loaded_one_skill_for_its_request_gives_a_marked_query():
    found = make_past_queries([session("Complete the\nvisa application", use("forms"))], CATALOGUE)
    (row,) = found.rows
    assert (row.query, row.skill, row.source) == ("Complete the visa application", "forms", "transcript")
    assert not found.left_out


def test_a_skill_that_was_loaded_after_the_user_spoke_again_is_for_another_request():
    later = session("Hello", Message("assistant", "Hi."), Message("user", "Now add it up."), use("csv-totals"))
    both = [
        session("Hello", *later.messages[1:], feedback=("Now add it up.",)),
        session("Fill it", use("forms"), Message("user", "And add."), use("csv-totals", "2"), feedback=("And add.",)),
    ]
    found = make_past_queries(both, CATALOGUE)
    assert [(row.query, row.skill) for row in found.rows] == [("Fill it", "forms")]


def test_what_gives_no_query_is_counted_by_reason():
    sessions = [
        session("Other", use("something-else")),
        session("Both", use("forms"), use("csv-totals", "2")),
        session(" ", use("forms")),
        session("x" * 1001, use("forms")),
        session("Known already!", use("forms")),
        session("New", use("forms")),
        session("new", use("forms")),
    ]
    found = make_past_queries(sessions, CATALOGUE, ["known already"])
    assert [row.query for row in found.rows] == ["New"]
    assert sum(found.left_out.values()) == 6 and found.left_out["a query that is there already"] == 2


def test_a_session_that_is_not_masked_is_refused():
    with pytest.raises(ValueError, match="not masked"):
        make_past_queries([session("Fill it", use("forms"), masked=None)], CATALOGUE)


def test_the_command_reads_transcripts_without_a_model(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_skill(tmp_path / "skills" / "csv-totals", "csv-totals", "Adds columns of numbers.")
    Path("past.jsonl").write_text("".join(json.dumps(line) + "\n" for line in CLAUDE_SESSION))
    assert main(["triggers", "skills", "--transcripts", "past.jsonl", "--out", "new.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["transcripts"] == 1
    (row,) = map(json.loads, Path("new.jsonl").read_text().splitlines())
    assert (row["skill"], row["source"]) == ("csv-totals", "transcript")
    assert main(["triggers", "skills", "--transcripts", "nowhere", "--out", "new.jsonl"]) == 2
    assert main(["triggers", "skills", "--transcripts", "past.jsonl", "--out", "new.jsonl", "--json"]) == 0
    assert len(Path("new.jsonl").read_text().splitlines()) == 1, "a second time adds nothing"
