"""docs/skills.md: its walk from a folder and ten queries to a checked package, command by command. Functions stand in
for the models; slots, scripts and their checks are real."""

import json
import shlex
from pathlib import Path

import pytest
from skills_ref import validator  # pyright: ignore[reportMissingTypeStubs]
from tests.cli_kit import Ludus
from tests.docs_kit import ROOT, read_blocks, read_commands

from ludus.skill_folder import read_package

PAGE = (ROOT / "docs" / "skills.md").read_text()
WALK = PAGE[PAGE.index("## From a folder and ten queries") : PAGE.index("## One value with one hash")]
DOCUMENT, REFERENCE = (block.text for block in read_blocks(WALK, "markdown"))
(SCRIPT,) = (block.text for block in read_blocks(WALK, "python"))
(QUERIES,) = (block.text for block in read_blocks(WALK, "jsonl"))
COMMANDS = [command for command in read_commands(WALK) if command.startswith("ludus ")]
FOLDER = Path("runs/skill/reviewed/package/make-files")

SETTINGS = """
model: {type: scripted, script: "stand_in.py:act"}
optimizer: {type: scripted, script: "stand_in.py:propose"}
sandbox: {backend: local}
train: {epochs: 6}
"""
STAND_IN = '''
import json, re
from ludus.models.scripted import call, say

GOOD = """#!/usr/bin/env python3
import sys
if sys.argv[1:] == ["--self-check"]:
    sys.exit(0)
sys.exit(2)
"""


def act(messages, tools, sampling):
    """Loads a skill for requests about files. Makes the file only if the reference tells it to name the path."""
    names = {tool.name for tool in tools}
    if "load_skill" in names:
        said, catalogue = messages[-1].content, messages[0].content
        if messages[-1].role == "tool":
            return say("Done.")
        listed = [line[2:].partition(": ")[0::2] for line in catalogue.splitlines() if line.startswith("- ")]
        fits = {name: len(words(text) & words(said)) for name, text in listed}
        best = max(fits, key=lambda name: fits[name])
        return call("load_skill", name=best) if fits[best] else say("I know that.")
    results = [m for m in messages if m.role == "tool"]
    if not results:
        found = re.search("/tmp/skills/[^ )]*SKILL.md", messages[0].content)
        return call("read_file", path=found[0])
    if len(results) == 1:
        return call("read_file", path="/tmp/skills/make-files/references/rules.md")
    if len(results) > 2 or "exact path" not in results[1].content:
        return say("Done.")
    path, content = re.search(r'called (\\S+) that contains "(.*)"', messages[1].content).groups()
    return call("write_file", path=path, content=content)


def words(said):
    found = set(re.findall("[a-z]{3,}", said.lower())) - {"the", "and", "with", "that", "for", "how", "use", "when"}
    return found | ({"file"} if re.search(r"[a-z]+[.]txt", said) else set())


def propose(messages, tools, sampling):
    shown = [int(number) for number in re.findall(r"### Rollout (\\d+)", messages[-1].content)]
    causes = [{"rollout": number, "situations": ["the file is not made"]} for number in shown]
    line = "Write the content to the exact path of the task."
    items = [
        {"situation": "the file is not made", "path": "references/rules.md", "content": line, "rollouts": shown},
        {"situation": "texts are compared by eye", "op": "write", "path": "scripts/more.py", "content": GOOD,
         "pointer": "- To compare more: run scripts/more.py", "rollouts": shown[:1]},
    ]
    return json.dumps({"rollouts": causes, "items": items})
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, with the files of the page."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "make-files"
    for name, text in {"SKILL.md": DOCUMENT, "references/rules.md": REFERENCE, "scripts/same.py": SCRIPT}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "scripts/same.py").chmod(0o755)
    (tmp_path / "queries.jsonl").write_text(QUERIES)
    (tmp_path / "model.yaml").write_text(SETTINGS)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    return tmp_path


def test_a_reader_follows_the_walk_to_a_reviewed_package_that_the_validator_accepts(folder: Path, ludus: Ludus):
    assert len(QUERIES.splitlines()) == 10 and validator.validate(folder / "make-files") == []
    assert [command.split()[1] for command in COMMANDS] == [
        "triggers",
        "evaluate",
        "train",
        "review",
        "review",
        "review",
    ]
    said: dict[str, str] = {}
    for command in COMMANDS:
        code, out, err = ludus(*shlex.split(command)[1:])
        assert code == 0, f"{command}\n{out}\n{err}"
        said[command] = out
    assert validator.validate(FOLDER) == []
    package = read_package(FOLDER)
    assert "exact path" in (package.read("references/rules.md") or "")
    summary = json.loads(Path("runs/skill/summary.json").read_text())
    assert summary["claim"]["difference"] == 1.0
    assert "references/rules.md" in said[COMMANDS[3]] and str(FOLDER) in said[COMMANDS[4]]
