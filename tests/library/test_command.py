"""`ludus library` and `ludus curate` as a user runs them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import Ludus
from tests.library_kit import BAD, GOOD, IDLE, UNUSED, make_skill, write_library

from ludus.skill_library import read_library

WORLD = """
from tests.library_kit import KindTasks, act_in_kinds
from ludus.models.scripted import say

def mute(messages, tools, sampling):
    return say("right")

class Small(KindTasks, frozen=True):
    name = "small"
    size: int = 6

class Together(KindTasks, frozen=True):
    name = "together"

    async def verify_group(self, rollouts, boxes):
        raise NotImplementedError
"""
RUN = ("library", "skills", "world.py:Small", "--env.group_size", "8", "--model.type", "scripted")
ACT = ("--model.script", "world.py:act_in_kinds", "--out", "run")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2]))
    (tmp_path / "world.py").write_text(WORLD)
    write_library(tmp_path / "skills", GOOD, BAD, IDLE, UNUSED)
    return tmp_path


def test_a_library_is_measured_shown_decided_and_written(ludus: Ludus):
    done = ludus(*RUN, *ACT)
    assert done.code == 0, done.err
    said = done.out.replace("\n", " ")
    assert "C1  retire beta-bad" in said and "nothing was changed" in said
    report = json.loads(Path("run/library.json").read_text())
    assert {each["name"]: each["verdict"] for each in report["skills"]}["alpha-good"] == "helps"
    assert json.loads(ludus("show", "run", "--json").out) == report
    assert "retire beta-bad" in ludus("show", "run").out
    assert "skills: alpha-good (loaded; shown to the model SKILL.md)" in ludus("show", "run", "alpha-0").out

    listed = json.loads(ludus("curate", "run", "--list", "--json").out)
    assert listed["undecided"] == ["C1", "C2"] and listed["decisions"] == {}
    assert ludus("curate", "run", "--to", "new").code == 2, "nothing was accepted"
    assert ludus("curate", "run", "--accept", "C1", "--who", "me").code == 0
    assert ludus("curate", "run", "--reject", "C2", "--reason", "for winter").code == 0
    assert ludus("curate", "run", "--to", "new").code == 0
    assert read_library(Path("new")).names == ("alpha-good", "delta-unused", "gamma-idle")
    assert read_library(Path("skills")).names == ("alpha-good", "beta-bad", "delta-unused", "gamma-idle")
    assert ludus("curate", "run", "--apply").code == 0
    assert read_library(Path("skills")) == read_library(Path("new"))
    again = ludus("curate", "run", "--apply", "--json")
    assert again.code == 0 and "has C1 already" in again.err.replace("\n", " ")
    assert json.loads(again.out)["written"] == str(Path("skills").resolve())
    assert "reject by" in ludus("curate", "run", "--list").out


def test_a_measurement_that_ran_out_of_budget_goes_on_and_runs_nothing_twice(ludus: Ludus):
    stopped = ludus(*RUN, *ACT, "--budget.calls", "100")
    assert stopped.code == 3
    assert "not finished" in ludus("show", "run").err
    assert "not finished" in ludus("curate", "run").err
    done = ludus("library", "--resume", "--out", "run", "--budget.calls", "5000", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    fresh = json.loads(ludus(*RUN, *ACT[:2], "--out", "other", "--json").out)
    assert found["library"] == fresh["library"]
    assert found["ledger"]["agent"]["usage"] == fresh["ledger"]["agent"]["usage"], "no rollout was paid twice"


def test_a_changed_library_is_another_run(ludus: Ludus):
    assert ludus(*RUN, *ACT, "--budget.calls", "20").code == 3
    with Path("skills/beta-bad/SKILL.md").open("a") as file:
        file.write("- More.\n")
    again = ludus("library", "--resume", "--out", "run", "--budget.calls", "5000")
    assert again.code == 2 and "library" in again.err


def test_an_agent_that_loads_nothing_ends_with_1_and_proposes_nothing(ludus: Ludus):
    done = ludus(*RUN, "--model.script", "world.py:mute", "--out", "run")
    assert done.code == 1
    assert "No skill was loaded in any rollout" in done.out.replace("\n", " ")
    assert "nothing is proposed" in done.out


def test_a_run_that_has_no_findings_about_passages_is_no_evidence(ludus: Ludus):
    assert ludus(*RUN, *ACT).code == 0
    done = ludus(*RUN, *ACT[:2], "--out", "b", "--library.evidence", '["run"]')
    assert done.code == 2 and "a measurement of a library, which has no findings" in done.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("library", "skills", "world.py:Small", "--agent.skill", "skills/beta-bad"),
            "put it into the library's folder",
        ),
        (("library", "skills", "world.py:Small", "--agent.skill_as", "file"), "agent.skill_as"),
        (("library", "skills/beta-bad", "world.py:Small"), "is one skill"),
        (("library", "nowhere", "world.py:Small"), "nowhere is not a folder"),
        (("library",), "which"),
        (("library", "skills", "world.py:Small", "--budget.rollouts", "18"), "budget.rollouts"),
        (("library", "skills", "world.py:Small", "--library.least", "2"), "library.least"),
        (("train", "world.py:Small", "--agent.library", "skills"), "one skill is trained at a time"),
        (("triggers", "skills", "--queries", "q.jsonl", "--agent.library", "skills"), "agent.library"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(ludus: Ludus, words: Any, said: str):
    Path("q.jsonl").write_text('{"query": "x", "skill": ""}\n')
    done = ludus(*words, "--model.type", "scripted", "--model.script", "world.py:act_in_kinds", "--out", "run")
    assert done.code == 2 and said in done.err.replace("\n", " ")
    assert not Path("run").exists()


def test_a_library_can_be_evaluated_as_a_whole(ludus: Ludus):
    done = ludus("evaluate", "world.py:Small", "--agent.library", "skills", "--model.type", "scripted", *ACT)
    assert done.code == 0, done.err
    assert "alpha-good loaded" in done.out and "6 of 18 rollouts" in done.out
    loads = json.loads(Path("run/summary.json").read_text())["library_loads"]
    assert loads["delta-unused"]["loaded"] == 0 and loads["beta-bad"]["loaded"] == 6


def test_only_runs_of_libraries_are_curated(ludus: Ludus):
    assert ludus("evaluate", "world.py:Small", "--model.type", "scripted", *ACT).code == 0
    done = ludus("curate", "run")
    assert done.code == 2 and "ludus curate decides about runs of ludus library" in done.err


def test_hostile_words_of_a_package_are_shown_as_text(ludus: Ludus):
    odd = make_skill("epsilon-odd", "alpha", "[bold red]markup[/bold red] and \\x1b[31mcolour")
    Path("skills/odd").mkdir()
    Path("skills/odd/SKILL.md").write_text(odd.text.replace("For alpha", '"For alpha \\e[31m\\n- other: x"  #'))
    done = ludus(*RUN, *ACT)
    assert done.code in (0, 2)
    assert "\x1b[31m" not in done.out + done.err
