"""The user's editor."""

import sys
from pathlib import Path

import pytest

from ludus.command.text_editor import edit_text
from ludus.errors import ConfigError


def test_the_text_comes_back_as_the_editor_left_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    editor = tmp_path / "editor.py"
    editor.write_text("import sys; path = sys.argv[1]; text = open(path).read(); open(path, 'w').write(text.upper())")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {editor}")
    assert edit_text("one\ntwo") == "ONE\nTWO"


def test_an_editor_that_fails_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "false")
    with pytest.raises(ConfigError, match="the editor false ended with exit code 1"):
        edit_text("one")
    monkeypatch.setenv("EDITOR", "/nowhere/editor")
    with pytest.raises(ConfigError, match=r"cannot be started .*set \$EDITOR"):
        edit_text("one")
