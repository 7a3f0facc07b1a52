"""docs/tutorial-skill.md: its files and its commands, in order. Functions stand in for the two models."""

import json
import shlex
from pathlib import Path

import pytest
from tests.cli_kit import Ludus
from tests.docs_kit import ROOT, read_blocks, read_commands, read_files

from ludus.reflact.paired_evidence import compute_certainty
from ludus.reflact.shipping import compute_claim_interval
from ludus.reflact.splits import USUAL_RATIO, choose_ratio, compute_sizes, parse_ratio
from ludus.reflact.train_settings import TrainSettings

PAGE = (ROOT / "docs" / "tutorial-skill.md").read_text()
FILES = read_files(PAGE)
TASKS = read_blocks(PAGE, "jsonl")[0].text
COMMANDS = read_commands(PAGE)
SHOWN = [block.text for block in read_blocks(PAGE) if not block.language]
"""The outputs on the page."""

STAND_IN_SETTINGS = """
model: {type: scripted, script: "stand_in.py:act"}
optimizer: {type: scripted, script: "stand_in.py:propose"}
budget: {dollars: 1.0}
"""

STAND_IN = '''
import json
import re

RULE = (
    "Reply with the date as YYYY-MM-DD, the amount in cents and the ISO currency code, joined by |, and nothing else."
)
CODES = {"euros": "EUR", "dollars": "USD", "pounds": "GBP", "Swiss francs": "CHF"}
MONTHS = ("January", "February", "March", "April", "May", "June", "July")


def act(messages, tools, sampling):
    """An agent that can do the task, follows hints, and does not know the form of a record."""
    note, instructions = messages[-1].content, "".join(message.content for message in messages[:-1])
    hint = re.search(r"It is:\\n\\n(.+)", instructions)
    if hint:
        return hint[1].strip()
    if "YYYY-MM-DD" not in instructions:
        return "I have recorded your expense."
    day, month, year = re.search(r"(\\d+) (\\w+) (20\\d\\d)", note).groups()
    amount, currency = re.search(r"([\\d.]+) (euros|dollars|pounds|Swiss francs)", note).groups()
    date = f"{year}-{MONTHS.index(month) + 1:02}-{int(day):02}"
    return f"{date}|{round(float(amount) * 100)}|{CODES[currency]}"


def propose(messages, tools, sampling):
    """An optimizer that sees what is missing."""
    shown = [int(number) for number in re.findall(r"### Rollout (\\d+)", messages[-1].content)]
    situation = "the form of the record is not known"
    return json.dumps(
        {
            "rollouts": [{"rollout": number, "situations": [situation]} for number in shown],
            "items": [{"situation": situation, "content": RULE, "rollouts": shown}],
        }
    )
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's folder, with the files of the page."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "expenses.jsonl").write_text(TASKS)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_page_has_ten_tasks_and_the_files():
    assert len(TASKS.splitlines()) == 10
    assert set(FILES) == {"expenses.py", "model.yaml", "train.yaml"}
    assert COMMANDS[0] == "pip install ludus-train"


def test_the_settings_of_the_real_models_are_valid(folder: Path, ludus: Ludus):
    code, out, err = ludus("train", "expenses.py", "--config", "model.yaml", "--config", "train.yaml", "--print-config")
    assert code == 0, err
    assert "gpt-5-mini" in out


def test_a_reader_follows_the_page(folder: Path, ludus: Ludus):
    (folder / "model.yaml").write_text(STAND_IN_SETTINGS)
    (folder / "stand_in.py").write_text(STAND_IN)
    printed = ""
    for command in COMMANDS[1:]:
        code, out, err = ludus(*shlex.split(command)[1:])
        assert code == 0, f"{command}\n{out}\n{err}"
        printed += out
    for block in SHOWN:
        assert block in printed, f"the page shows what no command prints:\n{block}"
    skill = (folder / "runs" / "skill" / "best" / "SKILL.md").read_text()
    assert "YYYY-MM-DD" in skill
    assert json.loads((folder / "runs" / "skill" / "summary.json").read_text())["claim"]["interval"]["low"] > 0


def test_three_tasks_ship_and_four_claim():
    """The reason for the ratio on the page."""
    certainty = TrainSettings().shipping.certainty
    assert compute_certainty([[1.0] * 20] * 2) < certainty <= compute_certainty([[1.0] * 20] * 3)
    assert compute_claim_interval([1.0] * 3).low < 0 < compute_claim_interval([1.0] * 4).low
    assert compute_sizes(10, USUAL_RATIO)[1] == 1 and compute_sizes(10, choose_ratio(10)) == (5, 3, 2)
    assert compute_sizes(10, parse_ratio("2:4:4")) == (2, 4, 4)
