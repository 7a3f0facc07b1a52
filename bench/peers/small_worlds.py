"""Worlds with few tasks, with graded scores and with a strong start, for what a run ships and claims.

They are the rule worlds (`rule_world.py`) with other sizes and verifiers, through the real trainer:

| family | what is special |
|---|---|
| tiny | 8 train and 6 selection tasks, 1,600 rollouts |
| ten, twenty, forty | a pool of so many tasks, divided and trained by the defaults |
| harmful twenty | a pool of 20 tasks, and 40 % of the proposals do harm |
| strong | the initial skill passes nine tasks of ten |
| judged | a judge grades every reply, with errors, and no grade reaches 1.0 |
| partial | each cause of trouble halves the score; a reply without any passes |
| memoriser | each line helps only the train task that it comes from |
| quirk | the train tasks share rules that the tasks of the other splits do not need |
| filler … | the same sizes, but no proposal does anything |

Development worlds are for the choice of constants, held-out worlds have other settings and seeds. The true score of
every text is known in closed form.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from statistics import NormalDist
from typing import Any, ClassVar

import rule_world as rw
import run_rule_worlds as driver

from ludus.env import Env
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.reflact.records import RunState, Summary
from ludus.reflact.splits import Splits, choose_ratio, compute_sizes
from ludus.reflact.train_settings import ShippingSettings, TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Resources
from ludus.runner import Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import Skill
from ludus.store import MemoryStore
from ludus.types import Rollout, Score, Task

_SCORE = re.compile(r"score: ([\d.]+)$")


@dataclass(frozen=True)
class Family:
    """Worlds of one kind."""

    setting: rw.Setting
    budget: int | None = rw.BUDGET
    """The rollouts of a run, without those of the test; None: the defaults decide."""
    pool: int = 0
    """The tasks of a pool that the defaults divide; 0: the sizes of the setting."""
    test: int = 64
    """The tasks of the sealed test split, if there is no pool."""
    keep: float = 0.0
    """The share of the score that each cause of trouble leaves. 0: pass or fail."""
    top: float = 1.0
    """The highest score, if the judge makes no error."""
    noise: float = 0.0
    """The standard deviation of the judge's errors."""
    strong: bool = False
    """Whether the initial skill has most of the rules already."""
    private: bool = False
    """Whether each train item needs rules that no other item needs."""
    quirk: bool = False
    """Whether the items of the other splits need rules that no train item needs."""

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """The tasks of the three splits that a run has."""
        if not self.pool:
            return self.setting.train, self.setting.selection, self.test
        return compute_sizes(self.pool, choose_ratio(self.pool))

    @property
    def useless(self) -> bool:
        """Whether no line can help on the test split."""
        return self.private or self.quirk or self.setting.quality[2] == 1.0


