"""Lines of a package move to where the tasks that need them read."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.ledger_kit import make_line, make_situation

from ludus.reflact.ledger.line_records import Assessment, FileReads, Gaussian, LineLedger, compose_text
from ludus.reflact.ledger.placement import KindNeeds, learn_needs, move_lines
from ludus.reflact.ledger.settings import LedgerTuning
from ludus.reflact.train_settings import PackageSettings
from ludus.skill import Skill, SkillFile

TUNING = LedgerTuning()
PATH = "references/a.md"
BASE = Skill("---\nname: a\ndescription: d\n---\n\nWork.\n", (SkillFile(PATH, "# A\n"),))


def make_ledger(path: str, called: list[str], cost: float = 0.0, **more: object) -> LineLedger:
    """A line that works, on tasks of kind A (a0 …) that read the file, and of kind B (b0 …) that do not."""
    line = make_line("L1", weight=2.0)
    line = replace(line, edit=replace(line.edit, path=path), pointer="- For A: read references/a.md")
    return LineLedger(
        lines=(line,),
        situations=(make_situation(called=called, tries=6, named=4),),
        seen={f"{kind}{n}": kind.upper() for kind in "ab" for n in range(6)},
        working=("L1",),
        assessed={"L1": Assessment(0.02, 0.02, 0.01, 0.9)},
        reads={f"A\t{PATH}": FileReads(9, 9), f"B\t{PATH}": FileReads(0, 9)},
        beliefs={"any effect": Gaussian(-cost, 0.0001)},
        **more,  # pyright: ignore
    )


def find_path(ledger: LineLedger, limits: PackageSettings = PackageSettings()) -> str:
    moved, changes = move_lines(ledger, BASE, TUNING, limits)
    (line,) = moved.lines
    assert bool(changes) == (line != ledger.lines[0]) and line.weight == ledger.lines[0].weight
    return line.edit.path


def test_a_line_moves_up_when_tasks_that_do_not_read_its_file_call_for_it():
    assert find_path(make_ledger(PATH, ["a0", "a1"])) == PATH
    assert find_path(make_ledger(PATH, ["a0", "a1", "b0"])) == PATH, "one task may be an error of an analyst"
    assert find_path(make_ledger(PATH, ["a0", "a1", "b0", "b1"])) == ""
    assert find_path(make_ledger(PATH, ["b0", "b1"])) == "", "it is in the file of another kind"
    assert find_path(make_ledger(PATH, ["c0"])) == PATH, "the task was not seen"


def add_situations(ledger: LineLedger, called: list[list[str]]) -> LineLedger:
    """The ledger with working lines of the document, about further situations."""
    more = [make_line(f"L{n}", f"s{n}", weight=3.0) for n in range(2, 2 + len(called))]
    situations = [make_situation(f"s{n}", tasks, tries=6, named=4) for n, tasks in enumerate(called, 2)]
    return replace(
        ledger,
        lines=(*ledger.lines, *more),
        situations=(*ledger.situations, *situations),
        working=tuple(line.id for line in (*ledger.lines, *more)),
    )


def test_what_other_situations_need_tells_where_a_line_with_little_evidence_belongs():
    ledger = make_ledger(PATH, ["a0"])
    alike = add_situations(ledger, [["a0", "a1", "b1", "b2"]] * 12)
    apart = add_situations(ledger, [["a0", "a1", "a2", "a3"], ["b0", "b1", "b2", "b3"]] * 6)
    assert learn_needs(alike).single < 0.2 < 0.8 < learn_needs(apart).single
    assert move_lines(alike, BASE, TUNING, PackageSettings())[0].lines[0].edit.path == ""
    assert move_lines(apart, BASE, TUNING, PackageSettings())[0].lines[0].edit.path == PATH


def test_a_line_that_nothing_is_known_about_goes_up_too_and_down_only_if_it_works():
    ledger = make_ledger(PATH, ["a0", "b0", "b1", "b2"])
    untried = replace(ledger, lines=(replace(ledger.lines[0], weight=0.0),), assessed={})
    assert move_lines(untried, BASE, TUNING, PackageSettings())[0].lines[0].edit.path == ""
    down = make_ledger("", ["a0", "a1", "a2"], cost=0.3)
    doubtful = replace(down, lines=(replace(down.lines[0], weight=0.0),))
    assert move_lines(doubtful, BASE, TUNING, PackageSettings())[0].lines[0].edit.path == ""


def test_kinds_that_call_unevenly_may_still_all_need_the_same():
    needs = KindNeeds(dict.fromkeys("abcd", 0.25), 0.2)
    assert needs.weigh({"a": 2, "b": 2})[None] > 0.9
    assert needs.weigh({"a": 4, "b": 1})[None] > 0.5, "one kind has it more often, and another one has it too"
    assert needs.weigh({"a": 4})[None] < 0.5
    assert needs.weigh({"a": 12, "b": 1})[None] < 0.1, "so many of one kind are no chance, and one task may be an error"


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2000), min_size=1), st.floats(0.001, 0.999))
def test_probabilities_stay_probabilities_for_any_number_of_tasks(kinds: dict[str, int], single: float):
    chances = KindNeeds(dict.fromkeys("abcdefgh", 1 / 8), single).weigh(kinds)
    assert abs(sum(chances.values()) - 1.0) < 1e-9 and all(0.0 <= chance <= 1.0 for chance in chances.values())


def test_a_line_moves_down_only_where_text_in_the_document_costs_something():
    alone = ["a0", "a1", "a2"]
    assert find_path(make_ledger("", alone)) == ""
    assert find_path(make_ledger("", alone, cost=0.3)) == PATH
    assert find_path(make_ledger("", ["a0", "b0", "b1", "b2"], cost=0.05)) == "", "the other kind needs it more"


def test_a_move_stays_within_the_budget_of_a_level():
    ledger = make_ledger(PATH, ["b0", "b1"])
    ledger = replace(ledger, lines=(replace(ledger.lines[0], pointer=""),))
    assert find_path(ledger, PackageSettings(body_tokens=1)) == PATH


def test_nothing_moves_in_a_skill_of_one_document():
    ledger = replace(make_ledger("", ["a0", "a1", "a2"], cost=0.3), reads={})
    assert move_lines(ledger, BASE, TUNING, PackageSettings()) == (ledger, ())


def test_a_pointer_comes_and_goes_with_the_lines_of_its_file():
    (line,) = make_ledger(PATH, []).lines
    other = replace(line, id="L2", edit=replace(line.edit, content="Other."))
    text = compose_text(BASE, [line, other])[0].text
    assert text.count("- For A: read references/a.md") == 1
    assert compose_text(BASE, [])[0] == BASE
    named = BASE.change_text(BASE.text + "Read references/a.md.\n")
    assert compose_text(named, [line])[0].text == named.text
    gone = replace(line, edit=replace(line.edit, op="remove"))
    assert "For A" not in compose_text(BASE, [gone])[0].text
