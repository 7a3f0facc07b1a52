"""Fixtures for tests of commands, for the `conftest.py` of the folders that have such tests."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import WORDS, make_tokenizer

from ludus.cli import main

TRACKER = """
import json
from pathlib import Path

class Mine:
    def start(self, run):
        self.write({"start": run.name, "project": run.project})
    def log(self, values, step):
        self.write({"step": step, **values})
    def close(self):
        self.write({"close": True})
    def write(self, line):
        with Path("mine.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\\n")
"""
"""A tracker of the user's own, for a file `mine.py`."""


def read_lines(path: str) -> list[dict[str, Any]]:
    """The lines of a file as JSON."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user is in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., tuple[int, str, str]]:
    """Run a command with text on stdin: its exit code, stdout and stderr."""

    def run(*words: str, stdin: bytes | str = b"") -> tuple[int, str, str]:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        code = main(list(words))
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return run


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small tokenizer and a template, as models ship them."""
    pytest.importorskip("tokenizers", reason="the extra 'tokens' is not installed")
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"), WORDS)
