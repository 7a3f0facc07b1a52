"""Lines, situations, and the text that lines make."""

import pytest
from msgspec.structs import replace
from tests.ledger_kit import make_ledger, make_line, make_situation

from ludus.reflact.ledger.line_records import compose_text, compute_logit, compute_sigmoid
from ludus.skill import Edit, Skill, apply_edits, set_guidance


def test_a_text_is_the_initial_skill_with_lines_and_says_which_are_in_it():
    initial = Skill("# Skill\n\nBe kind.\n")
    lines = (make_line("L1", text="One."), make_line("L2", text="Two."))
    assert compose_text(initial, lines) == (Skill("# Skill\n\nBe kind.\n\nOne.\n\nTwo.\n"), ("L1", "L2"))
    assert compose_text(initial, ()) == (initial, ())


def test_a_line_may_change_a_passage_of_the_initial_skill_and_two_cannot_change_the_same():
    initial = Skill("Be kind.\n")
    lines = [
        replace(make_line(f"L{n}"), edit=Edit("replace", f"Be {word}.", "Be kind."))
        for n, word in enumerate(("quick", "slow"), 1)
    ]
    assert compose_text(initial, lines) == (Skill("Be quick.\n"), ("L1",))


@pytest.mark.parametrize(
    "initial", ["", "# Skill\n", "Text without an end", "<!-- APPENDIX_START -->\n- a\n<!-- APPENDIX_END -->\n"]
)
@pytest.mark.parametrize(
    "texts", [["One."], ["  One.\n", "Two.\n\nmore"], ["One.", "<!-- APPENDIX_START -->x"], ["```\ncode", "Two."]]
)
def test_a_text_is_what_the_edits_make_of_it(initial: str, texts: list[str]):
    lines = [make_line(f"L{n}", text=text) for n, text in enumerate(texts)]
    expected, reports = apply_edits(Skill(initial), [line.edit for line in lines])
    assert compose_text(Skill(initial), lines) == (expected, tuple(line.id for line in lines))
    assert all(report.applied for report in reports)


@pytest.mark.parametrize(
    "texts", [["---\nname: Mine\n---\n\nText"], ["---\nname: mine", "description: x\n---\n"], ["---\nanything: 1\n---"]]
)
def test_lines_never_become_front_matter(texts: list[str]):
    lines = [make_line(f"L{n}", text=text) for n, text in enumerate(texts)]
    skill, present = compose_text(Skill(""), lines)
    assert skill.front is None and len(present) == len(texts) - 1
    assert compose_text(Skill(""), [make_line("L1", text="---\nA rule above.")])[1] == ("L1",)


def test_protected_regions_stay():
    initial = set_guidance(Skill("# Skill\n"), "Lasting.")
    skill, present = compose_text(initial, [make_line("L1", text="One.")])
    assert present == ("L1",) and skill.text.index("One.") < skill.text.index("Lasting.")


def test_what_a_line_and_a_situation_say_about_themselves():
    line = make_line("L1", weight=0.0)
    assert (line.works, line.is_alive, line.is_untried, line.is_settled) == (0.5, True, True, False)
    assert make_line("L1", weight=2.0, birth_weight=0.4).is_settled
    assert make_line("L1", retired=3).is_settled
    assert make_situation().rate == 0.5
    assert make_situation(tries=13, named=0).is_refuted and not make_situation(tries=12, named=0).is_refuted
    kept = make_situation(called=["t1", "t2"], tries=30, named=2, t1=(27, 0), t2=(3, 2))
    assert not kept.is_refuted and kept.get_rate("t1") < 0.01 < 0.3 < kept.get_rate("t2"), "each task for itself"
    assert kept.get_rate("t3") == pytest.approx(kept.rate)
    assert list(kept.rates) == [kept.get_rate(task) for task in kept.called], "written twice: all at once is faster"
    assert make_ledger([make_line("L2"), make_line("L1", retired=1)]).alive == (make_line("L2"),)
    assert compute_sigmoid(compute_logit(0.3)) == pytest.approx(0.3)
