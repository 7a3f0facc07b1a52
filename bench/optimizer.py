"""Compare optimizers of a skill in simulated worlds whose true accuracy is known.

    $ python bench/optimizer.py                  the report: held-out worlds, 24 seeds, all methods (about 15 minutes)
    $ python bench/optimizer.py --peers          install GEPA and SkillOpt first (about 200 MB, once)
    $ python bench/optimizer.py --short          4 seeds; a look, no targets
    $ python bench/optimizer.py --development    the worlds on which constants may be chosen; no targets
    $ python bench/optimizer.py --docs           also write tables and plots into docs/optimizer.md
    $ python bench/optimizer.py --lines          the families of peers/line_worlds.py instead: a skill that exists, and
                                                 analysts who say less than they could

The worlds are in `peers/rule_world.py`: an agent succeeds on an item if its skill has the rules that the item needs. An
optimizer that is a function proposes lines, good and bad ones, from what it is shown. Families: `easy`; `small`, with
17 selection items; `many` rules with weak hints; `harmful`, where 40 % of the proposals do harm; each with an optimizer
that can repair the lines it blames, and with one that can only append. In `filler` worlds no proposal does anything.
Four more families have lines that need each other, several names for one situation, an agent that ignores lines, and an
agent that reads only the first lines.

Every method has 1,600 rollouts: those for training, selection, evidence and shipping count. Nothing that is reported
here was tuned on these worlds. GEPA 0.1.4 and SkillOpt 0.2.0 are the real packages, used through their interfaces; the
same optimizer proposes for all. Each has its default settings and the best ones that are known for such worlds.

Rollouts to half the gain: until the skill that would be used has half of the gain that is possible, by its true
accuracy. A run that never gets there counts as 1,600. Intervals are 95 %, by bootstrap over worlds, paired: the same
worlds under both methods. A wrong accept is an accepted candidate whose true change is not above zero. A wrong reject
is a rejected one with a true gain above half a point. The claim is what the method says about its own gain.
`bench/trainer_cpu.py` measures the trainer's CPU in these worlds, `bench/request_sizes.py` what larger steps cost.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median, stdev
from typing import Any

from common import (
    CACHE,
    ROOT,
    Check,
    CommandFailed,
    describe_machine,
    find_venv,
    make_venv,
    print_verdict,
    render_table,
)
from peers.rule_world import BUDGET

sys.path.insert(0, str(ROOT / "bench" / "peers"))
import line_worlds  # it imports rule_world as the drivers do

DRIVERS = ROOT / "bench" / "peers"
PAGE = ROOT / "docs" / "optimizer.md"
PEERS = {"gepa": ("gepa==0.1.4",), "skillopt": ("skillopt==0.2.0",)}
RECIPE = "ledger"
"""The method that the targets are about."""
PAIRED = ("easy", "small", "many", "harmful")
"""Families that are run with and without repair."""
STRESS = ("partners", "names", "ignore", "context")
CHUNK = 10
"""Runs per process."""


@dataclass(frozen=True)
class Method:
    """A system with its settings."""

    name: str
    system: str
    driver: str
    variant: str
    role: str
    """`recipe`, `gated` or `free` (ours), `default` or `tuned` (a peer's), `floor`."""


METHODS = (
    Method(RECIPE, "ludus", "run_rule_worlds.py", "ledger", "recipe"),
    Method("ReflACT", "ludus", "run_rule_worlds.py", "reflact", "gated"),
    Method("ReflACT, tuned", "ludus", "run_rule_worlds.py", "reflact-tuned", "gated"),
    Method("gate off", "ludus", "run_rule_worlds.py", "gate-off", "free"),
    Method("GEPA", "gepa", "run_gepa.py", "default", "default"),
    Method("GEPA, tuned", "gepa", "run_gepa.py", "tuned", "tuned"),
    Method("SkillOpt", "skillopt", "run_skillopt_worlds.py", "default", "default"),
    Method("SkillOpt, tuned", "skillopt", "run_skillopt_worlds.py", "tuned", "tuned"),
    Method("random search", "ludus", "run_rule_worlds.py", "random", "floor"),
)


@dataclass(frozen=True, order=True)
class Place:
    """A family of worlds, with or without repair."""

    family: str
    repair: bool

    @property
    def title(self) -> str:
        return self.family if self.repair else f"{self.family}, append only"

    def count_worlds(self, most: int) -> int:
        """The number of its worlds: a third of the others' in the stress families."""
        return -(-most // 3) if self.family in STRESS else most


PLACES = (*(Place(f, True) for f in PAIRED), *(Place(f, False) for f in PAIRED), Place("filler", True))
LINE_PLACES = (
    *(Place(family, True) for family in line_worlds.HELD_OUT),
    *(Place(family, False) for family in line_worlds.APPEND_ONLY),
)
STRESS_PLACES = tuple(Place(family, True) for family in STRESS)


@dataclass(frozen=True)
class Outcome:
    """The result of one run in one world."""

    start: float
    ceiling: float
    accuracy: float
    lines: int
    claim: float
    curve: Sequence[tuple[int, float, int]]
    decisions: Sequence[tuple[float, bool]]
    tokens: dict[str, int]

    @classmethod
    def read(cls, row: dict[str, Any]) -> "Outcome":
        names = ("start", "ceiling", "accuracy", "lines", "claim", "curve", "decisions")
        return cls(**{name: row[name] for name in names}, tokens=row.get("tokens", {}))

    @property
    def half(self) -> int:
        """Rollouts to half the gain."""
        goal = self.start + 0.5 * (self.ceiling - self.start)
        return next((spent for spent, accuracy, _ in self.curve if accuracy >= goal), BUDGET)

    def read_curve(self, spent: int) -> float:
        """The true accuracy of the skill that would be used after this many rollouts."""
        known = [accuracy for count, accuracy, _ in self.curve if count <= spent]
        return known[-1] if known else self.start


Results = dict[tuple[str, Place], dict[int, Outcome]]
"""By method and place: the outcome of each seed."""


# ---- running --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """Jobs of one driver process."""

    method: Method
    jobs: tuple[dict[str, Any], ...]


def make_chunks(
    methods: Iterable[Method], places: Iterable[Place], seeds: Sequence[int], held_out: bool
) -> list[Chunk]:
    """The jobs of all methods, place by place."""
    methods = list(methods)
    chunks: list[Chunk] = []
    for place in places:
        own = seeds[: place.count_worlds(len(seeds))]
        for method in methods:
            jobs = [
                {"method": method.name, "variant": method.variant, "family": place.family, "repair": place.repair}
                | {"seed": seed, "held_out": held_out}
                for seed in own
            ]
            chunks += [Chunk(method, tuple(jobs[n : n + CHUNK])) for n in range(0, len(jobs), CHUNK)]
    return chunks


def run_chunks(chunks: Sequence[Chunk], pythons: dict[str, Path], workers: int) -> Iterator[list[dict[str, Any]]]:
    """Run all chunks, a few processes at a time. Yields the rows of each."""
    with ThreadPoolExecutor(workers) as pool:
        for number, rows in enumerate(pool.map(lambda chunk: _run_chunk(chunk, pythons), chunks), 1):
            print(f"\r{number} of {len(chunks)} groups of runs ", end="", file=sys.stderr, flush=True)
            yield rows
    print(file=sys.stderr)


def _run_chunk(chunk: Chunk, pythons: dict[str, Path]) -> list[dict[str, Any]]:
    command = ["nice", str(pythons[chunk.method.system]), str(DRIVERS / chunk.method.driver)]
    text = "".join(json.dumps(job) + "\n" for job in chunk.jobs)
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=1800, env=env)
    if done.returncode:
        raise CommandFailed(f"{chunk.method.name}: exit {done.returncode}\n{done.stderr.strip()[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def find_pythons(cache: Path, peers: bool | None) -> dict[str, Path]:
    """The Python of each system. `peers`: True installs them, None uses those that are installed, False uses none."""
    found = {"ludus": Path(sys.executable)}
    for name, requirements in PEERS.items():
        if peers is not False:
            python = make_venv(cache / name, requirements) if peers else find_venv(cache / name, requirements)
            if python:
                found[name] = python
    return found


def collect(rows: Iterable[dict[str, Any]]) -> Results:
    results: Results = defaultdict(dict)
    for row in rows:
        results[row["method"], Place(row["family"], row["repair"])][row["seed"]] = Outcome.read(row)
    return results


class Kept:
    """Rows of earlier runs in a file, so that a run that was interrupted goes on. They are used only while the code
    that made them is the same."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        if path and path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.rows[row["key"]] = row

    def make_key(self, method: Method, job: dict[str, Any]) -> str:
        return hashlib.sha256(json.dumps([_hash_code(method), job], sort_keys=True).encode()).hexdigest()[:24]

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self.rows[row["key"]] = row
            if self.path:
                with self.path.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def _hash_code(method: Method, known: dict[str, str] = {}) -> str:  # noqa: B006  # a cache
    if method.name not in known:
        files = [DRIVERS / "rule_world.py", DRIVERS / "line_worlds.py", DRIVERS / method.driver]
        if method.system == "ludus":
            trainer = sorted((ROOT / "src" / "ludus" / "reflact").rglob("*.py"))
            files += [path for path in trainer if path.parent.name != "ledger" or method.variant.startswith("ledger")]
        known[method.name] = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return known[method.name]


def run_all(chunks: Sequence[Chunk], pythons: dict[str, Path], workers: int, kept: Kept) -> Results:
    """The results of all jobs."""
    return collect(find_rows(chunks, pythons, workers, kept))


def find_rows(chunks: Sequence[Chunk], pythons: dict[str, Path], workers: int, kept: Kept) -> list[dict[str, Any]]:
    """The rows of all jobs: those that are kept, and the others, which are run."""
    missing: list[Chunk] = []
    wanted: list[str] = []
    for chunk in chunks:
        keyed = [(kept.make_key(chunk.method, job), job) for job in chunk.jobs]
        wanted += [key for key, _ in keyed]
        if jobs := tuple({**job, "key": key} for key, job in keyed if key not in kept.rows):
            missing.append(Chunk(chunk.method, jobs))
    for rows in run_chunks(missing, pythons, workers):
        kept.add(rows)
    return [kept.rows[key] for key in wanted]


# ---- judging --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A mean over worlds and its interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def compare(
    ours: dict[int, Outcome], theirs: dict[int, Outcome], read: Callable[[Outcome], float] = lambda o: o.accuracy
) -> Difference:
    """The paired difference over worlds, with a bootstrap interval."""
    values = [read(ours[seed]) - read(theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    rng = Random(0)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(2000))
    return Difference(fmean(values), means[49], means[1949])


def compare_half(ours: dict[int, Outcome], theirs: dict[int, Outcome]) -> float:
    """The median over worlds of the ratio of rollouts to half the gain."""
    return median(ours[seed].half / theirs[seed].half for seed in ours.keys() & theirs.keys())


def _count_wrong(outcomes: Iterable[Outcome]) -> tuple[str, str]:
    """The shares of worthless candidates that were accepted, and of good ones that were rejected."""
    decisions = [decision for outcome in outcomes for decision in outcome.decisions]
    worthless = [accepted for change, accepted in decisions if change <= 0]
    good = [accepted for change, accepted in decisions if change > 0.005]
    return _share(sum(worthless), len(worthless)), _share(len(good) - sum(good), len(good))


def _share(count: int, total: int) -> str:
    return f"{count / total:.0%}" if total else "–"


def render_place(results: Results, place: Place, methods: Sequence[Method]) -> str:
    head = (
        "method", "half the gain", "reached", "accuracy at 1,600", "median", f"{RECIPE} minus this",
        "lines", "claim − truth", "wrong accepts", "wrong rejects",
    )  # fmt: skip
    recipe = results.get((RECIPE, place), {})
    rows: list[tuple[object, ...]] = []
    for method in methods:
        found = results.get((method.name, place), {})
        if not found:
            continue
        outcomes = [found[seed] for seed in sorted(found)]
        reached = sum(outcome.half < BUDGET for outcome in outcomes)
        half = median(outcome.half for outcome in outcomes)
        truth = fmean(o.claim - (o.accuracy - o.start) for o in outcomes)
        rows.append((
            method.name,
            "–" if place.family == "filler" else f"{half:.0f}" if half < BUDGET else f"> {BUDGET:,}",
            "–" if place.family == "filler" else f"{reached} of {len(outcomes)}",
            f"{fmean(o.accuracy for o in outcomes):.3f}",
            f"{median(o.accuracy for o in outcomes):.3f}",
            str(compare(recipe, found)) if recipe and method.name != RECIPE else "",
            f"{fmean(o.lines for o in outcomes):.1f}",
            f"{truth:+.3f}",
            *_count_wrong(outcomes),
        ))  # fmt: skip
    return render_table([head, *rows])


def describe_place(results: Results, place: Place) -> str:
    any_of = next(found for (_, at), found in results.items() if at == place)
    start, ceiling = fmean(o.start for o in any_of.values()), fmean(o.ceiling for o in any_of.values())
    return f"{place.title}: {len(any_of)} worlds; the initial skill {start:.3f}, the ceiling {ceiling:.3f}"


def make_checks(results: Results, methods: Sequence[Method]) -> tuple[list[Check], list[str]]:
    """The checks against the targets, and notes on what is missing."""
    recipe = {place: found for (name, place), found in results.items() if name == RECIPE}
    if not recipe:
        return [], [f"{RECIPE}: not run"]
    notes = [f"{name} not installed" for name in PEERS if not any(m.system == name for m in methods)]
    checks: list[Check] = []
    for role, target in (("default", 0.2), ("tuned", 1 / 3)):
        peers = [method.name for method in methods if method.role == role]
        ratios = [
            compare_half(recipe[place], results[name, place])
            for name in peers
            for place in (Place("easy", True), Place("small", True))
        ]
        if ratios:
            checks.append(Check(f"half the gain, of a peer's {role} rollouts", max(ratios), target))
    rivals = [method.name for method in methods if method.role in ("default", "tuned", "gated")]
    worst = min(
        ((compare(recipe[place], results[name, place]), name, place) for place in recipe for name in rivals
         if place.family in PAIRED),
        key=lambda entry: entry[0].mean,
    )  # fmt: skip
    checks.append(Check(f"smallest lead ({worst[1]}, {worst[2].title})", worst[0].mean, 0.0005, at_least=True))
    easy = recipe[Place("easy", True)].values()
    share = fmean(o.accuracy / o.ceiling for o in easy)
    checks.append(Check("of the ceiling in easy worlds", share, 0.93, at_least=True))
    filler = recipe[Place("filler", True)].values()
    kept = fmean(outcome.lines == 0 for outcome in filler)
    checks.append(Check("filler worlds that keep the initial skill", kept, 0.9, at_least=True))
    change = fmean(outcome.accuracy - outcome.start for outcome in filler)
    checks.append(Check("true change in filler worlds", change, -0.01, at_least=True))
    return checks, notes


# ---- plots ----------------------------------------------------------------------------------------------------------

COLORS = {
    RECIPE: "#c0392b", "ReflACT": "#7f8c8d", "ReflACT, tuned": "#2c3e50", "gate off": "#16a085",
    "GEPA, tuned": "#8e44ad", "SkillOpt, tuned": "#d68910", "GEPA": "#c39bd3", "SkillOpt": "#f5cba7",
}  # fmt: skip


def draw_curves(results: Results, place: Place, methods: Sequence[Method]) -> str:
    """The mean true accuracy by rollouts, as SVG."""
    width, height, left, top = 460, 240, 40, 24
    points = list(range(0, BUDGET + 1, 20))

    def at(spent: float, accuracy: float) -> str:
        return f"{left + (width - left - 10) * spent / BUDGET:.1f},{top + (height - top - 30) * (1 - accuracy):.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + 130} {height}" font-family="sans-serif" '
        f'font-size="10"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{left}" y="14" font-size="12">{place.title}: true accuracy by rollouts</text>'
    ]
    for level in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = at(0, level).split(",")
        parts.append(f'<line x1="{x}" x2="{width - 10}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{float(y) + 3}" text-anchor="end">{level:g}</text>')
    for spent in (0, 400, 800, 1200, 1600):
        x, _ = at(spent, 0).split(",")
        parts.append(f'<text x="{x}" y="{height - 12}" text-anchor="middle">{spent}</text>')
    shown = [method for method in methods if method.name in COLORS and (method.name, place) in results]
    for row, method in enumerate(shown):
        found = results[method.name, place].values()
        line = " ".join(at(spent, fmean(o.read_curve(spent) for o in found)) for spent in points)
        color, thick = COLORS[method.name], 2.5 if method.name == RECIPE else 1.3
        parts.append(f'<polyline fill="none" stroke="{color}" stroke-width="{thick}" points="{line}"/>')
        y = top + 10 + 16 * row
        parts.append(
            f'<line x1="{width}" x2="{width + 18}" y1="{y}" y2="{y}" stroke="{color}" stroke-width="{thick}"/>'
        )
        parts.append(f'<text x="{width + 24}" y="{y + 3}">{method.name}</text>')
    return "".join([*parts, "</svg>\n"])


# ---- the page -------------------------------------------------------------------------------------------------------

PART = "bench/optimizer.py"
LINES_PART = "bench/optimizer.py --lines"


def write_page(text: str, plots: dict[str, str], part: str = PART) -> None:
    """Replace a part of docs/optimizer.md that the script makes, and its plots."""
    begin, end = f"<!-- made by {part}: begin -->", f"<!-- made by {part}: end -->"
    page = PAGE.read_text()
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
    for name, svg in plots.items():
        (PAGE.parent / name).write_text(svg)


def render_lines(results: Results, places: Sequence[Place], methods: Sequence[Method]) -> str:
    """One row for each family: the accuracy that each method ships, with its standard error over worlds."""
    rows: list[tuple[object, ...]] = [("family", "worlds", "initial", "ceiling", *(method.name for method in methods))]
    for place in places:
        found = [results.get((method.name, place), {}) for method in methods]
        any_of = next(each for each in found if each)
        start, ceiling = (fmean(getattr(o, name) for o in any_of.values()) for name in ("start", "ceiling"))
        rows.append((place.title, len(any_of), f"{start:.3f}", f"{ceiling:.3f}", *map(_render_accuracy, found)))
    return render_table(rows)


def _render_accuracy(found: dict[int, Outcome]) -> str:
    values = [outcome.accuracy for outcome in found.values()]
    error = f" ± {stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{error}" if values else "–"


def main() -> int:
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, help="default: the peers that are installed")
    parser.add_argument("--seeds", type=int, default=24, help="worlds per family (default 24)")
    parser.add_argument("--short", action="store_true", help="4 worlds per family, no targets")
    parser.add_argument("--development", action="store_true", help="development worlds, no targets")
    parser.add_argument("--docs", action="store_true", help=f"write the tables into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--lines", action="store_true", help="the families of peers/line_worlds.py, no targets")
    parser.add_argument("--methods", help="only these: 'GEPA; ledger:block_size=4'")
    parser.add_argument("--families", help="only these: 'easy; many, append only' (the name alone: with and without repair)")
    parser.add_argument("--results", type=Path, help="keep finished runs in this file, and use those that are in it")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time (default 2)")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder for the peers (default {CACHE})")
    arguments = parser.parse_args()

    pythons = find_pythons(arguments.cache, arguments.peers)
    methods = [m for m in METHODS if m.system in pythons and _is_wanted(m.name, arguments.methods)]
    methods += list_variants(arguments.methods)
    places = [
        p
        for p in (LINE_PLACES if arguments.lines else (*PLACES, *STRESS_PLACES))
        if _is_wanted(p.family, arguments.families) or _is_wanted(p.title, arguments.families)
    ]
    count = 4 if arguments.short else arguments.seeds
    first = 1000 if arguments.development else 0
    chunks = make_chunks(methods, places, range(first, first + count), held_out=not arguments.development)
    results = run_all(chunks, pythons, arguments.workers, Kept(arguments.results))

    worlds = "development" if arguments.development else "held-out"
    print(f"Optimizers of a skill in {worlds} worlds, {BUDGET:,} rollouts, on {describe_machine()}\n")
    if arguments.lines:
        table = render_lines(results, places, methods)
        print(table)
        if arguments.docs:
            write_page(table, {}, LINES_PART)
        return 0
    tables = [f"{describe_place(results, place)}\n\n{render_place(results, place, methods)}" for place in places]
    print("\n\n".join(tables) + "\n")
    whole = not (arguments.short or arguments.development or arguments.methods or arguments.families)
    if arguments.docs:
        plots = {f"optimizer-{place.family}.svg": draw_curves(results, place, methods) for place in PLACES[:4]}
        images = "\n".join(f"![{name}]({name})" for name in plots)
        write_page("\n\n".join([images, *(f"### {table}" for table in tables)]), plots)
    checks, notes = make_checks(results, methods) if whole else ([], ["no targets: not the whole report"])
    return print_verdict("optimizer", checks, notes=notes)


def list_variants(wanted: str | None) -> list[Method]:
    """The recipe with other settings: `ledger:block_size=4`."""
    names = [name.strip() for name in (wanted or "").split(";")]
    return [Method(name, "ludus", "run_rule_worlds.py", name, "free") for name in names if name.startswith("ledger:")]


def _is_wanted(name: str, wanted: str | None) -> bool:
    return wanted is None or name in [part.strip() for part in wanted.split(";")]


if __name__ == "__main__":
    sys.exit(main())
