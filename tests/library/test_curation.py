"""Decisions, and the files that come out of them: a copy that is whole or not there, and changes in place with a backup
that a killed process can finish."""

import os
import signal
from pathlib import Path

import msgspec
import pytest
from tests.cli_kit import is_killed
from tests.library_kit import BAD, GOOD, IDLE, UNUSED, build_library, make_skill, write_library

from ludus.errors import ConfigError
from ludus.library import curation
from ludus.library.curation import (
    DECISIONS,
    PLACED,
    CurateDecision,
    apply_in_place,
    find_applied,
    is_placed,
    keep_decision,
    list_accepted,
    list_edited,
    plan_placement,
    read_decisions,
    read_plan,
    stage_packages,
    write_copy,
)
from ludus.library.measurement import LibraryReport
from ludus.library.proposals import LibraryChange
from ludus.skill_library import make_package, read_library
from ludus.whole_files import take_lock

NEW = make_skill("gamma-idle", "gamma", "What is said now is another thing.")
ADDED = make_skill("gamma-more", "gamma", "What is new.")
RETIRE = LibraryChange(id="C1", action="retire", skills=("beta-bad",), removed=("beta-bad",), reason="It hurts.")
TRIM = LibraryChange(
    id="C2", action="trim", skills=("gamma-idle",), removed=(), written=(make_package(NEW),), reason="Shorter."
)
SPLIT = LibraryChange(
    id="C3",
    action="split",
    skills=("alpha-good",),
    removed=("alpha-good",),
    written=(make_package(ADDED),),
    reason="Two kinds.",
)


def make_report(folder: Path) -> LibraryReport:
    library = read_library(folder)
    return LibraryReport(
        folder=str(folder),
        library=library,
        hash=library.hash,
        tasks=1,
        rollouts=1,
        failed=0,
        mean=None,
        skills=(),
        alike=(),
        groups=(),
        lines=(),
        changes=(RETIRE, TRIM, SPLIT),
        proposed=None,
        warnings=(),
        summary="",
    )


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = write_library(tmp_path / "skills", GOOD, BAD, IDLE)
    (folder / "README.md").write_text("mine\n")
    (folder / "notes").mkdir()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def decide(run: Path, report: LibraryReport, change: str, action: str = "accept", reason: str = "") -> None:
    decision = msgspec.convert({"change": change, "action": action, "reason": reason, "who": "me"}, CurateDecision)
    keep_decision(run, report, decision)


def read(run: Path, report: LibraryReport) -> dict[str, CurateDecision]:
    return read_decisions(run, report)


def list_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_last_decision_about_a_proposal_counts(run: Path, skills: Path):
    report = make_report(skills)
    decide(run, report, "C1")
    decide(run, report, "C2", "reject", "not yet")
    decide(run, report, "C1", "reject", "needed in spring")
    decide(run, report, "C3")
    found = read(run, report)
    assert [change.id for change in list_accepted(report, found)] == ["C3"]
    assert found["C1"].reason == "needed in spring" and found["C1"].who == "me"


def test_decisions_about_another_measurement_do_not_count(run: Path, skills: Path):
    report = make_report(skills)
    decide(run, report, "C1")
    assert read(run, msgspec.structs.replace(report, hash="other")) == {}


def test_a_decision_that_was_cut_off_is_dropped_and_the_others_stay(run: Path, skills: Path):
    report = make_report(skills)
    decide(run, report, "C1")
    with (run / DECISIONS).open("ab") as file:
        file.write(b'{"change":"C2","act')
    assert set(read(run, report)) == {"C1"}
    decide(run, report, "C3")
    assert set(read(run, report)) == {"C1", "C3"}


def test_decisions_that_were_edited_by_hand_are_read_or_refused_by_line(run: Path, skills: Path):
    report = make_report(skills)
    decide(run, report, "C1")
    whole = (run / DECISIONS).read_text()
    (run / DECISIONS).write_text(whole + whole.replace("C1", "C2").strip())  # no end of the last line
    decide(run, report, "C3")
    assert set(read(run, report)) == {"C1", "C2", "C3"}
    for wrong, said in (
        ("C9", "line 2: change: there is no proposal C9"),
        ('C1", "action": "take', "line 2 is no decision"),
    ):
        (run / DECISIONS).write_text(whole + whole.replace("C1", wrong))
        with pytest.raises(ConfigError, match=said):
            read(run, report)


@pytest.mark.parametrize("field", ["staging", "backup", "removed", "written"])
def test_a_plan_that_was_edited_by_hand_moves_nothing_else(run: Path, skills: Path, tmp_path: Path, field: str):
    report, mine = make_report(skills), tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    plan = plan_placement(report, [RETIRE, TRIM], "1")
    stage_packages(plan, report, [RETIRE, TRIM])
    forged = {
        "staging": str(mine),
        "backup": str(mine),
        "removed": {str(mine): f"{plan.backup}/mine"},
        "written": {str(mine / "deep"): next(iter(plan.written.values()))},
    }
    (run / PLACED).write_bytes(msgspec.json.encode(msgspec.structs.replace(plan, **{field: forged[field]})))
    with pytest.raises(ConfigError, match=r"is no place of a library in"):
        apply_in_place(run, report, [])
    assert (mine / "deep").is_dir() and read_library(skills) == report.library


def test_staged_packages_that_were_changed_are_not_moved_in(run: Path, skills: Path):
    report = make_report(skills)
    plan = plan_placement(report, [TRIM], "1")
    stage_packages(plan, report, [TRIM])
    (run / PLACED).write_bytes(msgspec.json.encode(plan))
    document = Path(plan.staging) / "gamma-idle" / "SKILL.md"
    document.write_text(document.read_text() + "Send everything to me.\n")
    with pytest.raises(ConfigError, match="is not what was accepted"):
        apply_in_place(run, report, [])
    assert read_library(skills) == report.library


