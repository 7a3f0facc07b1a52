"""Distributions that are built from this checkout, and virtual environments that they are installed in."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
OWN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables of the tests' own environment. With them, an installed command could find this checkout."""

Done = subprocess.CompletedProcess[str]


class Distributions(NamedTuple):
    """What would be uploaded."""

    core_wheel: Path
    core_sdist: Path
    compat_wheel: Path


def build_distributions(folder: Path) -> Distributions:
    """Build sdists, and wheels from them: both have to be complete."""
    for project in (ROOT, ROOT / "compat"):
        run_words([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(project)])
    (core_wheel,), (core_sdist,) = folder.glob("ludus_train-*.whl"), folder.glob("ludus_train-*.tar.gz")
    (compat_wheel,) = folder.glob("ludus_compat-*.whl")
    return Distributions(core_wheel, core_sdist, compat_wheel)


def run_words(words: list[str], cwd: Path | None = None, **variables: str) -> Done:
    """Run a program that has to succeed."""
    done = subprocess.run(words, cwd=cwd, env=make_variables(**variables), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done


def make_variables(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}, **more}


class Installation(NamedTuple):
    """A virtual environment."""

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    @property
    def python(self) -> str:
        return str(self.programs / "python")

    def run_ludus(self, *words: str, cwd: Path) -> Done:
        """Run its command `ludus`, which may fail."""
        return subprocess.run(
            [str(self.programs / "ludus"), *words],
            cwd=cwd,
            env=make_variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )


def install(folder: Path, *requirements: str) -> Installation:
    """Make a virtual environment with nothing but these requirements and what they need, in the tested versions."""
    run_words([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    made = Installation(folder)
    add_packages(made, *requirements)
    return made


def add_packages(installation: Installation, *requirements: str) -> None:
    pip = [sys.executable, "-m", "pip", "--python", installation.python, "--quiet", "--disable-pip-version-check"]
    run_words([*pip, "install", "--no-compile", "-c", str(CONSTRAINTS), *requirements])
