"""Training of skill packages, in simulated worlds whose truth is known.

    $ python bench/packages.py                  the report: held-out worlds, 20 of each family (about 13 CPU minutes)
    $ python bench/packages.py --results FILE   the same; goes on from the runs that are in FILE
    $ python bench/packages.py --peers          install GEPA and SkillOpt first (about 200 MB, once), and run them too
    $ python bench/packages.py --quick          one development world of `flat` and one of `scripts`; no targets
    $ python bench/packages.py --development    the worlds on which constants may be chosen; no targets
    $ python bench/packages.py --docs           also write the table into docs/skills.md
    $ python bench/packages.py --slots          60 real rollouts in bwrap slots in each of two worlds:
                                                is what slots record what agents did?

The worlds are in `peers/package_worlds.py`. Each is trained as a package, and as one document that says the same at
the start, with equally many rollouts, by the real trainer with its defaults (recipe `ledger`). Rollouts are simulated;
the checks of scripts run in bwrap slots. GEPA and SkillOpt get the document, with their defaults and with their best
known settings; GEPA also gets the package as one text (`peers/run_package_peers.py`).

`covers` counts claims whose interval holds the true difference. `lies` counts scripts whose own check passes although
their results are wrong: how many became lines of the ledger, and how many were shipped.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from common import CACHE, ROOT, Check, describe_machine, find_venv, make_venv, print_verdict, render_table

PAGE = ROOT / "docs" / "skills.md"
BEGIN, END = "<!-- made by bench/packages.py: begin -->", "<!-- made by bench/packages.py: end -->"
FAMILIES = ("routed", "bare", "flat", "scripts", "existing", "filler")
MATTERS = ("routed", "bare", "scripts", "existing")
"""Families in which a package can be better than a document."""
PEERS = {"gepa": ("gepa==0.1.4",), "skillopt": ("skillopt==0.2.0",)}
ARMS = {
    "package": ("ludus", "run_package_worlds.py", True),
    "document": ("ludus", "run_package_worlds.py", False),
    "GEPA": ("gepa", "run_package_peers.py", False),
    "GEPA, tuned": ("gepa", "run_package_peers.py", False),
    "GEPA, package": ("gepa", "run_package_peers.py", True),
    "SkillOpt": ("skillopt", "run_package_peers.py", False),
    "SkillOpt, tuned": ("skillopt", "run_package_peers.py", False),
}
"""Each arm: its system, its driver, and whether it trains the package."""

Row = dict[str, Any]


# ---- running --------------------------------------------------------------------------------------------------------


def make_jobs(families: Iterable[str], seeds: Iterable[int], arms: Iterable[str], held_out: bool) -> list[Row]:
    """One job for each world and arm: world by world, so that a run that is stopped has whole comparisons."""
    return [
        {"family": family, "seed": seed, "variant": arm, "whole": ARMS[arm][2], "held_out": held_out}
        for seed in seeds
        for family in families
        for arm in arms
    ]


def run_jobs(jobs: Sequence[Row], pythons: dict[str, Path], workers: int, results: Path | None) -> list[Row]:
    """The rows of all jobs. Those that are in the file `results` and were made by this code are not run again."""
    kept = {row["key"]: row for row in _read_rows(results)}
    missing: dict[tuple[str, int], list[Row]] = defaultdict(list)  # by system and world
    for job in jobs:
        if (key := make_key(job)) not in kept:
            missing[ARMS[job["variant"]][0], job["seed"]].append({**job, "key": key})

    def run_chunk(chunk: list[Row]) -> list[Row]:
        return _run_chunk(chunk, pythons)

    with ThreadPoolExecutor(workers) as pool:
        for number, rows in enumerate(pool.map(run_chunk, missing.values()), 1):
            for row in rows:
                kept[row["key"]] = row
                if results:
                    with results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            print(f"\r{number} of {len(missing)} groups of runs ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [kept[make_key(job)] for job in jobs]


def _read_rows(results: Path | None) -> Iterator[Row]:
    if results and results.exists():
        yield from map(json.loads, results.read_text().splitlines())


def _run_chunk(jobs: Sequence[Row], pythons: dict[str, Path]) -> list[Row]:
    """Run jobs of one system in one process."""
    system, driver, _ = ARMS[jobs[0]["variant"]]
    command = ["nice", str(pythons[system]), str(ROOT / "bench" / "peers" / driver)]
    text, env = "".join(json.dumps(job) + "\n" for job in jobs), {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=3600, env=env)
    if done.returncode:
        raise SystemExit(f"{driver}: exit {done.returncode}\n{done.stderr.strip()[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def make_key(job: Row) -> str:
    """What decides the result of a job: the job, and the code of its arm."""
    return hashlib.sha256(json.dumps([hash_code(job["variant"]), job], sort_keys=True).encode()).hexdigest()[:24]


def hash_code(arm: str, known: dict[str, str] = {}) -> str:  # noqa: B006  # a cache
    if arm not in known:
        system, driver, _ = ARMS[arm]
        own = {"gepa": ["run_gepa.py"], "skillopt": ["run_skillopt_worlds.py"]}.get(system, [])
        files = [ROOT / "bench" / "peers" / name for name in ("rule_world.py", "package_worlds.py", driver, *own)]
        if system == "ludus":
            trainer = sorted((ROOT / "src" / "ludus" / "reflact").rglob("*.py"))
            files += [path for path in trainer if not path.name.startswith("review") and path.parent.name != "report"]
        known[arm] = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return known[arm]


def find_pythons(cache: Path, peers: bool | None) -> dict[str, Path]:
    """The Python of each system. `peers`: True installs them, None uses those that are installed, False uses none."""
    found = {"ludus": Path(sys.executable)}
    for name, requirements in PEERS.items():
        if peers is not False:
            python = make_venv(cache / name, requirements) if peers else find_venv(cache / name, requirements)
            if python:
                found[name] = python
    return found


# ---- the report -----------------------------------------------------------------------------------------------------


def compare(ours: Sequence[Row], theirs: Sequence[Row]) -> tuple[float, float, float]:
    """The mean paired difference in true accuracy, with a 95 % bootstrap interval over worlds."""
    known = {row["seed"]: row["accuracy"] for row in theirs}
    values = [row["accuracy"] - known[row["seed"]] for row in ours if row["seed"] in known]
    rng = Random(0)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(2000))
    return fmean(values), means[49], means[1949]


def select(rows: Iterable[Row], family: str, arm: str) -> list[Row]:
    return [row for row in rows if row["family"] == family and row["variant"] == arm]


def render_rows(rows: Sequence[Row], families: Sequence[str], arms: Sequence[str]) -> str:
    head = (
        "family", "arm", "worlds", "initial", "best known", "shipped", "package minus this", "lines", "in files",
        "claim − truth", "covers", "initial kept",
    )  # fmt: skip
    found: list[tuple[object, ...]] = [head]
    for family in families:
        package = select(rows, family, "package")
        for arm in arms:
            if own := select(rows, family, arm):
                found.append(_make_row(family, arm, own, package))
    return render_table(found)


def _make_row(family: str, arm: str, own: Sequence[Row], package: Sequence[Row]) -> tuple[object, ...]:
    def average(name: str) -> float:
        return fmean(row[name] for row in own)

    covers = [row["covers"] for row in own if row.get("covers") is not None]
    bias = fmean(measure_bias(row) for row in own)
    lead = "" if arm == "package" or not package else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*compare(package, own))
    return (
        family,
        arm,
        len(own),
        f"{average('start'):.3f}",
        f"{average('ceiling'):.3f}",
        f"{average('accuracy'):.3f}",
        lead,
        f"{average('lines'):.1f}",
        f"{average('in_files'):.1f}",
        f"{bias:+.3f}",
        f"{sum(covers)} of {len(covers)}" if covers else "–",
        f"{sum(row['lines'] == row['first_lines'] for row in own)} of {len(own)}" if family == "filler" else "",
    )


def measure_bias(row: Row) -> float:
    return row["claim"] - (row["accuracy"] - row["start"])


def describe_scripts(rows: Sequence[Row]) -> str:
    """What became of scripts, in words."""
    own = [row["scripts"] for row in select(rows, "scripts", "package")]
    if not own:
        return ""
    sums = {name: sum(each[name] for each in own) for name in own[0]}
    return (
        f"Scripts in {len(own)} worlds: {sums['refused']} proposals were refused by their checks in slots, "
        f"{sums['admitted']} became lines, {sums['lies admitted']} of them scripts that lie. Shipped: "
        f"{sums['shipped']}, of them {sums['lies shipped']} that lie."
    )


def make_checks(rows: Sequence[Row]) -> list[Check]:
    """The figures and their targets."""
    leads = {
        family: compare(select(rows, family, "package"), select(rows, family, "document"))[0]
        for family in FAMILIES
        if select(rows, family, "package") and select(rows, family, "document")
    }
    checks = [
        Check(f"{family}: package minus document", lead, 0.0005 if family in MATTERS else -0.01, at_least=True)
        for family, lead in leads.items()
        if family != "filler"
    ]
    package = [row for row in rows if row["variant"] == "package"]
    checks.append(Check("claims, bias", abs(fmean(measure_bias(row) for row in package)), 0.01))
    covers = [row["covers"] for row in package if row["covers"] is not None]
    checks.append(Check("claims that cover the truth", fmean(covers), 0.9, at_least=True))
    if filler := select(rows, "filler", "package"):
        kept = fmean(row["lines"] == row["first_lines"] for row in filler)
        checks.append(Check("filler worlds that keep the initial package", kept, 0.9, at_least=True))
    if scripts := select(rows, "scripts", "package"):
        shipped = sum(row["scripts"]["shipped"] for row in scripts)
        lies = sum(row["scripts"]["lies shipped"] for row in scripts)
        checks.append(Check("scripts shipped that lie", lies / max(1, shipped), 0.02))
    return checks


def write_page(text: str) -> None:
    """Replace the part of docs/skills.md that this script makes."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