class SmallWorld(rw.World):
    """One world of a family, with graded scores and items of its own."""

    def __init__(self, family: Family, seed: int) -> None:
        self.family = family
        train, selection, _ = family.sizes
        setting = replace(family.setting, train=train, selection=selection)
        self._apart = 2 * train if family.private else setting.rules // 2
        if family.private:
            setting = replace(setting, rules=2 * train + setting.rules)
        super().__init__(setting, seed)
        self.initial = self._write_initial() if family.strong else rw.SKILL

    def _write_initial(self) -> str:
        """A skill that has the rules up to a few, so that nine tasks of ten pass."""
        rng = rw.make_random(self.key, "initial")
        rules = list(range(self.setting.rules))
        rng.shuffle(rules)
        text = rw.SKILL
        for rule in rules:
            longer = text + self.make_line(self.situations[rule], rng, quality="x") + "\n"
            text = longer if self.compute_accuracy(longer) < 0.92 else text
        return text

    @property
    def start(self) -> float:
        return self.compute_accuracy(self.initial)

    def _make_item(self, name: str, taste: dict[str, list[float]], rng: Random) -> rw.Item:
        split, _, number = name.partition("-")
        family, place = self.family, int(number)
        if not (family.private or family.quirk):
            return super()._make_item(name, taste, rng)
        if family.private and split == "train":
            kind = rng.choice(self.kinds)
            return rw.Item(name, kind, (2 * place, 2 * place + 1)[: rng.choice((1, 2))])
        own = range(self._apart) if split == "train" else range(self._apart, self.setting.rules)
        limited = {kind: [w if rule in own else 0.0 for rule, w in enumerate(ws)] for kind, ws in taste.items()}
        return super()._make_item(name, limited, rng)

    def compute_chance(self, item: rw.Item, lines: Sequence[rw.Line]) -> float:
        """The expected score."""
        if not self.family.keep:
            return super().compute_chance(item, lines)
        result = self.family.top
        for _, chance in self._list_dangers(item, lines):
            result *= 1 - chance * (1 - self.family.keep)
        return result

    def run_agent(self, text: str, item: rw.Item, seed: object) -> str:
        """One rollout: the trace, with a last line that has the score if scores are graded."""
        trace = super().run_agent(text, item, seed)
        family = self.family
        if not family.keep:
            return trace
        score = family.top * family.keep ** self._count_causes(text, item, seed)
        if family.noise:
            luck = rw.draw(self.key, item.id, seed, text, "judge")
            score = min(0.95, max(0.0, score + family.noise * NormalDist().inv_cdf(min(max(luck, 1e-6), 1 - 1e-6))))
        return f"{trace}\nscore: {score:.2f}"

    def _count_causes(self, text: str, item: rw.Item, seed: object) -> int:
        """How many things spoiled a rollout; the same draws as those of the trace."""
        lines = self.read_lines(text)
        own = ",".join(sorted(line.code for line in lines))
        place = (self.key, item.id, seed)
        count = 0
        for name, chance in self._list_dangers(item, lines):
            shared = rw.draw(*place, name, "shared") < self.setting.luck
            count += rw.draw(*place, name, "" if shared else own) < chance
        return count


class SmallItems(Env, frozen=True):
    """The items of a world. The last line of the reply is the result, or the score."""

    name: ClassVar[str] = "small-items"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterable[Task]:
        return ()

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        graded = _SCORE.search(rollout.answer)
        return Score.of(float(graded[1]) if graded else float(rollout.answer.endswith("right")))


# ---- families -------------------------------------------------------------------------------------------------------


def _list_families(easy: rw.Setting, name: str) -> dict[str, Family]:
    """The families, from the settings of the easy one."""
    base = replace(easy, name=f"{name}small", selection=40)
    tiny = replace(base, name=f"{name}tiny", train=8, selection=6)
    strong = replace(base, name=f"{name}strong", base=0.985)
    judged = {"keep": 0.63, "top": 0.9, "noise": 0.08}
    families = {
        "tiny": Family(tiny),
        "ten": Family(replace(base, name=f"{name}ten"), None, pool=10),
        "twenty": Family(replace(base, name=f"{name}twenty"), None, pool=20),
        "forty": Family(replace(base, name=f"{name}forty"), None, pool=40),
        "harmful twenty": Family(
            replace(base, name=f"{name}harmful twenty", quality=(0.3, 0.15, 0.15, 0.4)), None, pool=20
        ),
        "strong": Family(strong, strong=True),
        "judged": Family(replace(base, name=f"{name}judged"), **judged),
        "judged twenty": Family(replace(base, name=f"{name}judged twenty"), None, pool=20, **judged),
        "partial": Family(replace(base, name=f"{name}partial"), keep=0.5),
        "memoriser": Family(replace(base, name=f"{name}memoriser"), private=True),
        "memoriser tiny": Family(replace(tiny, name=f"{name}memoriser tiny"), private=True),
        "memoriser twenty": Family(replace(base, name=f"{name}memoriser twenty"), None, pool=20, private=True),
        "quirk tiny": Family(replace(tiny, name=f"{name}quirk tiny"), quirk=True),
    }
    for each in ("tiny", "ten", "twenty", "forty", "strong", "judged", "judged twenty"):
        family = families[each]
        setting = replace(family.setting, name=f"{name}filler {each}", quality=(0.0, 0.0, 1.0, 0.0))
        families[f"filler {each}"] = replace(family, setting=setting)
    return families


