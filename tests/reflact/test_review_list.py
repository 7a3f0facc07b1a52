"""Changes on a terminal."""

from types import SimpleNamespace

import pytest

from ludus.reflact.review import ReviewDecision, ReviewState
from ludus.reflact.review_changes import list_changes
from ludus.reflact.review_list import print_changes
from ludus.reflact.train_settings import TrainSettings

LEDGER = TrainSettings(recipe="ledger", epochs=2)


def make_state(world: SimpleNamespace, *decisions: ReviewDecision) -> ReviewState:
    listed = list_changes(world.run(settings=LEDGER), LEDGER, "working")
    return ReviewState(listed=listed, decisions={each.change: each for each in decisions}, reviews=(), measures=())


def test_a_line_is_printed_with_its_evidence_and_its_decision(
    world: SimpleNamespace, capsys: pytest.CaptureFixture[str]
):
    state = make_state(world, ReviewDecision(change="L1", action="reject", reason="no\x1b[2J", who="ada"))
    print_changes(state, left_out=True)
    out = capsys.readouterr().out
    for words in ("L1  SKILL.md, line 3", "+ Obey RULE-", "situation  RULE-", "for        ", "helps with",
                  "decided    reject by ada: no␛[2J", "changes in 'working'"):  # fmt: skip
        assert words in out
    assert "\x1b" not in out
