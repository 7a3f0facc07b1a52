"""`ludus triggers` as a user runs it, with an agent and an optimizer that are functions."""

import json
from pathlib import Path

import pytest
from tests.test_catalogue import write_skill

from ludus.catalogue import read_card
from ludus.cli import main

MODELS = """
import json, re
from ludus.models.scripted import call, say

def find_words(text):
    return {word for word in re.findall("[a-z]+", text.lower()) if len(word) > 4}

def agent(messages, tools, sampling):
    asked = find_words(messages[-1].content)
    fits = {}
    for line in messages[0].content.splitlines():
        if line.startswith("- "):
            name, _, text = line[2:].partition(": ")
            fits[name] = len(asked & find_words(text))
    best = max(fits, key=fits.get)
    return call("load_skill", name=best) if fits[best] else say("Here is the answer.")

def mute(messages, tools, sampling):
    return say("I would load a skill.")

def optimizer(messages, tools, sampling):
    asked = messages[-1].content
    now = asked.split("Its description now:")[1].split("# ")[0].strip()
    missed = asked.split("for which it was not loaded")[1].split("# ")[0]
    return say(json.dumps({"descriptions": [f"{now} {' '.join(sorted(find_words(missed)))}"]}))
"""
WORDS = ["triggers", "skills", "--queries", "queries.jsonl", "--json", "--out", "run", "--model.type", "scripted"]
OPTIMIZER = ["--optimizer.type", "scripted", "--optimizer.script", "models.py:optimizer"]


@pytest.fixture(autouse=True)
def catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models.py").write_text(MODELS)
    write_skill(tmp_path / "skills" / "forms", "forms", "Fills documents.")
    write_skill(tmp_path / "skills" / "sheets", "sheets", "Totals columns.")
    rows = [{"query": f"Complete the invoice number {n}", "skill": "forms"} for n in range(20)]
    rows += [{"query": f"Give me totals, part {n}", "skill": "sheets"} for n in range(8)]
    rows += [{"query": f"Hello {n}", "skill": ""} for n in range(4)]
    Path("queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(capsys: pytest.CaptureFixture[str], *words: str, agent: str = "agent") -> tuple[int, dict]:
    code = main([*WORDS, "--model.script", f"models.py:{agent}", *words])
    return code, json.loads(capsys.readouterr().out)["triggers"]


def test_a_catalogue_is_measured_after_its_controls(capsys):
    code, found = run(capsys)
    assert code == 0 and found["controls"]["problems"] == []
    recalls = {each["skill"]: each["recall"] for each in found["report"]["skills"]}
    assert recalls == {"forms": 0.0, "sheets": 1.0}
    assert found["report"]["confusion"]["forms"] == {"(none)": 80}
    assert main(["show", "run"]) == 0
    assert "must win 100%" in capsys.readouterr().out


def test_an_agent_that_loads_nothing_is_told_apart_from_bad_descriptions(capsys):
    code, found = run(capsys, "--train", *OPTIMIZER, agent="mute")
    assert code == 1
    assert found["controls"]["problems"] and found["claim"]["sentence"].startswith("Nothing is claimed")


def test_training_claims_on_sealed_queries_and_changes_no_skill(capsys):
    before = Path("skills/forms/SKILL.md").read_text()
    code, found = run(capsys, "--train", *OPTIMIZER)
    assert code == 0 and found["claim"]["gain"]
    assert found["claim"]["paired"]["tasks"] == 16  # half of the queries
    (changed,) = Path("run/trained").iterdir()  # only what has a new description
    assert changed.name == "forms" and "invoice" in read_card(changed).description
    assert Path("skills/forms/SKILL.md").read_text() == before


def test_a_run_that_is_resumed_asks_nothing_again(capsys):
    _, first = run(capsys, "--train", *OPTIMIZER)
    calls = Path("run/ledger.jsonl").read_bytes().splitlines()[-1]
    assert main(["triggers", "--resume", "--out", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["triggers"] == first
    assert Path("run/ledger.jsonl").read_bytes().splitlines()[-1] == calls


def test_a_changed_description_is_not_resumed(capsys):
    run(capsys)
    Path("skills/forms/SKILL.md").write_text("---\nname: forms\ndescription: Other.\n---\n")
    assert main(["triggers", "--resume", "--out", "run", "--json"]) == 2
    assert "catalogue" in capsys.readouterr().err


def test_too_few_queries_to_train_are_refused(capsys):
    Path("queries.jsonl").write_text('{"query": "Complete it", "skill": "forms"}\n')
    assert main([*WORDS, "--model.script", "models.py:agent", "--train", *OPTIMIZER]) == 2
    assert "too few" in capsys.readouterr().err
