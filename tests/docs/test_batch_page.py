"""docs/batch.md: the checker of the page judges, and the page names every field of a row and every filter."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from tests.cli_kit import Ludus
from tests.docs_kit import ROOT
from tests.readme_kit import read_blocks
from tests.trajectories_kit import SCRIPT, write_prompts

from ludus.batch_settings import FilterName
from ludus.trajectories.prompt_rows import PromptRow

PAGE = (ROOT / "docs" / "batch.md").read_text()


def test_the_checker_of_the_page_judges(ludus: Ludus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (check,) = [block.code for block in read_blocks(PAGE) if "def is_right" in block.code]
    (tmp_path / "checks.py").write_text(check)
    write_prompts(tmp_path, {"prompt": "2+2?", "answer": "4"}, {"prompt": "2+3?", "answer": "6"})
    flags = ("--check", "checks.py:is_right", "--drop", "failed-check", "--env.slots", "none", "--json", *SCRIPT)
    code, out, err = ludus("batch", "prompts.jsonl", "--out", "runs/checked", *flags)
    assert code == 0, err
    assert json.loads(out)["statistics"]["dropped"] == {"failed-check": 1}


def test_the_page_names_every_field_and_every_filter():
    named = set(re.findall(r"`([a-z_-]+)`", PAGE))
    assert set(PromptRow.__struct_fields__) <= named
    assert set(get_args(FilterName)) <= named
