"""What runs with few tasks, graded scores or a strong start ship and claim, in simulated worlds.

    $ python bench/small.py                  the report: held-out worlds, 20 seeds (some 5 minutes)
    $ python bench/small.py --development    the worlds on which constants may be chosen; no targets
    $ python bench/small.py --docs           also write the table into docs/optimizer.md

The worlds are in `peers/small_worlds.py`. Every run is one of the real trainer with its defaults (recipe `ledger`). The
true score of each text is known, so the table can say what was shipped and whether the claim's interval covers the
truth. `surely better`: the interval of the claim lies above 0. `useless` is the number of worlds that ship lines where
no line can help, `worse` that of worlds that ship a text which is worse than the initial skill by more than a point.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from common import ROOT, Check, describe_machine, print_verdict, render_table

PAGE = ROOT / "docs" / "optimizer.md"
BEGIN, END = "<!-- made by bench/small.py: begin -->", "<!-- made by bench/small.py: end -->"
HELPFUL = (
    "tiny", "ten", "twenty", "forty", "harmful twenty", "strong", "judged", "judged twenty", "partial",
)  # fmt: skip
USELESS = (
    "memoriser", "memoriser tiny", "memoriser twenty", "quirk tiny", "filler tiny", "filler ten", "filler twenty",
    "filler forty", "filler strong", "filler judged", "filler judged twenty",
)  # fmt: skip
LEAST = {"tiny": 0.45, "strong": 0.965, "judged": 0.85}
"""The true score of what is shipped, at least."""

Row = dict[str, Any]


def run_family(family: str, seeds: Sequence[int], held_out: bool) -> list[Row]:
    """The results of all worlds of a family, from one process."""
    jobs = "".join(json.dumps({"family": family, "seed": seed, "held_out": held_out}) + "\n" for seed in seeds)
    command = [sys.executable, str(ROOT / "bench" / "peers" / "small_worlds.py")]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, input=jobs, capture_output=True, text=True, timeout=1800, env=env)
    if done.returncode:
        raise SystemExit(f"{family}: exit {done.returncode}\n{done.stderr.strip()[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def hash_code() -> str:
    """A hash of the code that decides the results."""
    files = [
        *sorted((ROOT / "src" / "ludus" / "reflact").rglob("*.py")),
        *sorted((ROOT / "bench" / "peers").glob("*.py")),
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def render_rows(results: dict[str, list[Row]]) -> str:
    head = (
        "family", "initial", "ceiling", "working text", "shipped", "ships", "lines", "surely better", "interval covers",
        "worse", "rollouts", "of them shipping",
    )  # fmt: skip
    return render_table([head, *(_make_row(family, rows) for family, rows in results.items())])


def _make_row(family: str, rows: Sequence[Row]) -> tuple[str, ...]:
    def average(name: str) -> float:
        return fmean(row[name] for row in rows)

    covers = [row["covers"] for row in rows if row["covers"] is not None]
    return (
        family,
        f"{average('start'):.3f}",
        "–" if family in USELESS else f"{average('ceiling'):.3f}",
        f"{average('working'):.3f}",
        f"{average('shipped'):.3f}",
        f"{sum(row['ships'] for row in rows)} of {len(rows)}",
        f"{average('lines'):.1f}",
        f"{sum(row['better'] for row in rows)}",
        f"{sum(covers)} of {len(covers)}" if covers else "–",
        f"{sum(row['shipped'] < row['start'] - 0.01 for row in rows)}",
        f"{average('spent'):.0f}",
        f"{average('shipping'):.0f}",
    )


def make_checks(results: dict[str, list[Row]]) -> list[Check]:
    """The checks against the targets."""
    checks = [
        Check(f"{family}: shipped", fmean(row["shipped"] for row in results[family]), least, at_least=True)
        for family, least in LEAST.items()
        if family in results
    ]
    for family in [family for family in USELESS if family in results]:
        kept = fmean(not row["ships"] for row in results[family])
        checks.append(Check(f"{family}: the initial skill stays", kept, 0.9, at_least=True))
    covers = [row["covers"] for rows in results.values() for row in rows if row["covers"] is not None]
    return [*checks, Check("claims whose interval covers the truth", fmean(covers), 0.93, at_least=True)]


def write_page(text: str) -> None:
    """Replace the part of docs/optimizer.md that this script makes."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


def main() -> int:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20, help="worlds per family (default 20)")
    parser.add_argument("--development", action="store_true", help="development worlds, no targets")
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--families", help="only these: 'tiny; filler tiny'")
    parser.add_argument(
        "--results", type=Path, help="keep finished families in this file, and use those that are in it"
    )
    arguments = parser.parse_args()

    wanted = [part.strip() for part in (arguments.families or "").split(";") if part.strip()]
    families = wanted or [*HELPFUL, *USELESS]
    first = 1000 if arguments.development else 0
    seeds = range(first, first + arguments.seeds)
    kept: dict[str, list[Row]] = {}
    if arguments.results and arguments.results.exists():
        kept = json.loads(arguments.results.read_text())
    results: dict[str, list[Row]] = {}
    for family in families:
        key = f"{hash_code()} {family} {seeds} {arguments.development}"
        if key not in kept:
            kept[key] = run_family(family, seeds, not arguments.development)
            if arguments.results:
                arguments.results.write_text(json.dumps(kept))
        results[family] = kept[key]
        print(f"\r{len(results)} of {len(families)} families ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    worlds = f"{arguments.seeds} {'development' if arguments.development else 'held-out'} worlds per family"
    table = render_rows(results)
    print(f"Few tasks and graded scores: {worlds}, on {describe_machine()}\n\n{table}\n")
    if arguments.docs:
        write_page(f"{worlds[0].upper()}{worlds[1:]}.\n\n{table}")
    if arguments.development or wanted:
        return print_verdict("small", [], notes=["no targets: not the whole report"])
    return print_verdict("small", make_checks(results))


if __name__ == "__main__":
    sys.exit(main())
