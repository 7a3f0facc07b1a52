"""`ludus validate`."""

import json
from pathlib import Path

import pytest
from tests.cli_kit import (
    SUMS,
    Ludus,
    write_sums,
)


@pytest.fixture(autouse=True)
def _files(folder: Path) -> None:
    write_sums(folder)


def test_validate_ends_with_its_verdict(ludus: Ludus, folder: Path):
    assert ludus("validate", "sums.py") == (0, ludus("validate", "sums.py").out, "")
    assert json.loads(ludus("validate", "sums.py", "--json").out)["ok"] is True
    (folder / "wrong.py").write_text(SUMS.replace("return task.answer", "return 'x'"))
    code, out, _ = ludus("validate", "wrong.py", "--env.limit", "2")
    assert code == 1
    assert "fail    score of the gold solution (must be 1): 2 of 2 tasks" in out
    assert json.loads(ludus("validate", "wrong.py", "--json").out)["ok"] is False


def test_validate_in_a_real_sandbox(ludus: Ludus):
    code, out, err = ludus("validate", "terminal-test", "--env.limit", "2")
    assert code == 0, out + err
    assert "ok      files after two setups (must be equal)" in out
    assert "ok      answers in the slot or prompt" in out
