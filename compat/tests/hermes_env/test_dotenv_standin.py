"""The stand-in of dotenv."""

import os
from pathlib import Path

import pytest

from ludus.compat.hermes_env.dotenv_standin import dotenv_values, find_dotenv, load_dotenv

TEXT = """# keys
LUDUS_TEST_A=1
export LUDUS_TEST_B = "two # words"  # why
LUDUS_TEST_C=three # why
not a line
"""


def test_variables_are_read_and_set_variables_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / ".env"
    path.write_text(TEXT)
    found = {"LUDUS_TEST_A": "1", "LUDUS_TEST_B": "two # words", "LUDUS_TEST_C": "three"}
    assert dotenv_values(path) == found
    for name in found:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LUDUS_TEST_A", "mine")
    assert load_dotenv(dotenv_path=path)
    assert [os.environ[name] for name in found] == ["mine", "two # words", "three"]
    assert load_dotenv(path, override=True) and os.environ["LUDUS_TEST_A"] == "1"
    for name in found:
        monkeypatch.delenv(name)


def test_a_file_that_is_not_there_sets_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert not load_dotenv(tmp_path / "none")
    (tmp_path / "deep").mkdir()
    (tmp_path / ".env").touch()
    monkeypatch.chdir(tmp_path / "deep")
    assert find_dotenv() == str(tmp_path / ".env")
