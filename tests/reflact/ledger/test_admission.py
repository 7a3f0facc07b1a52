"""What becomes of proposals."""

import pytest
from msgspec.structs import replace
from tests.ledger_kit import make_ledger, make_line, make_situation, propose

from ludus.reflact.ledger.admission import admit_proposals, compute_prior, place_edit
from ludus.reflact.ledger.line_records import compute_logit
from ludus.reflact.ledger.settings import LedgerTuning
from ludus.skill import Edit, Skill

TUNING = LedgerTuning()


def test_a_proposal_becomes_a_line_and_its_tasks_call_for_it():
    ledger, (change,) = admit_proposals(make_ledger(), [propose("Do it.", "s", ["t1", "t2"])], 3, TUNING)
    (line,) = ledger.lines
    assert (line.id, line.born, line.edit.content, change.change) == ("L1", 3, "Do it.", "new")
    assert line.weight == line.birth_weight == pytest.approx(compute_logit(0.6))
    assert ledger.situations == (make_situation("s", ["t1", "t2"]),)


def test_an_untried_line_about_the_same_situation_is_tried_first():
    ledger = make_ledger([make_line("L1")], [make_situation("the unit is missing", ["t1"])])
    ledger = replace(ledger, lines=(make_line("L1", "the unit is missing"),))
    after, (change,) = admit_proposals(ledger, [propose("Another.", "units missing", ["t4"])], 2, TUNING)
    assert len(after.lines) == 1 and change.change == "dropped" and "L1" in change.reason
    assert after.situations[0].called == ("t1", "t4")


def test_a_situation_that_does_not_come_back_needs_no_line():
    ledger = make_ledger([], [make_situation("s", ["t1"], tries=14)])
    after, (change,) = admit_proposals(ledger, [propose("Do it.")], 2, TUNING)
    assert after == ledger and change.reason == "its situation does not come back"


def test_the_same_text_revives_its_line_from_the_prior_and_keeps_what_it_is_suspected_of():
    old = make_line("L1", text="Do  it.", weight=-3.0, birth_weight=0.4, retired=2, reason="no", harm={"a": 1.0})
    ledger = make_ledger([old])
    after, (change,) = admit_proposals(ledger, [propose("Do it.")], 5, TUNING)
    line = after.lines[0]
    assert (line.retired, line.harm, change.change) == (0, {"a": 1.0}, "revived")
    assert line.weight == line.birth_weight == pytest.approx(compute_logit(compute_prior(ledger, TUNING)))
    after, (change,) = admit_proposals(after, [propose("Do it.")], 6, TUNING)
    assert (len(after.lines), change.change) == (1, "dropped")


def test_the_same_text_for_another_document_of_a_package_is_the_same_line():
    """Where it belongs, the tasks that call for it decide (`placement`)."""
    old = make_line("L1", text="Do it.", weight=2.0, birth_weight=0.4)
    ledger = make_ledger([replace(old, edit=replace(old.edit, path="references/a.md"))])
    for path, op, status in [("references/b.md", "append", "dropped"), ("", "append", "dropped"),
                             ("scripts/a.py", "write", "new"), ("data.csv", "append", "new")]:  # fmt: skip
        proposal = propose("Do it.", tasks=["t7"])
        proposal = replace(proposal, edit=replace(proposal.edit, op=op, path=path))
        after, (change,) = admit_proposals(ledger, [proposal], 5, TUNING)
        assert change.change == status and "t7" in after.situations[0].called
    passage = replace(old, id="P1", passage=True, situation="passage P1")
    after, (change,) = admit_proposals(make_ledger([passage]), [propose("Do it.")], 5, TUNING)
    assert change.change == "dropped", "the document has it"


