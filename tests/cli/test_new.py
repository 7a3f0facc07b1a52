"""`ludus new env`: what it writes is valid at once, by its file and by its name."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.cli_kit import LUDUS, Ludus

from ludus.cli.new import write_package


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "odd-jobs"
    write_package(folder, "odd-jobs")
    return folder


def test_the_environment_is_valid_at_once(ludus: Ludus):
    code, out, _ = ludus("new", "env", "odd-jobs")
    assert code == 0 and "ludus validate odd-jobs/src/odd_jobs/env.py" in out
    code, out, err = ludus("validate", "odd-jobs/src/odd_jobs/env.py", "--env.split", "test")
    assert code == 0 and "no problems\n" in out, out + err


def test_the_entry_point_gives_it_a_name(package: Path, tmp_path: Path):
    """As `pip install -e` does: its metadata and its folder are on the path."""
    project = tomllib.loads((package / "pyproject.toml").read_text())
    ((name, place),) = project["project"]["entry-points"]["ludus.envs"].items()
    metadata = tmp_path / "odd_jobs-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: odd-jobs\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(f"[ludus.envs]\n{name} = {place}\n")
    done = subprocess.run(
        [*LUDUS, "validate", "odd-jobs", "--env.limit", "1", "--env.seconds", "5"],
        env={"PYTHONPATH": f"{package / 'src'}:{tmp_path}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0 and "no problems" in done.stdout, done.stdout + done.stderr


def test_its_tests_pass(package: Path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "wrong_program"]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_its_code_is_formatted_and_checked_like_ours(package: Path):
    for action in (["format", "--check"], ["check", "--select", "E,F,W,I,UP,B,SIM"]):
        command = [sys.executable, "-m", "ruff", *action, "--isolated", "--no-cache", "--line-length", "120", "."]
        done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Word_Games", "use lower-case letters"),
        ("json", "a module of Python or Ludus"),
        ("class", "a module of Python or Ludus"),
        ("gsm8k", "there is an environment 'gsm8k' already"),
        ("../x", "use lower-case letters"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(ludus: Ludus, folder: Path, name: str, words: str):
    assert words in ludus("new", "env", name).err
    assert list(folder.iterdir()) == []


def test_nothing_is_written_over(ludus: Ludus, folder: Path):
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").touch()
    assert "mine is not an empty folder" in ludus("new", "env", "games", "--folder", "mine").err
    assert ludus("new", "env", "games", "--folder", "other").code == 0
    assert (folder / "other" / "src" / "games" / "env.py").exists()
