"""Lines of files count only where the files were read."""

import pytest
from msgspec.structs import replace
from tests.ledger_kit import make_ledger, make_line, make_situation, read

from ludus.reflact.ledger.assessment import assess_lines
from ludus.reflact.ledger.credit import add_readings
from ludus.reflact.ledger.file_reach import find_unread, get_reach
from ludus.reflact.ledger.line_records import Line, LineLedger
from ludus.reflact.ledger.settings import LedgerTuning
from ludus.types import SkillUse

TUNING = LedgerTuning()
PATH = "references/a.md"


def at(line: Line, path: str = PATH, op: str = "append") -> Line:
    return replace(line, edit=replace(line.edit, path=path, op=op))


LINES = (make_line("L1"), at(make_line("L2")), at(make_line("L3"), "scripts/x.py", "write"))


@pytest.mark.parametrize(
    ("use", "unread"),
    [
        (None, ()),
        (SkillUse(loaded=True), ("L2", "L3")),
        (SkillUse(loaded=True, opened=(PATH,)), ("L3",)),
        (SkillUse(loaded=True, shown=(PATH,), changed=("scripts/x.py",)), ()),
        (SkillUse(loaded=True, unseen="no access times"), ()),
        (SkillUse(loaded=None), ("L2", "L3")),
        (SkillUse(loaded=False, unseen="no access times"), ("L1", "L2", "L3")),
    ],
)
def test_what_was_not_read_cannot_have_acted(use: SkillUse | None, unread: tuple[str, ...]):
    assert find_unread(LINES, use) == unread


def test_a_file_that_was_removed_acts_without_being_read():
    assert find_unread([at(make_line("L1"), PATH, "remove")], SkillUse(loaded=True)) == ()


def make_one(**more: object) -> LineLedger:
    situation = make_situation(called=["t0"], tries=2, named=2)
    return replace(make_ledger([at(make_line("L1", weight=1.0))], [situation]), **more)  # pyright: ignore


def test_a_rollout_that_did_not_read_the_file_is_no_evidence_for_its_line():
    ledger = make_one()
    after = add_readings(ledger, [read("t0", False, named=["s"], unread=("L1",))], TUNING)
    (before,), (line,) = ledger.lines, after.lines
    assert (line.weight, line.tries, line.harm) == (before.weight, before.tries, before.harm)
    assert line.unread == 1, "but it shows that the line is not reached"
    assert after.situations[0].tries == ledger.situations[0].tries + 1, "and it is a rollout without the line"
    assert "effect/L1/" not in after.beliefs


def test_a_line_that_nobody_reads_is_worth_less_and_less():
    ledger = make_one()
    nets: list[float] = []
    for _ in range(4):
        ledger = add_readings(ledger, [read("t0", False, named=["s"], unread=("L1",))], TUNING)
        nets.append(assess_lines(ledger, TUNING)["L1"].gain)
    assert nets == sorted(nets, reverse=True) and nets[-1] < 0.6 * nets[0]
    assert not ledger.lines[0].is_untried, "so another proposal about its situation is not kept waiting"


def test_how_often_a_file_is_read_is_known_by_kind():
    ledger = make_one()
    readings = [
        *[read("t0", True, ["L1"], kind="A")] * 3,
        *[read("t1", True, unread=("L1",), kind="B")] * 3,
    ]
    ledger = add_readings(ledger, readings, TUNING)
    line = ledger.lines[0]
    assert get_reach(ledger, line, "A") == 1.0 and get_reach(ledger, line, "B") == 0.25
    assert get_reach(ledger, line, "new kind") == 1.0 and get_reach(ledger, make_line("L9"), "B") == 1.0
