"""A package is trained as one object: edits of references and scripts, checked in slots, shipped with its claim."""

import json
from pathlib import Path

import pytest
from skills_ref import validator  # pyright: ignore[reportMissingTypeStubs]
from tests.cli_kit import Ludus

from ludus.reflact.records import Step
from ludus.reflact.training_run import read_records
from ludus.skill import DOCUMENT
from ludus.skill_folder import read_package
from ludus.store import RunDir
from ludus.view.acting import review_skill
from ludus.view.facts import FactCache
from ludus.view.skills import blame_skill

pytestmark = pytest.mark.usefixtures("folder")

MODELS = '''
import json, re
from ludus.models.scripted import call

GOOD = """#!/usr/bin/env python3
import sys
sys.exit(0 if sys.argv[1:] == ["--self-check"] else 2)
"""


def agent(messages, tools, sampling):
    """Loads the skill, then its reference; makes the file only if that tells it to obey."""
    results = [m for m in messages if m.role == "tool"]
    if not results:
        return call("read_file", path=re.search("/tmp/skills/[^ )]*SKILL.md", messages[0].content)[0])
    if len(results) == 1:
        return call("read_file", path="/tmp/skills/make-files/references/rules.md")
    if len(results) > 2 or "Obey" not in results[1].content:
        return "Done."
    path, content = re.search(r'called (\\\\S+) that contains "(.*)"', messages[1].content).groups()
    return call("write_file", path=path, content=content)


def optimizer(messages, tools, sampling):
    stage = sampling.stage
    if stage == "analyst_failure":
        assert "==== references/rules.md ====" in messages[1].content and "--self-check" in messages[0].content
        items = [
            {"op": "append", "path": "references/rules.md", "content": "Obey."},
            {"op": "write", "path": "scripts/good.py", "content": GOOD},
            {"op": "write", "path": "scripts/bad.py", "content": "#!/bin/sh\\nexit 4\\n"},
            {"op": "write", "path": "../../evil", "content": "x"},
        ]
        return json.dumps({"items": items, "reasoning": "it does not obey"})
    if stage == "analyst_lines":
        assert "==== references/rules.md ====" in messages[1].content and "--self-check" in messages[0].content
        count = int(re.search(r"# Failed rollouts: (\\d+)", messages[1].content)[1])
        causes = [{"rollout": n, "situations": ["does not obey"]} for n in range(1, count + 1)]
        items = [
            {"situation": "does not obey", "path": "references/rules.md", "content": "Obey.", "rollouts": [1]},
            {"situation": "x", "op": "write", "path": "scripts/bad.py", "content": "#!/bin/sh\\nexit 4\\n"},
            {"situation": "y", "op": "replace", "path": "nowhere.md", "target": "a", "content": "b"},
        ]
        return json.dumps({"rollouts": causes, "items": items})
    if stage == "rank":
        return json.dumps({"selected": [1, 2, 3, 4]})
    return json.dumps({"items": [], "guidance": "", "memory": ""})
'''.replace("\\\\", "\\")
WORDS = (
    "train terminal-test --out run --quiet --data.pool train,test --data.ratio 1:1:1 --data.limit 6 "
    "--model.type scripted --model.script models.py:agent --sandbox.backend local --recipe reflact "
    "--train.epochs 1 --train.edit_budget 4 --train.slow.enabled false "
    "--optimizer.type scripted --optimizer.script models.py:optimizer --agent.skill make-files"
)


@pytest.fixture
def package(folder: Path) -> Path:
    (folder / "models.py").write_text(MODELS)
    place = folder / "make-files"
    (place / "references").mkdir(parents=True)
    (place / DOCUMENT).write_text(
        "---\nname: make-files\ndescription: How to make files. Use it when a file is asked for.\n---\n\n"
        "Read references/rules.md before anything else.\n"
    )
    (place / "references/rules.md").write_text("There is no rule in this file yet.\n")
    return place


def test_a_reference_and_a_script_are_trained_and_shipped_as_a_package(ludus: Ludus, package: Path):
    done = ludus(*WORDS.split())
    assert done.code == 0, done.err
    best = read_package(Path("run/best"))
    assert best.paths == ("SKILL.md", "references/rules.md", "scripts/good.py")
    assert "Obey." in (best.read("references/rules.md") or "")
    shipped = read_package(Path("run/package/make-files"))
    summary = json.loads(Path("run/summary.json").read_text())
    assert shipped == best, "the stamp is no part of the skill"
    assert summary["claim"]["skill"] == best.hash
    with RunDir.read(Path("run")) as run:
        steps = [record for record in read_records(run) if isinstance(record, Step)]
        rollouts = [rollout for _, rollout in run.read_outcomes()]
    fates = {fate.item.path: fate for step in steps for fate in step.fates}  # pyright: ignore
    assert fates["scripts/bad.py"].status == "skipped_script_check" and "exit code 4" in fates["scripts/bad.py"].reason
    assert fates["../../evil"].status == "skipped_bad_path"
    uses = [rollout.skill_use for rollout in rollouts]
    assert all(use is not None and use.loaded and "references/rules.md" in use.shown for use in uses)
    text = Path("run/package/make-files/SKILL.md").read_text()
    for words in (
        f"ludus-hash: {best.hash}",
        "ludus-claim: ",
        "ludus-evidence: run/summary.json",
        "ludus-version: step",
    ):
        assert words in text
    said = ludus("show", "run", "--json").out
    assert json.loads(said)


