"""Trajectories in ATIF: those that Ludus writes, and those of others."""

from pathlib import Path

from tests.build import make_completion, make_rollout, make_task, make_turn
from tests.transcripts_kit import read_one, write_json, write_lines

from ludus.rl.exporters import GroupSource
from ludus.rl.exporters.atif import export_atif
from ludus.types import Call, Message, Rollout, Score, ToolResult, Usage

OPENING = (Message("system", "You add."), Message("user", "Add up a.csv."))


def make_example() -> Rollout:
    call = Call("c1", "read", '{"path":"a.csv"}')
    turns = [
        make_turn("I look.", ToolResult(call, "x,1"), usage=Usage(10, 2, 4)),
        make_completion("It is 1.", usage=Usage(20, 3)),
    ]
    return make_rollout(Score.of(0.5, "half"), *turns, task=make_task(prompt="Add up a.csv."), opening=OPENING)


def test_what_ludus_exports_is_read_again(tmp_path: Path):
    rollout = make_example()
    row = export_atif(rollout, (), GroupSource("train"), "run-1", str)
    for path in (write_json(tmp_path / "t.json", row), write_lines(tmp_path / "t.jsonl", [row])):
        session = read_one(path)
        assert (session.format, session.id) == ("atif", "run-1")
        assert session.messages == rollout.messages
        assert session.usage == rollout.usage
        assert session.score == rollout.score
        assert (session.request, session.files) == ("Add up a.csv.", ("a.csv",))


def test_a_trajectory_of_others_has_times_pictures_and_sub_agents(tmp_path: Path):
    row = {
        "schema_version": "ATIF-v1.7",
        "session_id": "s",
        "agent": {"name": "other", "version": "2", "model_name": "m"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "Add.", "timestamp": "2026-01-01T00:00:00Z"},
            {
                "step_id": 2,
                "source": "agent",
                "message": [{"type": "text", "text": "See"}, {"type": "image", "source": {"path": "a.png"}}],
                "timestamp": "2026-01-01T00:01:00Z",
                "observation": {"results": [{"content": "out", "subagent_trajectory_ref": [{"session_id": "x"}]}]},
            },
            {"step_id": 3, "source": "user", "message": "No."},
        ],
        "subagent_trajectories": [{"schema_version": "ATIF-v1.7"}],
    }
    session = read_one(write_json(tmp_path / "t.json", row))
    assert (session.agent, session.model, session.score) == ("other 2", "m", None)
    assert session.begun is not None and session.ended == session.begun + 60
    assert session.feedback == ("No.",)
    assert session.dropped == {"sessions of sub-agents": 2, "pictures that are files of their own": 1}
