"""What larger steps and shared texts cost: requests, tokens and accuracy, in simulated worlds.

    $ python bench/request_sizes.py                  8 development worlds per family (about half an hour)
    $ python bench/request_sizes.py --worlds 2       a look
    $ python bench/request_sizes.py --docs           also write the table into docs/optimizer.md

The recipe `ledger` in the worlds of `bench/optimizer.py`, each with the same 1,600 rollouts. By these figures and by
prices `ludus.reflact.request_sizes` chooses. There are no targets. Half the gain: the mean over worlds of the rollouts
until the working text has half of the gain that is possible. Requests are those to the optimizer. Of the skill's tokens
in all prompts, those are read anew that no earlier prompt had as its beginning.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from common import ROOT, describe_machine, print_verdict, render_table
from optimizer import PAGE, Kept, Method, Place, find_rows, make_chunks, write_page
from peers.rule_world import BUDGET

PART = "bench/request_sizes.py"
FAMILIES = ("easy", "many", "harmful")
VARIANTS = {
    "8, 8, 1": "ledger:batch_size=8,minibatch_size=8,block_size=1",
    "24, 24, 1": "ledger:batch_size=24,minibatch_size=24,block_size=1",
    "8, 8, 2": "ledger:batch_size=8,minibatch_size=8,block_size=2",
    "8, 8, 4": "ledger:batch_size=8,minibatch_size=8,block_size=4",
    "8, 8, 8": "ledger:batch_size=8,minibatch_size=8,block_size=8",
}
"""By tasks per step, rollouts per request and tasks per text. The first are the default."""
DEFAULT = "8, 8, 1"

Rows = dict[tuple[str, str], dict[int, dict[str, Any]]]
"""By family and sizes: the row of each world."""


def collect(rows: Iterable[dict[str, Any]]) -> Rows:
    found: Rows = defaultdict(dict)
    for row in rows:
        found[row["family"], row["method"]][row["seed"]] = row
    return found


def count_half(row: dict[str, Any]) -> int:
    """Rollouts to half the gain."""
    goal = row["start"] + 0.5 * (row["ceiling"] - row["start"])
    return next((spent for spent, accuracy, _ in row["curve"] if accuracy >= goal), BUDGET)


def render(found: Rows) -> str:
    head = (
        "family", "step, request, text", "worlds", "accuracy", "minus the default", "half the gain", "requests",
        "tokens of requests", "skill read anew",
    )  # fmt: skip
    lines: list[tuple[object, ...]] = [head]
    for family in FAMILIES:
        for sizes in VARIANTS:
            if rows := found.get((family, sizes)):
                lines.append((family, sizes, len(rows), *_describe(rows, found[family, DEFAULT])))
    return render_table(lines)


def _describe(rows: dict[int, dict[str, Any]], default: dict[int, dict[str, Any]]) -> Sequence[str]:
    every = list(rows.values())
    gaps = [row["accuracy"] - default[seed]["accuracy"] for seed, row in rows.items()]
    error = stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
    anew = sum(row["tokens"]["new"] for row in every) / sum(row["tokens"]["prompt"] for row in every)
    return (
        f"{fmean(row['accuracy'] for row in every):.3f}",
        "" if rows is default else f"{fmean(gaps):+.3f} ± {error:.3f}",
        f"{fmean(count_half(row) for row in every):.0f}",
        f"{fmean(row['calls'] for row in every):.0f}",
        f"{fmean(row['tokens']['optimizer'] for row in every) / 1000:.0f}k",
        f"{anew:.0%}",
    )


def main() -> int:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=8, help="worlds per family (default 8)")
    parser.add_argument("--results", type=Path, help="keep finished runs in this file, and use those that are in it")
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    arguments = parser.parse_args()
    methods = [Method(name, "ludus", "run_rule_worlds.py", variant, "free") for name, variant in VARIANTS.items()]
    places = [Place(family, True) for family in FAMILIES]
    chunks = make_chunks(methods, places, range(1000, 1000 + arguments.worlds), held_out=False)
    rows = find_rows(chunks, {"ludus": Path(sys.executable)}, 1, Kept(arguments.results))
    table = render(collect(rows))
    print(f"Sizes of steps and requests in development worlds, on {describe_machine()}\n\n{table}\n")
    if arguments.docs:
        write_page(table, {}, PART)
    return print_verdict("request_sizes", [], notes=["no targets: figures for the choice by prices"])


if __name__ == "__main__":
    sys.exit(main())