def test_the_published_validator_accepts_the_shipped_package(ludus: Ludus, package: Path):
    assert validator.validate(package) == []
    assert ludus(*WORDS.split()).code == 0
    assert validator.validate(Path("run/package/make-files")) == []
    assert ludus("review", "run", "--accept-all").code == 0
    assert validator.validate(Path("run/reviewed/package/make-files")) == []


def test_the_ledger_puts_lines_of_references_on_trial(ludus: Ludus, package: Path):
    words = WORDS.replace("--recipe reflact", "--recipe ledger --train.ledger.batch_size 4")
    done = ludus(
        *words.replace("--train.edit_budget 4 --train.slow.enabled false ", "").replace("epochs 1", "epochs 6").split()
    )
    assert done.code == 0, done.err
    best = read_package(Path("run/best"))
    assert best.text == (package / DOCUMENT).read_text(), "the document is as it was"
    assert best.read("references/rules.md") == "There is no rule in this file yet.\n\nObey.\n"
    assert json.loads(Path("run/summary.json").read_text())["claim"]["skill"] == best.hash
    with RunDir.read(Path("run")) as run:
        steps = [record for record in read_records(run) if isinstance(record, Step)]
    fates = {fate.item.path: fate for step in steps for fate in step.fates}  # pyright: ignore
    assert "exit code 4" in fates["scripts/bad.py"].reason
    assert fates["nowhere.md"].status == "skipped_file_not_found"


def test_a_skill_of_one_document_gets_no_files(ludus: Ludus, package: Path):
    models = Path("models.py")
    models.write_text(models.read_text().replace("        assert", "        _ ="))
    done = ludus(*f"{WORDS}/SKILL.md --agent.skill_as file".split())
    assert done.code == 0, done.err
    with RunDir.read(Path("run")) as run:
        steps = [record for record in read_records(run) if isinstance(record, Step)]
    assert {fate.status for step in steps for fate in step.fates} == {"skipped_no_package"}
    assert read_package(Path("run/best")).files == ()


def test_a_review_of_a_package_decides_about_files_and_writes_and_measures_the_whole(ludus: Ludus, package: Path):
    assert ludus(*WORDS.split()).code == 0
    shipped = read_package(Path("run/best"))
    listed = json.loads(ludus("review", "run", "--list", "--json").out)
    ids = {change["path"]: change["id"] for change in listed["changes"] if change["included"]}
    assert set(ids) == {"references/rules.md", "scripts/good.py"}
    words = ("--reason", "as the test wants")
    reviewed = Path("run/reviewed/package/make-files")

    rejected = ludus("review", "run", "--reject", ids["scripts/good.py"], *words)
    assert rejected.code == 0 and str(reviewed) in rejected.out
    assert read_package(reviewed).paths == ("SKILL.md", "references/rules.md")
    assert "Obey." in (read_package(reviewed).read("references/rules.md") or "")

    page = blame_skill(Path("run"), "shipped", FactCache(None))
    by_line = {line.line: line.text for line in page.lines if line.line}
    assert by_line[ids["references/rules.md"]] == "Obey." and ids["scripts/good.py"] in by_line
    assert "==== scripts/good.py ====" in [line.text for line in page.lines]
    body = {"decisions": [{"line": ids["scripts/good.py"], "decision": "accept"}]}
    assert str(reviewed.relative_to("run")) in review_skill(Path("run"), json.dumps(body).encode()).text

    broken = "#!/bin/sh\nexit 3\n"
    edited = ludus("review", "run", "--edit", ids["scripts/good.py"], "--text", broken, *words)
    assert edited.code == 0, edited.err
    assert (read_package(reviewed).get_file("scripts/good.py") or shipped.files[0]).executable
    refused = ludus("review", "run", "--measure")
    assert refused.code == 2 and "scripts/good.py" in refused.err and "exit code 3" in refused.err

    assert ludus("review", "run", "--accept", ids["scripts/good.py"], "--accept-all").code == 0
    assert read_package(reviewed) == shipped, "everything was accepted"
    assert (reviewed / "scripts/good.py").stat().st_mode & 0o100
    measured = ludus("review", "run", "--measure")
    assert measured.code == 0 and "scripts/good.py" in measured.out, measured.err
    head = (reviewed / DOCUMENT).read_text()
    assert f"ludus-hash: {shipped.hash}" in head and "ludus-claim: 'a person chose this skill" in head


def test_a_review_of_the_ledger_puts_a_reference_back(ludus: Ludus, package: Path):
    words = WORDS.replace("--recipe reflact", "--recipe ledger --train.ledger.batch_size 4")
    words = words.replace("--train.edit_budget 4 --train.slow.enabled false ", "").replace("epochs 1", "epochs 6")
    assert ludus(*words.split()).code == 0
    (change,) = [
        each for each in json.loads(ludus("review", "run", "--list", "--json").out)["changes"] if each["included"]
    ]
    assert (change["id"], change["path"], change["text"]) == ("L1", "references/rules.md", "Obey.")
    assert ludus("review", "run", "--reject", "L1", "--reason", "no").code == 0
    assert read_package(Path("run/reviewed/package/make-files")) == read_package(package)
