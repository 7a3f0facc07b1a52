"""The docs match the code: their code runs, their commands exist, their references are up to date."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.cli.commands import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
LUDUS = Path(sys.executable).with_name("ludus")


def run_ludus(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LUDUS, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def find_commands() -> list[str]:
    """Find every `ludus …` line in the shell blocks of the README. Comments are removed."""
    blocks = re.findall(r"```bash\n(.*?)```", README, re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("ludus ")]


def test_the_environment_of_the_readme_is_valid(tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(code.strip().splitlines()) <= 35
    (tmp_path / "capitals.py").write_text(code)
    done = run_ludus("validate", "capitals.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", find_commands())
def test_the_commands_of_the_readme_are_valid(command: str, tmp_path: Path):
    """Their settings are accepted. The runs themselves are tested elsewhere."""
    (tmp_path / "capitals.py").write_text(re.findall(r"```python\n(.*?)```", README, re.S)[0])
    _, name, *rest = shlex.split(command)
    if name in ("evaluate", "process"):
        rest.append("--print-config")
    done = run_ludus(name, *rest, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_table_of_commands_is_complete():
    listed = set(re.findall(r"`ludus ([a-z]+)", README))
    commands = set(re.findall(r"^  ([a-z]+)  ", run_ludus("--help").stdout, re.M))
    assert commands == {listing.name for listing in COMMANDS}
    assert commands - listed == set()


def test_the_settings_reference_is_up_to_date():
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert text == run_ludus("config").stdout, "run: ludus config > docs/configuration.md"


@pytest.mark.parametrize("page", [*sorted(p.name for p in (ROOT / "docs").glob("*.md")), "../README.md"])
def test_links_point_to_existing_files(page: str):
    path = ROOT / "docs" / page
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"


def test_the_file_tree_of_the_readme_names_files_that_exist():
    tree = re.search(r"## Where things are\n\n```\n(.*?)```", README, re.S)
    assert tree is not None
    names = re.findall(r"\b([a-z_]+\.py)\b", tree[1])
    assert names
    for name in names:
        assert list((ROOT / "src" / "ludus").rglob(name)), f"{name} is in the README, but not in the package"
    parts = {path.name for path in (ROOT / "src" / "ludus").iterdir() if path.suffix == ".py" or path.is_dir()}
    for part in parts - {"__init__.py", "__main__.py", "__pycache__"}:
        assert part in tree[1], f"{part} is in the package, but not in the README"
