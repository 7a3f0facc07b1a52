"""The docs match the code: their code runs, their commands exist, their references and links are up to date."""

import re
import shlex
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.docs_kit import PAGES, ROOT, list_anchors, read_commands, read_links
from tests.readme_kit import read_blocks

from ludus.cli.commands import COMMANDS

README = (ROOT / "README.md").read_text()
(CAPITALS,) = [block.code for block in read_blocks(README) if block.file == "capitals.py"]
LUDUS = Path(sys.executable).with_name("ludus")


def run_ludus(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LUDUS, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


# ---- the README -----------------------------------------------------------------------------------------------------


def test_the_readme_is_short_and_has_both_commands():
    assert len(README.splitlines()) <= 125
    assert {"make demo", "make test"} <= set(read_commands(README))
    assert "pip install ludus-train" in read_commands(README)


def test_the_environment_of_the_readme_is_valid(tmp_path: Path):
    assert len(CAPITALS.strip().splitlines()) <= 35
    (tmp_path / "capitals.py").write_text(CAPITALS)
    done = run_ludus("validate", "capitals.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", [each for each in read_commands(README) if each.startswith("ludus evaluate ")])
def test_the_settings_in_the_readme_are_valid(command: str, tmp_path: Path):
    """They are accepted. What can be run without a key is run on a bare install by another test."""
    (tmp_path / "capitals.py").write_text(CAPITALS)
    done = run_ludus(*shlex.split(command)[1:], "--print-config", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_readme_names_commands_that_exist():
    named = set(re.findall(r"`ludus ([a-z]+)", README)) | {
        command.split()[1] for command in read_commands(README) if command.startswith("ludus ")
    }
    assert named <= {listing.name for listing in COMMANDS}


def test_the_tree_of_the_readme_has_every_part():
    tree = re.search(r"## Where things are\n\n```\n(.*?)```", README, re.S)
    assert tree is not None
    package = ROOT / "src" / "ludus"
    folders = {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    named = {word for line in re.findall(r"^(?:src/ludus/)? +((?:\w+ )+) ", tree[1], re.M) for word in line.split()}
    assert folders <= named
    assert {name for name in named if not (package / name).is_dir() and not (package / f"{name}.py").exists()} == set()
    for folder in re.findall(r"^(\w+)/", tree[1], re.M):
        assert (ROOT / folder).is_dir()


# ---- generated pages ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def update_docs() -> Any:
    loader = SourceFileLoader("update_docs", str(ROOT / "scripts" / "update-docs"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module: ModuleType = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_settings_reference_is_up_to_date():
    text = (ROOT / "docs" / "configuration.md").read_text()
    assert text == run_ludus("config").stdout, "run: make docs"


def test_the_page_of_commands_is_up_to_date(update_docs: Any):
    assert (ROOT / "docs" / "commands.md").read_text() == update_docs.make_commands_page(), "run: make docs"


def test_the_page_of_commands_has_every_command_with_an_example(update_docs: Any):
    rows = re.findall(r"^\| \[?`([\w-]+)`.*`(ludus [\w-]+)[^|]*` \|$", update_docs.make_commands_page(), re.M)
    assert sorted(name for name, _ in rows) == sorted(listing.name for listing in COMMANDS)
    assert all(example == f"ludus {name}" for name, example in rows)
    assert set(update_docs.PAGES) <= {listing.name for listing in COMMANDS}


def test_help_lists_every_command():
    commands = set(re.findall(r"^  ([a-z-]+)  ", run_ludus("--help").stdout, re.M))
    assert commands == {listing.name for listing in COMMANDS}


# ---- links ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_point_to_files_and_headings_that_exist(path: Path):
    for link in read_links(path.read_text()):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), f"there is no {link}"
        if anchor and target.suffix == ".md":
            assert anchor in list_anchors(target.read_text()), f"there is no heading for {link}"


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / link.partition("#")[0]).resolve() for link in read_links(index.read_text())}
    pages = {path for path in PAGES if path.parent.name == "docs"} - {index}
    assert {str(path.relative_to(ROOT)) for path in pages - listed} == set()


# ---- contributing ---------------------------------------------------------------------------------------------------


def test_the_table_of_contributing_names_files_that_exist():
    rows = re.findall(r"^\| an? .*$|^\| environments .*$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert len(rows) >= 14
    named = {name for row in rows for name in re.findall(r"`([\w/-]+/[\w.-]*)`", row)}
    places = (ROOT / "src" / "ludus", ROOT)
    assert {name for name in named if not any((place / name).exists() for place in places)} == set()
