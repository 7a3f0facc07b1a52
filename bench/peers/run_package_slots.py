"""Ludus on two package worlds with real rollouts in bwrap slots, 60 of them each.

The agent reads its skill with `terminal`: the document, the references that it is sent to, and it runs the scripts. So
what acts is what it got from its slot. It says what it read and ran in its reply. That line is not used by the
trainer; this script compares it with what the slot has recorded (`skill_use`).
"""

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import package_worlds as pw
import rule_world as rw
import run_package_worlds as driver

from ludus.models.scripted import ScriptedModel, call
from ludus.policy import Policy
from ludus.reflact.records import Summary
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Resources
from ludus.runner import Runner, RunOptions
from ludus.sandbox.pool import PoolSettings
from ludus.sandbox.profiles import open_pool
from ludus.skill import DOCUMENT, render_whole
from ludus.store import MemoryStore
from ludus.tools.toolsets import BUILTIN
from ludus.types import Message, Rollout, Sampling, ToolSpec

FOLDER = "/tmp/skills/unit-work"
BUDGET = 60
_SHOWN = re.compile(r"^(read|ran) (\S+)$", re.MULTILINE)


class SlotItems(driver.PackageItems, frozen=True):
    toolsets = ("terminal",)


def make_agent(world: pw.PackageWorld) -> Callable[..., Any]:
    """An agent that knows of its skill what its commands print."""

    def act(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message | str:
        item = world.by_id[next(m for m in messages if m.role == "user").content.removeprefix("Item ")]
        got = [message.content for message in messages if message.role == "tool"]
        if not got:
            return call("terminal", command=f"cat {FOLDER}/{DOCUMENT}")
        files = {"": got[0]}
        sent = [path for kind, path in pw.ROUTE.findall(got[0]) if kind in (item.kind, "all")]
        read = tuple(path for path in dict.fromkeys(sent) if rw.draw(item.id, path) < 0.8)
        texts = [got[0], *got[1 : 1 + len(read)]]
        if len(got) < 1 + len(read):
            return call("terminal", command=f"cat {FOLDER}/{read[len(got) - 1]}")
        files |= dict(zip(read, got[1:], strict=False))
        found = [pair for text in texts for pair in pw.RUN.findall(text)]
        run = tuple(dict.fromkeys(path for name, path in found if world.number.get(name, -1) in item.needs))
        done = got[1 + len(read) :]
        if len(done) < len(run):
            path = f"{FOLDER}/{run[len(done)]}"
            return call("terminal", command=f"sed -n 2p {path}; {path} 5")
        files |= dict(zip(run, done, strict=False))
        acting = world.read_as(pw.join_package(files), pw.Use(read, run))
        trace = rw.World.run_agent(world, acting, item, sampling.seed)
        return "".join(f"read {path}\n" for path in read) + "".join(f"ran {path}\n" for path in run) + trace

    return act


def is_recorded(rollout: Rollout) -> bool:
    """Whether the slot has recorded just what the agent did."""
    use, said = rollout.skill_use, _SHOWN.findall(rollout.answer)
    read, run = ({path for verb, path in said if verb == wanted} for wanted in ("read", "ran"))
    if use is None or use.unseen or use.loaded is not True:
        return False
    return set(use.opened) == {DOCUMENT, *read, *run} and set(use.run) == run


async def train_world(family: str) -> dict[str, Any]:
    world = pw.load_world(family, 1000, held_out=False, whole=True)
    store = MemoryStore()
    rollouts: list[Rollout] = []
    async with open_pool("bwrap", PoolSettings(max_slots=2)) as pool:
        records = train(
            Runner(
                SlotItems(), pool=pool, store=store, options=RunOptions(concurrency=2),
                on_rollout=lambda key, rollout: rollouts.append(rollout),
            ),
            Policy(
                ScriptedModel(make_agent(world), "agent"), driver.make_skill(world), registry=BUILTIN, skill_as="listed"
            ),
            driver.make_splits(world),
            TrainSettings(recipe="ledger", seed=0, test=False),
            optimizer=ScriptedModel(driver.Optimizer(world, 8), "optimizer"),
            resources=Resources(rollouts=BUDGET),
        )  # fmt: skip
        summary = [record async for record in records][-1]
    assert isinstance(summary, Summary)
    text = render_whole(summary.final.skill)
    return {
        "family": family,
        "rollouts": len(rollouts),
        "failed": sum(rollout.failure is not None for rollout in rollouts),
        "wrong records": sum(rollout.failure is None and not is_recorded(rollout) for rollout in rollouts),
        "read a reference": sum("read " in rollout.answer for rollout in rollouts),
        "ran a script": sum("ran " in rollout.answer for rollout in rollouts),
        "initial": round(world.start, 3),
        "working text": round(world.compute_accuracy(text), 3),
    }


if __name__ == "__main__":
    print(json.dumps([asyncio.run(train_world(family)) for family in ("routed", "scripts")]))
