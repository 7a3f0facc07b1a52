"""Each line with the rollouts behind its numbers."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.ledger_kit import make_line, make_situation

from ludus.reflact.ledger.line_records import Assessment, LineLedger
from ludus.reflact.ledger.settings import LedgerSettings
from ludus.reflact.records import Record, Step
from ludus.reflact.report.line_histories import (
    LineEvent,
    LineHistory,
    collect_histories,
    describe_event,
    describe_situation,
    describe_worth,
)
from ludus.reflact.train_settings import TrainSettings

SETTINGS = TrainSettings(recipe="ledger", epochs=6, ledger=LedgerSettings(batch_size=6), optimizer_tries=1)
TUNING = SETTINGS.ledger.tuning


def train(world: SimpleNamespace) -> list[Record]:
    """A run with lines that help and one that harms."""

    def replies(messages: Any) -> Any:
        reply = world.optimizer(messages)
        for item in reply.get("items", ()):
            item["content"] = world.HARM if item["content"].endswith("RULE-1.") else item["content"]
        return reply

    return world.run(settings=SETTINGS, splits=world.splits(train=12), optimizer=world.optimizer_model(replies))


def test_every_number_of_the_ledger_is_followed_to_rollouts(world: SimpleNamespace):
    records = train(world)
    ledger = records[-1].state.ledger
    assert isinstance(ledger, LineLedger)
    histories = collect_histories(records, TUNING)
    assert sorted((history.line for history in histories), key=lambda line: int(line.id[1:])) == list(ledger.lines)
    steps = {record.number: record for record in records if isinstance(record, Step)}
    for history in histories:
        line = history.line
        assert len(history.evidence_for) == line.held
        assert len(history.evidence_for) + len(history.evidence_against) == line.tries
        assert len(history.suspected) == line.suspected
        for place in (*history.evidence_for, *history.evidence_against, *history.suspected):
            lines = steps[place.step].lines
            assert lines is not None
            assert any(r.task == place.task and line.id in r.lines for r in lines.readings)
        assert history.passed <= history.rollouts
    assert any(history.evidence_for for history in histories) and any(history.suspected for history in histories)


def test_lines_have_a_history_and_those_at_work_come_first(world: SimpleNamespace):
    histories = collect_histories(train(world), TUNING)
    statuses = [history.status for history in histories]
    assert statuses == sorted(statuses, key=["working", "waiting", "retired"].index) and statuses[0] == "working"
    for history in histories:
        assert history.events[0] == LineEvent(history.line.born, "new")
        assert any(event.change == "retired" for event in history.events) >= (history.status == "retired")
        assert (history.assessment is None) == (history.status == "retired")


def test_other_recipes_have_no_lines(world: SimpleNamespace):
    assert collect_histories(world.run(), TUNING) == []
    assert collect_histories([], TUNING) == []


def make_history(**more: Any) -> LineHistory:
    return LineHistory(
        line=make_line("L1", weight=0.0), situation=make_situation("s"), working=True, evidence_for=(),
        evidence_against=(), suspected=(), rollouts=0, passed=0, events=(), **more,
    )  # fmt: skip


def test_words():
    assert describe_worth(make_history(assessment=None)) == "works with 50%"
    worth = describe_worth(make_history(assessment=Assessment(0.1, 0.042, 0.01, 0.9)))
    assert worth == "works with 50%, worth +4.2 points (pays with 90%)"
    assert describe_situation(make_situation("s", ["t1"])) == "it spoiled 1 train task"
    assert "came back in 1 of 3 rollouts" in describe_situation(make_situation("s", ["t1", "t2"], 3, 1))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (LineEvent(2, "new"), "step 2: proposed"),
        (LineEvent(3, "entered", "net gain"), "step 3: entered the working text (net gain)"),
        (LineEvent(4, "retired", "it does not work"), "step 4: retired (it does not work)"),
    ],
)
def test_events_in_words(event: LineEvent, words: str):
    assert describe_event(event) == words