def test_labels_with_the_same_line_and_a_common_task_become_one_situation():
    known = [make_situation("units", ["t1", "t2"], tries=3, named=2), make_situation("measure", ["t2", "t3"], tries=1)]
    ledger = make_ledger([make_line("L1", "units", text="Write units.")], known)
    after, _ = admit_proposals(ledger, [propose("Write units.", "measure", ["t3"])], 5, TUNING)
    assert [(s.label, s.called, s.tries, s.named) for s in after.situations] == [("units", ("t1", "t2", "t3"), 4, 2)]
    assert after.merged == {"measure": "units"}
    after, _ = admit_proposals(after, [propose("Better.", "measure", ["t4"])], 6, TUNING)
    assert [situation.label for situation in after.situations] == ["units"]
    apart = make_ledger([make_line("L1", "units", text="Take care.")], [known[0], make_situation("dates", ["t9"])])
    after, _ = admit_proposals(apart, [propose("Take care.", "dates", ["t9"])], 5, TUNING)
    assert not after.merged, "no task in common: the text is only general"


def test_a_better_version_of_a_line_is_about_the_same_situation_whatever_its_label_says():
    known = [make_situation("units", ["t1", "t2"]), make_situation("measure", ["t2", "t3"])]
    ledger = make_ledger([make_line("L1", "units", weight=2.0, birth_weight=0.4)], known)
    after, _ = admit_proposals(ledger, [propose("Write each unit.", "measure", ["t3"], replaces="L1")], 5, TUNING)
    assert after.merged == {"measure": "units"} and [line.situation for line in after.lines] == ["units", "units"]
    apart = make_ledger([make_line("L1", "units", weight=2.0, birth_weight=0.4)], [known[0], make_situation("dates")])
    after, _ = admit_proposals(apart, [propose("Write each unit.", "dates", ["t9"], replaces="L1")], 5, TUNING)
    assert not after.merged and after.lines[1].situation == "units", "they compete, but the labels stay apart"


def test_a_replacement_starts_with_the_weight_of_the_old_line_and_both_compete():
    old = make_line("L1", weight=-1.0, birth_weight=0.4)
    after, _ = admit_proposals(make_ledger([old]), [propose("Better.", replaces="L1")], 2, TUNING)
    assert [(line.id, line.weight, line.is_alive) for line in after.lines] == [("L1", -1.0, True), ("L2", -1.0, True)]


def test_of_too_many_lines_the_least_likely_is_retired():
    lines = [make_line(f"L{n}", weight=float(n), birth_weight=-3.0) for n in (1, 2, 3)]
    ledger = replace(make_ledger(lines), working=("L1",))
    after, changes = admit_proposals(ledger, [propose("A fourth.")], 9, TUNING)
    assert len(after.alive) == 3 and changes[-1].change == "retired"
    assert set(after.working) <= {line.id for line in after.alive}


def test_the_prior_follows_the_lines_that_are_settled():
    good = [make_line(f"L{n}", weight=4.0, birth_weight=0.4) for n in range(6)]
    bad = [make_line(f"L{n}", weight=-4.0, birth_weight=0.4, retired=1) for n in range(20)]
    assert compute_prior(make_ledger(), TUNING) == pytest.approx(0.6)
    assert compute_prior(make_ledger(good), TUNING) > 0.8
    assert compute_prior(make_ledger(bad), TUNING) == pytest.approx(0.1, abs=0.03)


def test_edits_of_the_working_text_become_edits_of_the_initial_skill():
    initial, lines = Skill("Be kind.\n"), [make_line("L1", text="Count twice. Then answer.")]
    own = Edit("replace", "Be quick.", "Be kind.")
    assert place_edit(own, initial, lines) == (own, "")
    assert place_edit(Edit("replace", "Count thrice.", "Count twice."), initial, lines) == (
        Edit("append", "Count thrice. Then answer."),
        "L1",
    )
    assert place_edit(Edit("insert_after", "More.", "Then answer."), initial, lines) == (Edit("append", "More."), "")
    nowhere = Edit("replace", "x", "no such text")
    assert place_edit(nowhere, initial, lines) == (nowhere, "")
