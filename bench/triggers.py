"""Trigger measurement and training of descriptions, in worlds whose truth is known.

    python bench/triggers.py                 # held-out worlds, 20 seeds a family
    python bench/triggers.py --development   # the worlds on which constants may be chosen
    python bench/triggers.py --peers --worlds 5   # GEPA in the same worlds, with as many rollouts
    python bench/triggers.py --family easy --family blind --rows rows.jsonl   # in parts; each row is kept
    python bench/triggers.py --from rows.jsonl --publish                      # the table of docs/skills.md

The parts of `ludus triggers` run in this process, with a simulated agent and a simulated optimizer, and with the seeds
of the command; in one world the command itself runs, and must find the same. Targets: recall and
precision within 2 points of the truth on average; trained descriptions reach 90 % of the ceiling; in A/A worlds, in
which no proposal does anything, nothing is claimed in at least 95 %; an agent that does not read descriptions is found
by the controls.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path

from common import Check, make_venv, print_verdict, render_table
from peers.trigger_world import CatalogueSetting, CatalogueWorld, draw

from ludus.catalogue import Catalogue, SkillCard, make_catalogue
from ludus.cli import main
from ludus.encoding import to_json
from ludus.engine import derive_seed
from ludus.envs.triggers import LOAD, TriggerQuery, make_task
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import seed_sampling
from ludus.reflact.journal import Journal
from ludus.reflact.optimizer import Optimizer
from ludus.store import MemoryStore
from ludus.trigger_settings import TriggerSettings
from ludus.triggers.catalogue_runs import CatalogueRuns, split_queries
from ludus.triggers.command import RUNS, load_prompts
from ludus.triggers.trigger_measurement import TriggerPlan, measure_triggers
from ludus.types import Completion, Provenance, Rollout, Sampling, Score, StopReason, ToolResult, Turn

FAMILIES = (
    CatalogueSetting("easy"),
    CatalogueSetting("confusable", shared=3, foreign=2, sharp=1.8),
    CatalogueSetting("large", skills=16, queries=16),
    CatalogueSetting("few queries", queries=8, none=8),
    CatalogueSetting("A/A", quality=(0.0, 0.0, 0.0, 1.0)),
)
GEPA = ["gepa==0.1.4"]
BLIND, EQUAL = "blind", "equal"
"""In place of families: agents that do not read descriptions; a world in which the command itself runs."""
BEGIN, END = "<!-- made by bench/triggers.py: begin -->", "<!-- made by bench/triggers.py: end -->"
COLUMNS = [
    "family", "worlds", "recall bias", "recall error", "precision bias", "start", "trained", "ceiling", "of ceiling",
    "claims", "paid", "controls failed", "claims that cover the truth",
]  # fmt: skip
MODELS = """
import json, pathlib
from ludus.models.scripted import call, say
import sys
sys.path.insert(0, BENCH)
from peers.trigger_world import CatalogueSetting, CatalogueWorld
facts = json.loads(pathlib.Path("world.json").read_text())
values = {k: tuple(v) if isinstance(v, list) else v for k, v in facts["setting"].items()}
world = CatalogueWorld(CatalogueSetting(**values), facts["seed"])

def agent(messages, tools, sampling):
    lines = (line[2:].partition(": ") for line in messages[0].content.splitlines() if line.startswith("- "))
    catalogue = {name: text for name, _, text in lines}
    name = world.choose(messages[-1].content, catalogue, sampling.seed)
    return call("load_skill", name=name) if name else say("Here is the answer.")

def optimizer(messages, tools, sampling):
    return say(world.propose(messages[-1].content))
