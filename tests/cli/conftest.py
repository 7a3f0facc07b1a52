"""Fixtures for tests of commands."""

import io
from pathlib import Path

import pytest
from tests.cli_kit import WORDS, make_tokenizer

from ludus.cli import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the user is in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]):
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
