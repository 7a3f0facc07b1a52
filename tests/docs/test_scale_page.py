"""docs/scale.md matches the code: its commands have valid settings, and it names every way to start that there is."""

import shlex
from pathlib import Path

import pytest
from tests.docs_kit import ROOT, read_commands
from tests.readme_kit import read_blocks

from ludus.cli import main

PAGE = (ROOT / "docs" / "scale.md").read_text()
(CAPITALS,) = [block.code for block in read_blocks((ROOT / "README.md").read_text()) if block.file == "capitals.py"]
WORDS = [shlex.split(command) for command in read_commands(PAGE.replace("\n   ", "\n"))]


def find_ludus(words: list[str]) -> list[str]:
    """What is given to `ludus` in a command, also in one that submits it; empty if nothing is."""
    if "ludus" in words:
        return words[words.index("ludus") + 1 :]
    script = [number for number, word in enumerate(words) if word.endswith("slurm.sh")]
    return words[script[0] + 1 :] if script else []


@pytest.mark.parametrize("words", [found for words in WORDS if (found := find_ludus(words))], ids=" ".join)
def test_the_settings_are_valid(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "capitals.py").write_text(CAPITALS)
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--print-config"]) == 0
    assert "engine:" in capsys.readouterr().out or "--engine" not in words


def test_the_page_has_every_way_to_start():
    programs = {words[0] for words in WORDS}
    assert {"pip", "ludus", "ray", "sbatch", "kubectl"} <= programs
    for path in (ROOT / "examples" / "scale").iterdir():
        assert f"examples/scale/{path.name}" in PAGE