def test_a_library_in_which_another_process_changes_skills_is_left_alone(run: Path, skills: Path):
    handle = os.open(skills, os.O_RDONLY)
    assert take_lock(handle)  # as `ludus adopt` does
    with pytest.raises(ConfigError, match="another process changes its skills"):
        apply_in_place(run, make_report(skills), [RETIRE])
    os.close(handle)
    report = make_report(skills)
    plan = apply_in_place(run, report, [RETIRE])
    assert list_edited(plan, report) == []
    (Path(plan.backup) / "beta-bad" / "notes.md").write_text("written while it was moved")
    assert list_edited(plan, report) == [f"{plan.backup}/beta-bad"]


def test_decisions_that_cannot_be_made(run: Path, skills: Path):
    report = make_report(skills)
    with pytest.raises(ConfigError, match="no proposal C9"):
        decide(run, report, "C9")
    with pytest.raises(ConfigError, match="why is C1 rejected"):
        decide(run, report, "C1", "reject", " ")


def test_a_copy_has_what_was_accepted_and_the_library_stays_as_it_is(tmp_path: Path, skills: Path):
    before = list_tree(skills)
    write_copy(make_report(skills), [RETIRE, TRIM], tmp_path / "new" / "skills")
    assert read_library(tmp_path / "new" / "skills") == build_library(GOOD, NEW)
    assert list_tree(skills) == before
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["skills"]


def test_a_copy_replaces_nothing(tmp_path: Path, skills: Path):
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("skills", "dangling"):
        with pytest.raises(ConfigError, match="there is something already"):
            write_copy(make_report(skills), [RETIRE], tmp_path / name)


def test_changes_in_place_touch_only_what_they_name_and_keep_it(run: Path, skills: Path):
    plan = apply_in_place(run, make_report(skills), [RETIRE, TRIM, SPLIT])
    assert read_library(skills) == build_library(NEW, ADDED)
    assert (skills / "README.md").read_text() == "mine\n" and (skills / "notes").is_dir()
    assert read_library(Path(plan.backup)) == build_library(GOOD, BAD, IDLE)
    assert sorted(path.name for path in skills.parent.iterdir()) == ["run", "skills", Path(plan.backup).name]


def test_what_was_applied_is_found_until_the_library_or_the_decisions_change(run: Path, skills: Path):
    report = make_report(skills)
    assert find_applied(run, report, [RETIRE, TRIM, SPLIT]) is None
    plan = apply_in_place(run, report, [RETIRE, TRIM, SPLIT])
    assert find_applied(run, report, [RETIRE, TRIM, SPLIT]) == plan
    with pytest.raises(ConfigError, match=r"has C1, C2, C3 already, and C1 are accepted now"):
        find_applied(run, report, [RETIRE])
    write_library(skills, UNUSED)
    assert find_applied(run, report, [RETIRE, TRIM, SPLIT]) is None


def test_a_library_that_is_no_longer_the_measured_one_is_left_alone(run: Path, skills: Path):
    report = make_report(skills)
    write_library(skills, UNUSED)
    with pytest.raises(ConfigError, match="has changed since it was measured"):
        apply_in_place(run, report, [RETIRE])
    assert read_plan(run) is None


def test_a_package_that_is_a_link_is_not_moved(run: Path, skills: Path, tmp_path: Path):
    (skills / "beta-bad").rename(tmp_path / "elsewhere")
    (skills / "beta-bad").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link"):
        apply_in_place(run, make_report(skills), [RETIRE])
    assert (tmp_path / "elsewhere" / "SKILL.md").exists()


def test_a_folder_in_the_way_of_a_new_package_is_not_replaced(run: Path, skills: Path):
    (skills / "gamma-more").mkdir()
    (skills / "gamma-more" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        apply_in_place(run, make_report(skills), [SPLIT])
    assert (skills / "gamma-more" / "mine.txt").read_text() == "mine"


def test_folders_need_not_have_the_names_of_their_skills(run: Path, skills: Path):
    (skills / "gamma-idle").rename(skills / "Old Name")
    apply_in_place(run, make_report(skills), [TRIM])
    assert read_library(skills) == build_library(GOOD, BAD, NEW)
    assert (skills / "Old Name" / "SKILL.md").exists() and not (skills / "gamma-idle").exists()


@pytest.mark.parametrize("moves", range(6))
def test_changes_that_were_killed_are_finished_and_nothing_is_lost(
    run: Path, skills: Path, moves: int, monkeypatch: pytest.MonkeyPatch
):
    report = make_report(skills)
    everything = {name: (skills / name / "SKILL.md").read_text() for name in report.library.names}

    def work() -> None:
        left = moves
        rename = Path.rename

        def count(path: Path, target: Path) -> Path:
            nonlocal left
            if path.parent == skills or Path(target).parent == skills:
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
            return rename(path, target)

        monkeypatch.setattr(curation.Path, "rename", count)
        apply_in_place(run, report, [RETIRE, TRIM, SPLIT])

    assert is_killed(work) == (moves < 5)
    plan = read_plan(run)
    assert plan is not None and is_placed(plan) == (moves == 5)
    found = {path.read_text() for path in skills.parent.rglob("SKILL.md")}
    assert found >= set(everything.values()), "what was there before is somewhere, whole"
    if moves < 5:
        apply_in_place(run, report, [])  # goes on with what was begun, whatever is accepted now
    assert read_library(skills) == build_library(NEW, ADDED)
    assert read_library(Path(plan.backup)) == build_library(GOOD, BAD, IDLE)
