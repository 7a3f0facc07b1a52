"""Ludus on the package worlds: the real `train` with the recipe `ledger`, a simulated agent and a simulated optimizer.

Variants: `package`, and `document`: the same skill as one document. Rollouts are simulated by an engine of this file,
which writes what the agent read and ran on each rollout, as slots do. The checks of scripts are run in real slots.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, ClassVar

import package_worlds as pw
import rule_world as rw
from msgspec.structs import replace

from ludus.env import Env
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.reflact.records import Step, Summary
from ludus.reflact.script_checks import FAILED_CHECK
from ludus.reflact.splits import Splits
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Resources
from ludus.rollout import make_failed
from ludus.runner import Job, NodeFacts, Record, Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.profiles import open_pool
from ludus.skill import DOCUMENT, Skill, SkillFile, render_whole
from ludus.store import MemoryStore
from ludus.types import (
    Completion,
    Failure,
    Finish,
    Message,
    Rollout,
    Sampling,
    Score,
    SkillUse,
    StopReason,
    Task,
    ToolSpec,
    Turn,
)

_SKILL = re.compile(r"# The skill as it is\n\n(.*?)\n\n# Its lines, and", re.DOTALL)
_LISTED = re.compile(r"^([LP]\d+) \[", re.MULTILINE)
_CODE = re.compile(r"\((r\d+\.[xbhf]\d+)\)")
_TEST = 64
"""The tasks of the sealed test split. Their rollouts do not count; the true accuracy is computed."""


class PackageItems(Env, frozen=True):
    """The items of a world, in slots that are simulated."""

    name: ClassVar[str] = "package-items"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec()

    def tasks(self, split: str) -> Iterable[Task]:
        return ()

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(rollout.answer.endswith("right")))


class SimulatedSlots:
    """The engine: each job is a draw of the world, with what the agent read and ran."""

    def __init__(self, world: pw.PackageWorld, meter: rw.Meter) -> None:
        self.world, self.meter = world, meter

    async def run(self, jobs: Iterable[Job], runner: Runner, record: Record) -> None:
        for job in jobs:
            item = self.world.by_id[job.task.id]
            self.meter.count(item.id)
            skill = job.policy.skill or Skill("")
            trace, use = self.world.run_once(render_whole(skill), item, job.seed)
            record(job, self._make_rollout(job, runner, trace, use))

    def _make_rollout(self, job: Job, runner: Runner, trace: str, use: pw.Use) -> Rollout:
        turn = Turn(Completion(Message("assistant", trace), Finish.STOP), stop=StopReason.FINISHED)
        known = SkillUse(loaded=True, opened=(DOCUMENT, *use.read, *use.run), run=use.run) if self.world.whole else None
        return replace(
            make_failed(job, runner, Failure("model", "simulated")),
            failure=None,
            turns=(turn,),
            stop=StopReason.FINISHED,
            score=Score.of(float(trace.endswith("right"))),
            skill_use=known,
        )

    def list_nodes(self) -> tuple[NodeFacts, ...]:
        return ()


class Optimizer:
    """The simulated optimizer: the reply of an analyst of the recipe `ledger`, with places in the package."""

    def __init__(self, world: pw.PackageWorld, edits: int) -> None:
        self.world, self.edits, self.calls = world, edits, 0

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> str:
        self.calls += 1
        user = messages[1].content
        rng = rw.make_random(self.world.key, "optimizer", sampling.stage, sampling.seed, user)
        if sampling.stage != "analyst_lines":
            raise ValueError(f"the simulated optimizer has no reply for {sampling.stage}")
        return json.dumps(self._read_failures(user, rng))

    def _read_failures(self, user: str, rng: Random) -> dict[str, Any]:
        found = _SKILL.search(user)
        skill = found[1] if found else ""
        listed, _, rest = user.partition("# Its lines")[2].partition("# Lines that were given up")
        given_up, _, rest = rest.partition("# Known situations")
        _, _, shown = rest.partition("# What the agent is told")
        ids = dict(find_ids(listed))
        traces = rw.read_traces(shown)
        causes = [
            {
                "rollout": number,
                "situations": list(trace.trouble),
                "suspects": [ids[code] for code in trace.misled if code in ids],
            }
            for number, trace in enumerate(traces, 1)
        ]
        items: list[dict[str, Any]] = []
        for proposal in self.world.propose(skill, traces, self.edits, rng, rw.read_codes(given_up)):
            if not proposal.text:
                continue  # to delete a line, it is enough to suspect it
            placed = self.world.place(proposal, skill, traces, rng)
            numbers = [n for n, trace in enumerate(traces, 1) if trace.item in proposal.items]
            items.append(make_item(placed, numbers, ids))
        return {"rollouts": causes, "items": items}


def find_ids(listed: str) -> Iterator[tuple[str, str]]:
    """The id of each line that is listed, by the code in it."""
    starts = [*_LISTED.finditer(listed)]
    for start, end in zip(starts, [*(each.start() for each in starts[1:]), len(listed)], strict=True):
        for code in _CODE.findall(listed[start.start() : end]):
            yield code, start[1]


def make_item(placed: pw.Placed, numbers: Sequence[int], ids: dict[str, str]) -> dict[str, Any]:
    """A proposal in the form of the reply."""
    proposal = placed.proposal
    item: dict[str, Any] = {"situation": proposal.situation, "content": proposal.text, "rollouts": list(numbers)}
    if placed.content:
        item |= {"op": "write", "content": placed.content}
    if placed.path:
        item |= {"path": placed.path, "pointer": placed.pointer}
    if proposal.code in ids:
        item |= {"replaces": ids[proposal.code]}
    return item


# ---- runs -----------------------------------------------------------------------------------------------------------


def make_skill(world: pw.PackageWorld) -> Skill:
    if not world.whole:
        return Skill(world.skill)
    files = tuple(SkillFile(path, text) for path, text in sorted(world.files.items()) if path)
    return Skill(world.files[""], files)


def make_splits(world: pw.PackageWorld) -> Splits:
    def list_tasks(split: str, most: int | None = None) -> list[Task]:
        return [Task(id=i.id, prompt=f"Item {i.id}", split=split, kind=i.kind) for i in world.items[split][:most]]

    return Splits.from_tasks(list_tasks("train"), list_tasks("selection"), list_tasks("test", _TEST))


@asynccontextmanager
async def open_slots(wanted: bool) -> AsyncGenerator[Pool | None]:
    """Real slots for the checks of scripts, if any are to be expected."""
    if not wanted:
        yield None
        return
    async with open_pool("bwrap", PoolSettings(max_slots=2)) as pool:
        yield pool


async def train_world(world: pw.PackageWorld, variant: str) -> dict[str, object]:
    """Train until the budget is spent, ship, and compare with the truth."""
    meter = rw.Meter(world, pw.BUDGET)
    optimizer = Optimizer(world, 8)
    settings = TrainSettings(recipe="ledger", seed=world.seed)
    scripts = {"refused": 0, "admitted": 0, "lies admitted": 0}
    async with open_slots(world.whole and bool(world.scripted)) as pool:
        records = train(
            Runner(
                PackageItems(), pool=pool, store=MemoryStore(), options=RunOptions(concurrency=16),
                engine=SimulatedSlots(world, meter),
            ),
            Policy(
                ScriptedModel("unused", "agent"), make_skill(world), skill_as="listed" if world.whole else "text"
            ),
            make_splits(world),
            settings,
            optimizer=ScriptedModel(optimizer, "optimizer"),
            resources=Resources(rollouts=meter.budget + 2 * min(_TEST, world.setting.test)),
        )  # fmt: skip
        async for record in records:
            if isinstance(record, Summary):
                return report(world, meter, record, scripts)
            if isinstance(record, Step):
                _count_scripts(record, scripts)
    raise RuntimeError("the run ended without a summary")


def _count_scripts(step: Step, scripts: dict[str, int]) -> None:
    for fate in step.fates:
        path, content = getattr(fate.item, "path", ""), getattr(fate.item, "content", "")
        if path.startswith("scripts/"):
            scripts["refused"] += fate.status == FAILED_CHECK
            scripts["admitted"] += fate.status.startswith("applied")
            scripts["lies admitted"] += fate.status.startswith("applied") and ".h" in content


def report(world: pw.PackageWorld, meter: rw.Meter, summary: Summary, scripts: dict[str, int]) -> dict[str, object]:
    text, claim = render_whole(summary.best.skill), summary.claim
    truth = world.compute_accuracy(text) - world.start
    interval = claim.interval if claim else None
    shipped = world.list_scripts(text)
    return meter.report(
        text,
        (claim.difference if claim else None) or 0.0,
        working=world.compute_accuracy(render_whole(summary.final.skill)),
        ships=bool(summary.shipment and summary.shipment.shipped),
        gain=bool(claim and claim.gain),
        covers=None if interval is None else interval.low <= truth <= interval.high,
        scripts={**scripts, "shipped": len(shipped), "lies shipped": sum(each == "lies" for each in shipped.values())},
        in_files=sum(len(world.read_lines(body)) for path, body in world.split(text).items() if path),
        old_harm=len([code for code in rw.read_codes(text) & world.old if ".h" in code]),
        first_lines=len(rw.read_codes(world.skill)),
        shipped_text=text,
    )


def run(world: pw.PackageWorld, variant: str) -> dict[str, object]:
    return asyncio.run(train_world(world, variant))


if __name__ == "__main__":
    pw.serve(run)
