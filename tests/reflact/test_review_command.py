"""`ludus review`."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli_kit import Ludus, train_words, write_rules

from ludus.skill import parse_file

pytestmark = pytest.mark.usefixtures("folder")
Typed = Callable[[str], str]


@pytest.fixture
def trained(ludus: Ludus, folder: Path) -> Path:
    """A finished training run that shipped a new skill."""
    write_rules(folder)
    assert ludus(*train_words("--out", "run", "--quiet")).code == 0
    return folder / "run"


@pytest.fixture
def typed(ludus: Ludus, monkeypatch: pytest.MonkeyPatch) -> Typed:
    """`ludus review run` with what a user types; returns what it prints."""

    def run(text: str) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        done = ludus("review", "run")
        assert done.code == 0, done.err
        return done.out

    return run


def read_changes(ludus: Ludus, *words: str) -> dict[str, object]:
    return json.loads(ludus("review", "run", "--list", "--json", *words).out)


def list_ids(ludus: Ludus, *words: str) -> list[str]:
    return [change["id"] for change in read_changes(ludus, *words)["changes"] if change["included"]]  # type: ignore


def test_changes_are_listed_with_their_evidence(ludus: Ludus, trained: Path):
    done = ludus("review", "run", "--list")
    assert done.code == 0, done.err
    for words in ("S1.1  SKILL.md, line", "written    in step 1", "points [", "changes in 'shipped'", "undecided"):
        assert words in done.out
    found = read_changes(ludus)
    assert found["version"] == "shipped" and found["undecided"] == list_ids(ludus)
    assert ludus("review", "run", "--list", "--version", "working").code == 0


def test_decisions_as_arguments_make_a_version(ludus: Ludus, trained: Path):
    first, *rest = list_ids(ludus)
    shipped = (trained / "best/SKILL.md").read_bytes()
    done = ludus("review", "run", "--reject", first, "--reason", "not for us", "--accept-all", "--who", "ada", "--json")
    assert done.code == 0, done.err
    review = json.loads(done.out)["review"]
    assert [each["action"] for each in review["decisions"]] == ["reject", *["accept"] * len(rest)]
    assert review["who"] == "ada" and review["chosen_by"] == "person" and review["undecided"] == []
    assert parse_file((trained / "reviewed/SKILL.md").read_text()).text == review["skill"]["text"]
    assert (trained / "best/SKILL.md").read_bytes() == shipped
    assert "review 1 of the skill 'shipped' by a person" in ludus("show", "run").out
    done = ludus("review", "run", "--edit", first, "--text", "Mine.", "--reason", "better")
    assert done.code == 0 and "review 2" in done.out and "--measure" in done.out
    assert "Mine." in (trained / "reviewed/SKILL.md").read_text()


def test_mistakes_are_named_and_nothing_is_stored(ludus: Ludus, trained: Path):
    first = list_ids(ludus)[0]
    for words, message in (
        (("--reject", first), "give a reason to reject it"),
        (("--reject", "S9.9", "--reason", "x"), "has no change S9.9"),
        (("--accept", first, "--reject", first, "--reason", "x"), "given twice"),
        (("--text", "x", "--accept", first), "name the change with --edit"),
        (("--version", "nine"), "this run has no such version"),
        (("--json",), "add --list"),
        (("--measure",), "no finished review"),
    ):
        done = ludus("review", "run", *words)
        assert done.code != 0 and message in done.err, words
    assert read_changes(ludus)["decisions"] == {} and not (trained / "reviewed").exists()


def test_walking_through_the_changes_can_be_left_and_continued(
    typed: Typed, ludus: Ludus, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    count = len(list_ids(ludus))
    out = typed("r\n\nr\nnot true\nq\n")
    assert "give a reason to reject it" in out and f"kept: 1 decision, {count - 1} to go" in out
    monkeypatch.setenv("EDITOR", f"{sys.executable} editor.py")
    Path("editor.py").write_text("import sys; open(sys.argv[1], 'a').write('And more.\\n')")
    out = typed("x\ne\nclearer\n" + "a\n\n" * (count - 2) + "f\n")
    assert "one of a, r, e, v" in out and f"2 of {count}" in out and "review 1:" in out
    text = (trained / "reviewed/SKILL.md").read_text()
    assert "And more." in text
    decisions = read_changes(ludus)["decisions"]
    assert [each["action"] for each in decisions.values()][:2] == ["reject", "edit"]  # type: ignore


def test_the_end_of_the_input_keeps_what_was_decided(typed: Typed, ludus: Ludus, trained: Path):
    assert "kept: 1 decision" in typed("a\nfine\n")
    assert len(read_changes(ludus)["decisions"]) == 1  # type: ignore


def test_an_editor_that_fails_decides_nothing(
    typed: Typed, ludus: Ludus, trained: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "false")
    assert "ended with exit code" in typed("e\nq\n")
    monkeypatch.setenv("EDITOR", "/nowhere/editor")
    assert "cannot be started" in typed("e\nq\n")
    assert read_changes(ludus)["decisions"] == {}


def test_the_reviewed_skill_is_measured_beside_the_others(ludus: Ludus, trained: Path):
    first = list_ids(ludus)[0]
    before = (trained / "summary.json").read_bytes()
    assert ludus("review", "run", "--reject", first, "--reason", "x").code == 0
    done = ludus("review", "run", "--measure", "--json")
    assert done.code == 0, done.err
    measure = json.loads(done.out)["measure"]
    assert measure["sentence"].startswith("a person chose this skill: ")
    assert set(measure["passed"]) == {"initial", "shipped", "reviewed"}
    assert measure["passed"]["reviewed"] < measure["passed"]["shipped"], "the rejected rule was needed"
    assert measure["to_shipped"]["difference"] < 0 and measure["test_uses"] == 2
    assert json.loads((trained / "run.json").read_text())["state"] == "finished"
    shown = ludus("show", "run")
    assert "review 1 of the skill was measured: a person chose this skill" in shown.out
    assert (trained / "summary.json").read_bytes() == before, "the claim of the run is its own"
    again = ludus("review", "run", "--measure")
    assert again.code == 0 and "of the test tasks passed" in again.out
    assert ludus("train", "--resume", "--out", "run", "--quiet").code == 0


def test_an_unfinished_run_keeps_its_test_sealed(ludus: Ludus, folder: Path):
    write_rules(folder)
    ludus(*train_words("--out", "run", "--quiet", "--budget.calls", "60"))
    if not list_ids(ludus, "--version", "working"):
        pytest.skip("nothing was learned before the budget was spent")
    first = list_ids(ludus, "--version", "working")[0]
    words = ("--version", "working", "--reject", first, "--reason", "x")
    assert ludus("review", "run", *words).code == 0
    done = ludus("review", "run", "--measure")
    assert done.code != 0 and "the test tasks are sealed" in done.err
