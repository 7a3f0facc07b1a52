"""Shared by the benchmarks: tables, verdicts, and virtual environments for the systems that Ludus is compared with.

A benchmark prints a table and one line, `NAME: PASS …` or `NAME: FAIL …`. The exit code is 1 when a target is missed,
so scripts can use it:

    >>> print(render_table([("system", "ms"), ("ours", 0.31), ("peer", 7.9)]))
    | system |   ms |
    |--------|-----:|
    | ours   | 0.31 |
    | peer   |  7.9 |
    >>> print_verdict("loop", [Check("cpu", 0.31, 0.6, "ms/turn"), Check("lead", 25, 12, "x", at_least=True)])
    loop: PASS cpu 0.31 ms/turn (target ≤ 0.6), lead 25 x (target ≥ 12)
    0

This module uses only the standard library: it runs before anything is installed.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The project's folder."""
CACHE = Path.home() / ".cache" / "ludus" / "bench"
"""The folder for virtual environments of peers. They are kept between runs."""


# ---- options ------------------------------------------------------------------------------------------------------


def make_rounds_parser(doc: str | None) -> argparse.ArgumentParser:
    """Make the parser for benchmarks that run Ludus and peers in rounds. `doc` is the docstring of the script."""
    summary, _, rest = (doc or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, help="default: the peers that are installed")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to run; the medians are reported (default 3)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder for the peers (default {CACHE})")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit of one run (default 300)")
    return parser


# ---- output -------------------------------------------------------------------------------------------------------


def render_table(rows: Sequence[Sequence[object]]) -> str:
    """Render rows as a Markdown table. The first row is the header. Columns of numbers are aligned to the right."""
    texts = [[_format_cell(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    right = [any(isinstance(row[i], int | float) for row in rows[1:]) for i in range(len(texts[0]))]

    def format_line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True))
    return "\n".join([format_line(texts[0]), f"|{rule}|", *map(format_line, texts[1:])])


def _format_cell(cell: object) -> str:
    return format_figure(cell) if isinstance(cell, int | float) else str(cell)


def format_figure(number: float) -> str:
    """Format a number: three decimals when it is small, none when it is large.

    >>> [format_figure(n) for n in (0.03125, 0.6, 7.941, 24.27, 1312.4)]
    ['0.031', '0.6', '7.94', '24.3', '1312']
    """
    digits = 3 if abs(number) < 0.1 else 2 if abs(number) < 10 else 1 if abs(number) < 100 else 0
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Check:
    """A measured figure and its target. Without a target it is only reported."""

    name: str
    value: float
    target: float | None = None
    unit: str = ""
    at_least: bool = False
    """The target is a minimum, not a maximum."""

    @property
    def passed(self) -> bool:
        if self.target is None:
            return True
        return self.value >= self.target if self.at_least else self.value <= self.target

    def __str__(self) -> str:
        measured = f"{self.name} {format_figure(self.value)}{' ' if self.unit else ''}{self.unit}"
        if self.target is None:
            return measured
        word, sign = ("target" if self.passed else "MISSED target"), ("≥" if self.at_least else "≤")
        return f"{measured} ({word} {sign} {format_figure(self.target)})"


def print_verdict(name: str, checks: Sequence[Check], *, notes: Sequence[str] = ()) -> int:
    """Print the summary line. Returns the exit code: 1 when a target is missed."""
    passed = all(check.passed for check in checks)
    print(f"{name}: {'PASS' if passed else 'FAIL'} {', '.join([*map(str, checks), *notes])}")
    return 0 if passed else 1


def describe_machine() -> str:
    """Describe the machine and its load, for the line above the table."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} cores, load average {load}, Python {version}"


# ---- virtual environments -----------------------------------------------------------------------------------------


class CommandFailed(SystemExit):
    """A required command failed. If it is not caught, the benchmark ends with the command's output."""


def find_venv(home: Path, requirements: Sequence[str]) -> Path | None:
    """Find the Python of a virtual environment that was made for exactly these requirements."""
    marker = home / "requirements.txt"
    python = home / "bin" / "python"
    if python.exists() and marker.exists() and marker.read_text().split("\n") == list(requirements):
        return python
    return None


def make_venv(home: Path, requirements: Sequence[str], base: str = sys.executable) -> Path:
    """Make a virtual environment with these requirements, or reuse it. Returns its Python."""
    if python := find_venv(home, requirements):
        return python
    python = make_empty_venv(home, base)
    install(python, requirements)
    (home / "requirements.txt").write_text("\n".join(requirements))  # last: it marks a complete install
    return python


def make_empty_venv(home: Path, base: str = sys.executable) -> Path:
    """Make a new virtual environment from the Python `base`. An old one in the same folder is deleted."""
    if (home / "pyvenv.cfg").exists():
        shutil.rmtree(home)
    home.parent.mkdir(parents=True, exist_ok=True)
    uv = _find_uv()
    _run([uv, "venv", "-q", "--python", base, str(home)] if uv else [base, "-m", "venv", str(home)])
    return home / "bin" / "python"


def find_python(minor: int) -> str | None:
    """Find a Python 3 of at least this minor version: the current one, one on the path, or one of pyenv or uv."""
    names = [f"python3.{number}" for number in range(minor, minor + 4)]
    managed = [
        *Path.home().glob(".pyenv/versions/3.*/bin/python3"),
        *Path.home().glob(".local/share/uv/python/*/bin/python3"),
    ]
    for candidate in [sys.executable, *filter(None, map(shutil.which, names)), *map(str, managed)]:
        test = f"import sys; sys.exit(sys.version_info < (3, {minor}))"
        if subprocess.run([candidate, "-c", test], capture_output=True).returncode == 0:
            return candidate
    return None


def install(python: Path, requirements: Sequence[str]) -> None:
    uv = _find_uv()
    pip = [uv, "pip", "install", "--compile-bytecode"] if uv else [str(python), "-m", "pip", "install"]
    where = ["--python", str(python)] if uv else []
    _run([*pip, "-q", *where, *requirements])


def _find_uv() -> str | None:
    """Find uv next to the current Python or on the path. It is ten times faster than pip."""
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr.strip()}")
