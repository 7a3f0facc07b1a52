"""The trainer's own CPU for each rollout: the recipe `ledger` beside `--recipe reflact`, with complete run directories.

    $ python bench/trainer_cpu.py                    easy worlds and worlds with many rules (about 3 minutes)
    $ python bench/trainer_cpu.py --worlds 1 --repeats 1     a look

Both recipes train on the simulated worlds of `bench/optimizer.py`, where a rollout costs next to nothing, so that the
trainer is what remains. The CPU time of the simulated models is taken off. Rollouts are all that were run, the test
included. Recipes take turns, and of the repeats of a run the one with the least CPU counts: other work on the machine
can only add to it. The ledger takes 160 steps where ReflACT takes 20.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from common import ROOT, Check, CommandFailed, describe_machine, print_verdict, render_table

DRIVER = ROOT / "bench" / "peers" / "run_rule_worlds.py"
FAMILIES = ("easy", "many")
VARIANTS = {"ledger": "ledger+store", "reflact": "reflact+store"}
TARGET = 2.0


@dataclass(frozen=True)
class Cost:
    """What one run took."""

    cpu: float
    """Seconds of the trainer."""
    rollouts: int

    @property
    def each(self) -> float:
        """Milliseconds for each rollout."""
        return 1000 * self.cpu / self.rollouts

    @classmethod
    def read(cls, row: dict[str, Any]) -> "Cost":
        return cls(row["trainer_cpu"], sum(row["counts"].values()))


def measure(family: str, seed: int, variant: str) -> Cost:
    """Train once in a process of its own."""
    job = {"variant": variant, "family": family, "repair": True, "seed": seed, "held_out": True}
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    command = ["nice", sys.executable, str(DRIVER)]
    done = subprocess.run(command, input=json.dumps(job) + "\n", capture_output=True, text=True, timeout=900, env=env)
    if done.returncode:
        raise CommandFailed(f"{variant}: exit {done.returncode}\n{done.stderr.strip()[-3000:]}")
    return Cost.read(json.loads(done.stdout))


def measure_family(family: str, worlds: int, repeats: int) -> dict[str, list[Cost]]:
    """The cheapest run of each recipe in each world."""
    best: dict[str, list[Cost]] = {recipe: [] for recipe in VARIANTS}
    for seed in range(worlds):
        found: dict[str, list[Cost]] = {recipe: [] for recipe in VARIANTS}
        for _ in range(repeats):
            for recipe, variant in VARIANTS.items():
                found[recipe].append(measure(family, seed, variant))
        for recipe, costs in found.items():
            best[recipe].append(min(costs, key=lambda cost: cost.cpu))
    return best


def average(costs: Iterable[Cost]) -> float:
    """Milliseconds for each rollout of all runs together."""
    costs = list(costs)
    return 1000 * sum(cost.cpu for cost in costs) / sum(cost.rollouts for cost in costs)


def main() -> int:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", type=int, default=3, help="worlds per family (default 3)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each recipe in each world (default 3)")
    arguments = parser.parse_args()
    rows: list[tuple[object, ...]] = [("worlds", "ledger, ms per rollout", "reflact, ms per rollout", "ratio")]
    checks: list[Check] = []
    for family in FAMILIES:
        costs = measure_family(family, arguments.worlds, arguments.repeats)
        ours, theirs = (average(costs[recipe]) for recipe in ("ledger", "reflact"))
        rows.append((f"{arguments.worlds} {family}", f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}"))
        checks.append(Check(f"{family}: CPU of that of --recipe reflact", ours / theirs, TARGET, "x"))
    print(f"The trainer's CPU for each rollout, on {describe_machine()}\n\n{render_table(rows)}\n")
    return print_verdict("trainer_cpu", checks)


if __name__ == "__main__":
    sys.exit(main())
