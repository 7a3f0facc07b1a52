"""Rollouts of run directories, and sessions of the gateway."""

from pathlib import Path

import msgspec
from tests.build import make_completion, make_rollout
from tests.transcripts_kit import read, read_one

from ludus.encoding import to_json
from ludus.gateway.session import Exchange, SessionRecord
from ludus.session_runs import SESSIONS, SessionWriter
from ludus.store import RunDir
from ludus.types import Completion, Failure, Message, Provenance, RolloutTimes, Score, SkillUse

OPENING = (Message("user", "Add."),)


def make_record(name: str = "sum-3") -> SessionRecord:
    exchanges = (
        Exchange(api="chat", messages=OPENING, completion=Completion(Message("assistant", "It is 3."))),
        Exchange(
            api="chat", follows=0, messages=(Message("user", "No."),), completion=Completion(Message("assistant", "4."))
        ),
    )
    return SessionRecord(name=name, model="m", exchanges=exchanges, requests=2, started=1.7e9, seconds=5.0)


def test_a_run_directory_is_one_value(tmp_path: Path):
    skill = Provenance(policy="p", model="m", skill="abc123", versions={"agent": "codex@0.166.0"})
    used = make_rollout(
        Score.of(1.0, "right"),
        "It is 3.",
        opening=OPENING,
        provenance=skill,
        skill_use=SkillUse(loaded=True),
        times=RolloutTimes(1.7e9, {}),
        seconds=9.0,
    )
    with RunDir.open(tmp_path / "runs" / "one", {}) as run:
        run.put("k1", used)
        run.put("k2", make_rollout(None, failure=Failure("model", "down")))
        run.put("k3", msgspec.structs.replace(used, skill_use=SkillUse(loaded=False)))
    sessions, report = read(tmp_path)
    assert [session.id for session in sessions] == ["k1", "k3"]
    assert [file.sessions for file in report.files] == [2]
    session = sessions[0]
    assert (session.format, session.path) == ("ludus", str(tmp_path / "runs" / "one"))
    assert (session.agent, session.model, session.ended) == ("codex 0.166.0", "m", 1.7e9 + 9)
    assert session.score == Score.of(1.0, "right")
    assert [(skill.hash, skill.used) for session in sessions for skill in session.skills] == [
        ("abc123", True),
        ("abc123", False),
    ]
    assert report.dropped["rollouts that failed (no fault of the agent)"] == 1


def test_sessions_of_the_gateway_are_read_from_the_run_and_from_their_file(tmp_path: Path):
    with RunDir.open(tmp_path / "gate", {}) as run:
        SessionWriter(run, print)(make_record())
    from_run = read_one(tmp_path / "gate")
    from_file = read_one(tmp_path / "gate" / SESSIONS)
    for session in (from_run, from_file):
        assert session.format == "gateway"
        assert [message.content for message in session.messages] == ["Add.", "It is 3.", "No.", "4."]
        assert (session.request, session.feedback) == ("Add.", ("No.",))
    assert (from_file.begun, from_file.ended) == (1.7e9, 1.7e9 + 5)


def test_a_damaged_run_and_a_damaged_record_are_counted(tmp_path: Path):
    with RunDir.open(tmp_path / "runs" / "a", {}) as run:
        run.put("k", make_rollout(1.0, make_completion("x"), opening=OPENING))
    (tmp_path / "runs" / "a" / "store.sqlite").write_bytes(b"not a database, but long enough to look like one" * 40)
    broken = {**msgspec.json.decode(to_json(make_record())), "exchanges": [{"api": "none"}]}
    (tmp_path / "sessions.jsonl").write_bytes(to_json(make_record()) + b"\n" + to_json(broken) + b"\n")
    sessions, report = read(tmp_path)
    assert len(sessions) == 1
    assert report.dropped["run directories that cannot be read"] == 1
    assert report.dropped["lines of another format"] == 1
