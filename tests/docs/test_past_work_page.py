"""docs/past-work.md: its files and its commands, in order."""

import shlex
import subprocess
import sys
from pathlib import Path

from tests.cli_kit import Ludus
from tests.docs_kit import ROOT, read_blocks, read_files

PAGE = (ROOT / "docs" / "past-work.md").read_text()


def test_the_night_of_the_page(ludus: Ludus, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in read_files(PAGE).items():
        Path(name).write_text(text)
    block = next(block for block in read_blocks(PAGE, "bash") if "ludus sleep" in block.text)
    said: list[str] = []
    for command in block.commands:
        program, *words = shlex.split(command)
        if program == "python":
            subprocess.run([sys.executable, *words], check=True)
            before = Path("reports/SKILL.md").read_bytes()
            continue
        code, out, err = ludus(*words)
        assert code == 0, err
        said.append(out)
        if words == ["adopt", "latest"]:
            assert b"Signed: Ops Team" in Path("reports/SKILL.md").read_bytes()
    assert "32 sessions would be used" in said[0] and "staged: reports" in said[1]
    assert "no difference that could be told" not in said[1], "a first night shows what a gain looks like"
    assert Path("reports/SKILL.md").read_bytes() == before
