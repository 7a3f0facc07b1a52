"""docs/sandboxes.md matches the code: its code runs, its commands and settings are valid."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.config import load
from ludus.config.build_sandboxes import make_profiles
from ludus.sandbox.backends import BACKENDS, get_backend_class

PAGE = (Path(__file__).parents[2] / "docs" / "sandboxes.md").read_text()
LUDUS = [sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())"]


def find_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def find_commands() -> list[str]:
    lines = "\n".join(find_blocks("bash")).replace("\\\n", " ").splitlines()
    return [line.split(" #")[0].strip() for line in lines if line.startswith("ludus ")]


@pytest.mark.parametrize("command", find_commands())
def test_the_commands_are_valid(command, tmp_path):
    """For runs only the settings are printed. Commands on slots are run."""
    words = shlex.split(command.replace("$hosts", "a,b").replace("$SLURM_JOB_ID", "1"))[1:]
    words += ["--print-config"] if words[0] in ("process", "evaluate") else []
    done = subprocess.run(
        [*LUDUS, *words], cwd=tmp_path, capture_output=True, text=True, input="true\n", timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_settings_are_valid(tmp_path):
    (page,) = find_blocks("yaml")
    (tmp_path / "c.yaml").write_text(page)
    profiles = make_profiles(load([tmp_path / "c.yaml"]).sandbox)
    assert {name: get_backend_class(profile).name for name, profile in profiles.items()} == {
        "": "docker",
        "gpu": "modal",
        "cluster": "nomad",
    }


def test_the_code_runs(bwrap, tmp_path):
    (code,) = find_blocks("python")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_every_backend_is_in_the_table():
    listed = set(re.findall(r"^\| `([a-z]+)`", PAGE.split("## Backends")[1].split("```")[0], re.M))
    assert listed == set(BACKENDS)
