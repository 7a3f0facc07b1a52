"""Claims: nothing without a working instrument, and a gain that another skill pays for is said and shown."""

from pathlib import Path

from msgspec.structs import replace
from tests.triggers.test_trigger_stats import make_result

from ludus.catalogue import SkillCard, make_catalogue
from ludus.triggers.claims import TriggerOutcome, make_claim
from ludus.triggers.controls import ControlReport
from ludus.triggers.trigger_stats import make_report
from ludus.triggers.trigger_table import print_triggers

NAMES = ("forms", "sheets")
WORKS = ControlReport(same=None, winner=1.0, loser=0.0, apart=None, problems=())
BEFORE = [make_result(f"f{n}", "forms", {"sheets": 4}) for n in range(8)]
BEFORE += [make_result(f"s{n}", "sheets", {"sheets": 4}) for n in range(4)]
AFTER = [make_result(f"f{n}", "forms", {"forms": 4}) for n in range(8)]
AFTER += [
    make_result("s0", "sheets", {"forms": 4}),
    *(make_result(f"s{n}", "sheets", {"sheets": 4}) for n in (1, 2, 3)),
]


def test_a_gain_that_another_skill_pays_for_is_said_and_shown(capsys):
    claim = make_claim(WORKS, AFTER, BEFORE, NAMES)
    assert claim.gain and claim.paid == ("sheets",)
    assert claim.sentence.endswith("Queries of sheets do worse.")
    trained = make_catalogue([SkillCard("forms", "New."), SkillCard("sheets", "Sums.")])
    outcome = TriggerOutcome(controls=WORKS, report=make_report(BEFORE, NAMES), claim=claim, trained=trained)
    print_triggers(outcome, Path("run"))
    shown = capsys.readouterr().out
    assert "Queries of sheets do worse." in shown.replace("\n", " ")
    (row,) = [line for line in shown.splitlines() if "sheets" in line and "-25.0 points" in line]
    assert "100%" in row and "75%" in row, "recall before and after"


def test_without_a_working_instrument_nothing_is_claimed():
    claim = make_claim(replace(WORKS, problems=("blind",)), AFTER, BEFORE, NAMES)
    assert (claim.gain, claim.paired) == (False, None)


def test_a_gain_that_chance_explains_is_no_claim():
    one = [make_result("f0", "forms", {"forms": 4}), *BEFORE[1:]]
    claim = make_claim(WORKS, one, BEFORE, NAMES)
    assert not claim.gain and claim.sentence.startswith("No difference can be claimed")
