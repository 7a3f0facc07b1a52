"""Measure the base install of Ludus: its size, its packages, and how long it takes to start.

    $ python bench/footprint.py

Makes a new virtual environment, installs the project into it without extras, and measures what was added. Sizes include
the bytecode that pip compiles. Times are those of whole processes, with the start of Python. The fastest run is
reported, because other work on the machine only adds time.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, Check, CommandFailed, describe_machine, install, make_empty_venv, print_verdict, render_table

MAX_MB = 60.0
MAX_PACKAGES = 30
MAX_IMPORT_SECONDS = 0.3
MAX_HELP_SECONDS = 0.5


def measure_size(folder: Path) -> float:
    """Measure the size of all files in a folder, in MB. Links are not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 1e6


def list_packages(folder: Path) -> set[str]:
    """List the names of the distributions in a site-packages folder."""
    return {path.name.split("-")[0].lower() for path in folder.glob("*.dist-info")}


def time_best(command: Sequence[str], tries: int) -> float:
    """Time a command, with the start of its process. Returns the seconds of the fastest run."""
    return min(_time_command(command) for _ in range(tries))


def _time_command(command: Sequence[str]) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise CommandFailed(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr.strip()}")
    return seconds


def measure(home: Path, tries: int) -> list[Check]:
    """Install Ludus into `home` and measure every figure."""
    python = make_empty_venv(home)
    site = next((home / "lib").glob("python3*/site-packages"))
    size_before, packages_before = measure_size(site), list_packages(site)
    install(python, [str(ROOT)])
    added = list_packages(site) - packages_before
    print(f"installed: {', '.join(sorted(added))}")
    return [
        Check("install", measure_size(site) - size_before, MAX_MB, "MB"),
        Check("packages", len(added), MAX_PACKAGES),
        Check("import ludus", time_best([str(python), "-c", "import ludus"], tries), MAX_IMPORT_SECONDS, "s"),
        Check("import ludus.cli", time_best([str(python), "-c", "import ludus.cli"], tries), MAX_IMPORT_SECONDS, "s"),
        Check("ludus --help", time_best([str(home / "bin" / "ludus"), "--help"], tries), MAX_HELP_SECONDS, "s"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tries", type=int, default=5, help="runs of each command; the fastest is reported (default 5)"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder) / "venv", options.tries)
    print(describe_machine())
    print(
        render_table(
            [("what", "measured", "target", "unit"), *((c.name, c.value, c.target or 0, c.unit) for c in found)]
        )
    )
    return print_verdict("footprint", found)


if __name__ == "__main__":
    sys.exit(main())