"""


@dataclass(frozen=True)
class WorldBench(CatalogueRuns):
    """Rollouts of a world in this process: with the seeds of the command, and without slots, store and loop."""

    world: CatalogueWorld = field(kw_only=True)
    blind: bool = False
    ran: dict[tuple[Catalogue, str, int], Rollout] = field(default_factory=dict, kw_only=True)

    async def measure(
        self,
        catalogues: Sequence[Catalogue],
        queries: Sequence[TriggerQuery],
        stage: str,
        *,
        first: int = 0,
        runs: int | None = None,
    ) -> list[list[Rollout]]:
        numbers = range(first, first + (runs or self.runs))
        return [[self.run(cards, query, n) for query in queries for n in numbers] for cards in catalogues]

    def run(self, catalogue: Catalogue, query: TriggerQuery, number: int) -> Rollout:
        key = (catalogue, query.id, number)
        if key not in self.ran:
            seed = seed_sampling(Sampling(), derive_seed(self.seed, query.id, number)).seed or 0
            texts = {card.name: " ".join(card.description.split()) for card in catalogue.cards}
            names = list(texts)
            name = self.world.choose(query.text, texts, seed)
            if self.blind:
                name = names[int(draw(self.world.seed, seed, *texts.values()) * len(names))]
            self.ran[key] = make_rollout(query, catalogue, name)
        return self.ran[key]


def make_rollout(query: TriggerQuery, catalogue: Catalogue, name: str) -> Rollout:
    reply = call(LOAD, name=name) if name else say("Here is the answer.")
    results = tuple(ToolResult(each, "loaded") for each in reply.calls)
    return Rollout(
        task=make_task(query, catalogue.names),
        provenance=Provenance(policy="", model="world"),
        turns=(Turn(Completion(reply), results, StopReason.FINISHED),),
        stop=StopReason.FINISHED,
        score=Score.of(float(query.judge([name] if name else []))),
    )


def run_world(world: CatalogueWorld, *, train: bool = False, blind: bool = False) -> dict:
    """Measure a world with the parts of the command, and train it if asked to."""
    catalogue = make_catalogue(SkillCard(name, text) for name, text in world.initial.items())
    queries = [TriggerQuery(id=row["id"], text=row["query"], right=row["skill"]) for row in world.queries]
    settings = TriggerSettings(train=train)
    for_training, sealed = split_queries(queries, settings.sealed)
    bench = WorldBench(None, 0, RUNS, world=world, blind=blind)
    plan = TriggerPlan(catalogue, sealed if train else queries, for_training, settings)
    model = ScriptedModel(lambda messages, tools, sampling: say(world.propose(messages[-1].content)))
    optimizer = Optimizer(model, load_prompts(), MemoryStore(), Journal()) if train else None
    found = json.loads(to_json(asyncio.run(measure_triggers(bench, plan, optimizer))))
    return {**found, "rollouts": len(bench.ran)}


def run_command(world: CatalogueWorld, folder: Path) -> dict:
    """Run `ludus triggers --train` in a world, and return its JSON."""
    for name, text in world.initial.items():
        (folder / "skills" / name).mkdir(parents=True)
        head = f"---\nname: {name}\ndescription: {json.dumps(text)}\n---\n\nWork.\n"
        (folder / "skills" / name / "SKILL.md").write_text(head)
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in world.queries))
    setting = {name: getattr(world.setting, name) for name in CatalogueSetting.__dataclass_fields__}
    (folder / "world.json").write_text(json.dumps({"setting": setting, "seed": world.seed}))
    (folder / "models.py").write_text(MODELS.replace("BENCH", repr(str(Path(__file__).resolve().parent))))
    typed = ["triggers", "skills", "--queries", "queries.jsonl", "--json", "--out", "run", "--train"]
    typed += ["--model.type", "scripted", "--model.script", "models.py:agent"]
    typed += ["--optimizer.type", "scripted", "--optimizer.script", "models.py:optimizer"]
    out = StringIO()
    with contextlib.chdir(folder), redirect_stdout(out), redirect_stderr(StringIO()):
        main(typed)
    return json.loads(out.getvalue())["triggers"]


def measure_errors(world: CatalogueWorld, found: dict) -> list[tuple[float, float]]:
    """How far recall and precision of each skill are from the truth."""
    return [
        (
            each["recall"] - world.compute_recall(world.initial, each["skill"]),
            (each["precision"] if each["precision"] is not None else 0.0)
            - world.compute_precision(world.initial, each["skill"]),
        )
        for each in found["report"]["skills"]
    ]


def run_family(setting: CatalogueSetting, seeds: range) -> dict:
    errors, reached, claims, paid, wrong, covered, rollouts = [], [], 0, 0, 0, [], []
    for seed in seeds:
        world = CatalogueWorld(setting, seed)
        errors += measure_errors(world, run_world(world))
        found = run_world(world, train=True)
        rollouts.append(found["rollouts"])
        trained = world.initial | {
            card["name"]: card["description"] for card in (found["trained"] or {}).get("cards", [])
        }
        start, end, most = (world.compute_accuracy(text) for text in (world.initial, trained, world.best))
        reached.append((start, end, most))
        claims += found["claim"]["gain"]
        paid += bool(found["claim"]["paid"])
        wrong += bool(found["controls"]["problems"])
        if paired := found["claim"]["paired"]:
            truth = end - start
            covered.append(paired["interval"]["low"] <= truth + 0.03 and truth - 0.03 <= paired["interval"]["high"])
    start, end, most = (statistics.mean(values) for values in zip(*reached, strict=True))
    return {
        "family": setting.name,
        "worlds": len(seeds),
        "recall bias": statistics.mean(each[0] for each in errors),
        "recall error": statistics.mean(abs(each[0]) for each in errors),
        "precision bias": statistics.mean(each[1] for each in errors),
        "start": start,
        "trained": end,
        "ceiling": most,
        "of ceiling": end / most,
        "claims": claims,
        "paid": paid,
        "rollouts": statistics.mean(rollouts),
        "controls failed": wrong,
        "claims that cover the truth": sum(covered) / len(covered) if covered else float("nan"),
    }


def run_peers(setting: CatalogueSetting, seeds: range) -> Iterator[dict]:
    """GEPA in the same worlds, with the same optimizer, and with as many rollouts as a whole run of ours."""
    python = make_venv(Path.home() / ".cache" / "ludus-bench" / "gepa", GEPA)
    script = Path(__file__).resolve().parent / "peers" / "run_gepa_triggers.py"
    reached: dict[str, list[tuple[float, float]]] = {"ludus": [], "default": [], "tuned": []}
    for seed in seeds:
        world = CatalogueWorld(setting, seed)
        found = run_world(world, train=True)
        cards = (found["trained"] or {}).get("cards", [])
        ours = world.initial | {card["name"]: card["description"] for card in cards}
        most = world.compute_accuracy(world.best)
        reached["ludus"].append((world.compute_accuracy(ours), most))
        queries = [TriggerQuery(id=row["id"], text=row["query"], right=row["skill"]) for row in world.queries]
        train = [query.id for query in split_queries(queries, TriggerSettings().sealed)[0]]
        facts = {name: getattr(setting, name) for name in CatalogueSetting.__dataclass_fields__}
        for variant in ("default", "tuned"):
            job = {"setting": facts, "seed": seed, "train": train, "rollouts": found["rollouts"], "variant": variant}
            done = subprocess.run([python, script], input=json.dumps(job), capture_output=True, text=True, check=True)
            texts = json.loads(done.stdout)["descriptions"]
            reached[variant].append((world.compute_accuracy(texts), most))
    for name, values in reached.items():
        label = "ludus" if name == "ludus" else f"GEPA, {name}"
        share = statistics.mean(end for end, _ in values) / statistics.mean(most for _, most in values)
        yield {"family": setting.name, "method": label, "worlds": len(seeds), "of ceiling": share}


def run_blind(seeds: range) -> int:
    """How many worlds with an agent that does not read descriptions are found by the controls."""
    worlds = (CatalogueWorld(FAMILIES[0], seed) for seed in seeds)
    return sum(bool(run_world(world, blind=True)["controls"]["problems"]) for world in worlds)


def run_equal(seed: int) -> bool:
    """Whether the command finds in a world what is found in this process."""
    world = CatalogueWorld(replace(FAMILIES[3], skills=4), seed)
    with tempfile.TemporaryDirectory() as folder:
        by_command = run_command(world, Path(folder))
    here = run_world(world, train=True)
    return all(here[name] == by_command[name] for name in by_command)


def list_checks(rows: list[dict]) -> list[Check]:
    """The figures and their targets."""
    found: list[Check] = []
    for row in rows:
        family, worlds = row["family"], row["worlds"]
        if family == BLIND:
            found.append(Check("blind agents found", row["controls failed"] / worlds, 1.0, at_least=True))
            continue
        if family == EQUAL:
            found.append(Check("the command finds the same", row["equal"], 1.0, at_least=True))
            continue
        found.append(Check(f"{family}, bias of recall", abs(row["recall bias"]), 0.02))
        found.append(Check(f"{family}, bias of precision", abs(row["precision bias"]), 0.02))
        if family == "A/A":
            found.append(Check("claims in A/A worlds", row["claims"] / worlds, 0.05))
        else:
            found.append(Check(f"{family}, of the ceiling", row["of ceiling"], 0.9, at_least=True))
    return found


def run() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--family", action="append", default=[], help="only this one, `blind` or `equal`; any number")
    parser.add_argument("--rows", type=Path, help="add each row to this file when it is known")
    parser.add_argument("--from", dest="done", type=Path, help="the rows of this file; nothing is run")
    parser.add_argument("--publish", action="store_true", help="write the table into docs/skills.md")
    parser.add_argument("--peers", action="store_true", help="GEPA in the worlds of --family instead")
    given = parser.parse_args()
    if given.peers:
        return show_peers(given)
    rows = read_rows(given.done) if given.done else list(run_families(given))
    table = [row for row in rows if row["family"] not in (BLIND, EQUAL)]
    if table:
        lines = [COLUMNS, *([_format(row[name]) for name in COLUMNS] for row in table)]
        print(render_table(lines))
        if given.publish:
            publish(render_table(lines))
    return print_verdict("triggers", list_checks(rows))


def show_peers(given: argparse.Namespace) -> int:
    first = 0 if given.development else 1000
    lines = [["family", "method", "worlds", "of ceiling"]]
    for setting in FAMILIES:
        if setting.name in (given.family or ("easy", "few queries")):
            chosen = setting if given.development else _shift(setting)
            rows = run_peers(chosen, range(first, first + given.worlds))
            lines += [[_format(row[name]) for name in lines[0]] for row in rows]
    print(render_table(lines))
    return 0


def run_families(given: argparse.Namespace) -> Iterator[dict]:
    first = 0 if given.development else 1000
    seeds = range(first, first + given.worlds)
    chosen = given.family or [*(setting.name for setting in FAMILIES), BLIND, EQUAL]
    for name in chosen:
        if name == BLIND:
            row = {"family": BLIND, "worlds": len(seeds), "controls failed": run_blind(seeds)}
        elif name == EQUAL:
            row = {"family": EQUAL, "worlds": 1, "equal": float(run_equal(first))}
        else:
            setting = next(setting for setting in FAMILIES if setting.name == name)
            row = run_family(setting if given.development else _shift(setting), seeds)
        if given.rows:
            with given.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
        yield row


def read_rows(path: Path) -> list[dict]:
    order = [*(setting.name for setting in FAMILIES), BLIND, EQUAL]
    rows = {row["family"]: row for row in map(json.loads, path.read_text().splitlines())}
    return sorted(rows.values(), key=lambda row: order.index(row["family"]))


def publish(table: str) -> None:
    page = Path(__file__).resolve().parents[1] / "docs" / "skills.md"
    before, _, rest = page.read_text().partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}")


def _shift(setting: CatalogueSetting) -> CatalogueSetting:
    """The held-out form of a family: other numbers than those on which constants were chosen."""
    return replace(setting, skills=setting.skills + 1, sharp=setting.sharp + 0.1)


def _format(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(run())
