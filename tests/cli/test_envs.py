"""`ludus envs`."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import Ludus

from ludus.env import EnvFacts
from ludus.envs import gsm8k

ROOT = Path(__file__).parents[2]


def test_environments_are_listed(ludus: Ludus):
    rows = {row["name"]: row for row in json.loads(ludus("envs", "--json").out)}
    assert rows["gsm8k"]["tasks"] == {"train": 8, "validation": 0, "test": 4}
    assert rows["orders"]["tasks"] == {"train": 24, "validation": 32, "test": 64}
    assert list(rows["gsm8k"]["options"]) == ["path"]
    assert rows["terminal-test"]["sandbox"] is True
    assert rows["terminal-test"]["facts"]["licence"].startswith("MIT")
    text = ludus("envs").out
    assert "--env.path" in text and "--env.version" not in text


def test_the_table_in_the_docs_is_up_to_date(ludus: Ludus):
    page = (ROOT / "docs" / "environments.md").read_text()
    table = page.partition("<!-- table -->\n")[2].partition("<!-- end of the table -->")[0]
    assert table == ludus("envs", "--markdown").out, "run: make docs"


def test_every_environment_says_its_licence_and_how_it_is_scored(ludus: Ludus):
    rows = json.loads(ludus("envs", "--json").out)
    assert [row["name"] for row in rows if not row["facts"]["licence"] or not row["facts"]["scored"]] == []


def test_words_in_place_of_a_count(monkeypatch: pytest.MonkeyPatch, ludus: Ludus):
    """Such an environment is listed without its data: its tasks are not read."""
    monkeypatch.setattr(gsm8k.Gsm8k, "facts", EnvFacts(tasks="one per row of `env.path`"))
    monkeypatch.setattr(gsm8k.Gsm8k, "tasks", None)
    assert "| one per row of `env.path` |" in ludus("envs", "--markdown").out


def test_the_table_of_environments_has_no_empty_cell_but_extras(ludus: Ludus):
    rows = [line.split(" | ") for line in ludus("envs", "--markdown").out.splitlines()[2:]]
    for *cells, _extra, speed, audit in rows:
        assert all(cell.strip(" |") for cell in [*cells, speed, audit]), cells[0]
