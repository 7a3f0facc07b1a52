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
    assert "loaded in 100% of the runs" in capsys.readouterr().out


def test_flaky_queries_are_shown_by_their_words_and_found_by_them(capsys):
    Path("models.py").write_text(
        MODELS
        + """
def wavering(messages, tools, sampling):
    return say("No.") if "part 3" in messages[-1].content and sampling.seed % 2 else agent(messages, tools, sampling)
"""
    )
    run(capsys, "--env.group_size", "12", agent="wavering")
    assert main(["show", "run"]) == 0
    shown = capsys.readouterr().out
    assert "1 query is flaky" in shown and "  Give me totals, part 3\n" in shown
    assert main(["show", "run", "totals, PART 3"]) == 0
    assert "Give me totals, part 3" in capsys.readouterr().out


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


def test_a_training_without_a_usable_reply_says_so_and_fails(capsys):
    Path("silent.py").write_text("def optimizer(messages, tools, sampling):\n    return 'I cannot.'\n")
    code, found = run(capsys, "--train", "--optimizer.type", "scripted", "--optimizer.script", "silent.py:optimizer")
    assert code == 1 and found["rounds"] and not found["claim"]["gain"]
    assert main(["show", "run"]) == 0
    assert "No reply of the optimizer was usable" in capsys.readouterr().out


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


# ---- proposed queries -----------------------------------------------------------------------------------------------

PROPOSER = """
import json
from ludus.models.scripted import say

def optimizer(messages, tools, sampling):
    name = messages[1].content.split("# The skill: ")[1].split()[0]
    if name in BROKEN:
        return say("I would rather not.")
    with open("asked.txt", "a") as file:
        file.write(messages[1].content)
    should = [f"Please do {name} job {n} for me" for n in range(2)] + ["It fills documents."]
    return say(json.dumps({"should": should, "should_not": [f"Not {name}, but close"]}))
"""


def propose(capsys: pytest.CaptureFixture[str], *words: str, broken: str = "[]") -> tuple[int, dict]:
    script = Path(f"proposer{len(broken)}.py")  # a file is loaded once in a process
    script.write_text(PROPOSER.replace("BROKEN", broken))
    typed = ["triggers", "skills", "--propose", "3", "--out", "new.jsonl", "--json"]
    optimizer = ["--optimizer.type", "scripted", "--optimizer.script", f"{script}:optimizer"]
    code = main([*typed, "--model.type", "scripted", "--model.script", "models.py:agent", *optimizer, *words])
    return code, json.loads(capsys.readouterr().out or "{}")


def test_proposed_queries_are_written_marked_and_can_be_measured(capsys):
    code, found = propose(capsys)
    rows = [json.loads(line) for line in Path("new.jsonl").read_text().splitlines()]
    assert code == 0 and len(rows) == 7 and {row["source"] for row in rows} == {"proposed"}
    assert [row["not"] for row in rows if "not" in row] == [["forms"], ["sheets"]]
    assert [each["skill"] for each in found["skills"]] == ["forms", "sheets"]
    Path("queries.jsonl").write_text(Path("new.jsonl").read_text())
    _, measured = run(capsys)
    assert measured["report"]["unchecked"] == 7
    main(["show", "run"])
    assert "no person has checked" in capsys.readouterr().out.replace("\n", " ")


def test_a_second_time_asks_only_for_skills_without_proposals_and_keeps_rows(capsys):
    Path("new.jsonl").write_text('{"query": "My own", "skill": "forms"}\n')
    code, found = propose(capsys, broken="['forms']")
    assert code == 1 and found["skills"][0]["problem"]
    before = Path("new.jsonl").read_text()
    assert before.startswith('{"query": "My own", "skill": "forms"}\n') and "sheets job" in before
    code, found = propose(capsys)
    assert code == 0 and [each["skill"] for each in found["skills"]] == ["forms"]
    assert Path("new.jsonl").read_text().startswith(before)


def test_queries_of_transcripts_are_not_shown_to_the_optimizer(capsys):
    past = '{"query": "Fill the form of Mr Roe", "skill": "forms", "source": "transcript"}\n'
    Path("new.jsonl").write_text(past + '{"query": "My own", "skill": "forms"}\n')
    assert propose(capsys)[0] == 0
    asked = Path("asked.txt").read_text()
    assert "- My own" in asked and "Roe" not in asked
    assert Path("new.jsonl").read_text().startswith(past)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--train"], "leave --train"),
        (["--propose", "-1"], "a number above 0"),
        (["--out", "folder"], ".jsonl"),
        (["--out", "models.py"], ".jsonl"),
    ],
)
def test_wrong_requests_for_proposals_are_refused(capsys, words, said):
    assert propose(capsys, *words)[0] == 2


def test_a_file_that_is_something_else_is_not_overwritten(capsys):
    Path("new.jsonl").write_text('{"text": "mine"}\n')
    code, _ = propose(capsys)
    assert code == 2 and Path("new.jsonl").read_text() == '{"text": "mine"}\n'


def test_a_claim_on_queries_that_no_person_has_checked_says_so(capsys):
    rows = [json.loads(line) for line in Path("queries.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["source"] = "proposed" if number % 4 else ""
    Path("queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, found = run(capsys, "--train", *OPTIMIZER)
    assert found["claim"]["unchecked"] == 8, "16 are sealed, and all 8 that a person wrote are among them"
    assert "16 sealed queries, 8 of which no person has checked" in found["claim"]["sentence"]
