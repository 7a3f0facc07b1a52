"""What happened to a run, as lines of its directory."""

from pathlib import Path

from ludus.activity import ActivityReport, PhaseCount
from ludus.run_events import EVENTS, append_event, read_events
from ludus.store import RunDir


def test_events_are_kept_in_their_order_and_damaged_lines_are_left_out(tmp_path: Path):
    with RunDir.open(tmp_path / "r", {}) as run:
        append_event(run, "control", "paused", who="ann")
        run.append(EVENTS, b'{"time": "never"}')
        append_event(run, "quiet", "nothing moves", facts=ActivityReport((PhaseCount("slot", 1, 2.0, "a"),)))
    with RunDir.read(tmp_path / "r") as run:
        first, second = read_events(run)
    assert (first.kind, first.text, first.who, first.facts) == ("control", "paused", "ann", {})
    assert second.facts["phases"] == [{"phase": "slot", "count": 1, "oldest": 2.0, "who": "a"}]
    assert 0 < first.time <= second.time


def test_a_run_without_events_has_none(tmp_path: Path):
    with RunDir.open(tmp_path / "r", {}) as run:
        assert list(read_events(run)) == []