DEVELOPMENT = _list_families(rw.DEVELOPMENT["easy"], "")
HELD_OUT = _list_families(rw.HELD_OUT["easy"], "held ")


def load_world(family: str, seed: int, *, held_out: bool) -> SmallWorld:
    return SmallWorld((HELD_OUT if held_out else DEVELOPMENT)[family], seed)


# ---- running --------------------------------------------------------------------------------------------------------


def make_splits(world: SmallWorld) -> Splits:
    def list_tasks(split: str, most: int) -> list[Task]:
        return [Task(id=i.id, prompt=f"Item {i.id}", split=split, kind=i.kind) for i in world.items[split][:most]]

    train, selection, test = world.family.sizes
    return Splits.from_tasks(list_tasks("train", train), list_tasks("selection", selection), list_tasks("test", test))


@dataclass
class Trained:
    """The end of a run."""

    summary: Summary
    working: str
    """The working text."""
    meter: rw.Meter
    before: RunState | None = field(default=None, repr=False)
    """The state before shipping."""


async def train_world(world: SmallWorld, settings: TrainSettings) -> Trained:
    """Train with the real trainer and simulated models."""
    meter = rw.Meter(world)
    optimizer = driver.Optimizer(world, 8)
    budget, tested = world.family.budget, 2 * world.family.sizes[2]
    records = train(
        Runner(SmallItems(), store=MemoryStore(), options=RunOptions(concurrency=16)),
        Policy(ScriptedModel(driver.make_agent(meter), "agent"), Skill(world.initial)),
        make_splits(world),
        settings,
        optimizer=ScriptedModel(optimizer, "optimizer"),
        resources=Resources(rollouts=None if budget is None else budget + tested),
    )
    before: RunState | None = None
    async for record in records:
        if isinstance(record, Summary):
            return Trained(record, record.final.skill.text, meter, before)
        before = record.state
    raise RuntimeError("the run ended without a summary")


def report(world: SmallWorld, done: Trained) -> dict[str, Any]:
    """What is known about a run: what it shipped and claimed, and what is true."""
    summary, start = done.summary, world.start
    shipped = world.compute_accuracy(summary.best.skill.text)
    claim, shipment = summary.claim, summary.shipment
    interval = claim.interval if claim else None
    return {
        "start": start,
        "ceiling": world.ceiling,
        "working": world.compute_accuracy(done.working),
        "shipped": shipped,
        "ships": bool(shipment and shipment.shipped),
        "lines": len(world.read_lines(summary.best.skill.text)),
        "better": interval is not None and interval.low > 0.0,
        "claim": claim.difference if claim else None,
        "covers": None if interval is None else interval.low <= shipped - start <= interval.high,
        "spent": done.meter.spent,
        "shipping": shipment.rollouts if shipment else 0,
        "sentence": claim.sentence if claim else "",
    }


def make_settings(world: SmallWorld, options: dict[str, Any]) -> TrainSettings:
    return TrainSettings(recipe="ledger", seed=world.seed, shipping=ShippingSettings(**options.get("shipping", {})))


def run(job: dict[str, Any]) -> dict[str, Any]:
    world = load_world(job["family"], job["seed"], held_out=job["held_out"])
    started = time.process_time()
    done = asyncio.run(train_world(world, make_settings(world, job.get("options", {}))))
    return {**job, **report(world, done), "cpu": time.process_time() - started}


def serve() -> None:
    """Run the jobs of the standard input, one JSON object per line, and print each result as a line of JSON."""
    for text in sys.stdin:
        print(json.dumps(run(json.loads(text))), flush=True)


if __name__ == "__main__":
    serve()