def main() -> int:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, help="default: the peers that are installed")
    parser.add_argument("--seeds", type=int, default=20, help="worlds per family (default 20; one with --quick)")
    parser.add_argument("--quick", action="store_true", help="one world of two families, no peers, no targets")
    parser.add_argument("--development", action="store_true", help="development worlds, no targets")
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--families", help="only these: 'routed; flat'")
    parser.add_argument("--arms", help="only these: 'package; document'")
    parser.add_argument("--results", type=Path, help="keep finished runs in this file, and use those that are in it")
    parser.add_argument("--workers", type=int, default=1, help="processes at a time (default 1)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder for the peers (default {CACHE})")
    parser.add_argument("--slots", action="store_true", help="real rollouts in slots instead, two worlds")
    given = parser.parse_args()
    if given.docs and (given.quick or given.development or given.slots or given.families):
        parser.error("--docs is for the whole report: leave out --quick, --development, --slots and --families")
    pythons = find_pythons(given.cache, False if given.quick or given.slots else given.peers)
    if given.slots:
        return run_slots(pythons["ludus"])
    families = _list_wanted(given.families, ("flat", "scripts") if given.quick else FAMILIES)
    arms = [arm for arm in _list_wanted(given.arms, tuple(ARMS)) if ARMS[arm][0] in pythons]
    first = 1000 if given.development or given.quick else 1  # held-out world 0 was looked at before the report
    seeds = range(first, first + (1 if given.quick else given.seeds))
    held_out = not (given.development or given.quick)
    rows = run_jobs(make_jobs(families, seeds, arms, held_out), pythons, given.workers, given.results)
    table = render_rows(rows, families, arms)
    worlds = f"{len(seeds)} {'held-out' if held_out else 'development'} worlds per family"
    print(f"Skill packages: {worlds}, on {describe_machine()}\n\n{table}\n\n{describe_scripts(rows)}\n")
    if given.docs:
        write_page(f"{worlds}.\n\n{table}\n\n{describe_scripts(rows)}".strip())
    whole = held_out and not given.families and "document" in arms
    notes = [] if whole else ["no targets: not the whole report"]
    return print_verdict("packages", make_checks(rows) if whole else [], notes=notes)


def _list_wanted(given: str | None, all_of: Sequence[str]) -> list[str]:
    wanted = [part.strip() for part in (given or "").split(";") if part.strip()]
    return wanted or list(all_of)


def run_slots(python: Path) -> int:
    """Two worlds with real rollouts in slots. Whatever an agent did must be what its slot has recorded."""
    driver = ROOT / "bench" / "peers" / "run_package_slots.py"
    done = subprocess.run(["nice", str(python), str(driver)], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise SystemExit(done.stderr.strip()[-3000:])
    found = json.loads(done.stdout)
    print(render_table([tuple(found[0]), *(tuple(row.values()) for row in found)]))
    rollouts, wrong = sum(row["rollouts"] for row in found), sum(row["wrong records"] for row in found)
    return print_verdict("packages --slots", [Check("records that are not what the agent did", wrong / rollouts, 0.0)])


if __name__ == "__main__":
    sys.exit(main())
