"""Ludus: `train` on the same questions and models, with a complete run directory.

$ python run_reflact.py 50 4            train with models that take 50 ms, 4 batches per step
$ python run_reflact.py keep DIR        train 40 steps in DIR, or resume the run in DIR
"""

import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import skill_world as world

from ludus.env import Env
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.reflact.records import Summary
from ludus.reflact.splits import load_splits
from ludus.reflact.train_settings import DataSettings, TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Resources
from ludus.runner import Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import Skill
from ludus.store import RunDir
from ludus.types import Completion, Message, Rollout, Sampling, Score, Task, ToolSpec

_ANSWER = re.compile(r"<answer>(.*?)</answer>")
_PROPOSED = re.compile(r"^content: (.*)$", re.MULTILINE)


class Questions(Env, frozen=True):
    """The questions, scored by exact match."""

    name: ClassVar[str] = "bench-questions"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterable[Task]:
        return [
            Task(id=q["id"], prompt=q["question"], split=split, answer=q["answers"]) for q in world.make_items(split)
        ]

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        said = _ANSWER.findall(rollout.answer)
        right = bool(said) and said[-1] in rollout.task.answer
        return Score.of(float(right), "" if right else f"said {said[-1:]}, expected {rollout.task.answer}")


def propose(stage: str, user: str) -> dict[str, Any]:
    """Build the reply of the optimizer's model in a stage."""
    if stage == "analyst_failure":
        return {"items": [{"op": "append", "content": text} for text in world.find_needed_rules(user)[:4]]}
    if stage == "analyst_success":
        return {"items": [{"op": "append", "content": "Stay brief."}]}
    if stage.startswith("merge"):
        places: dict[str, list[int]] = {}
        for number, text in enumerate(_PROPOSED.findall(user), 1):
            places.setdefault(text, []).append(number)
        return {"items": [{"item": {"op": "append", "content": t}, "made_of": n} for t, n in places.items()]}
    if stage == "rank":
        return {"selected": [1, 2, 3, 4]}
    return {"guidance": "Keep going.", "memory": "Rules help."}


def make_completion(text: str) -> Completion:
    return Completion(Message("assistant", text))


def make_models(delay: float) -> tuple[ScriptedModel, ScriptedModel]:
    async def agent(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        if delay:
            await asyncio.sleep(delay)
        return make_completion(world.make_reply(messages[0].content, messages[-1].content))

    async def optimizer(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        if delay:
            await asyncio.sleep(delay)
        return make_completion(json.dumps(propose(sampling.stage, messages[1].content)))

    return ScriptedModel(agent, "agent"), ScriptedModel(optimizer, "optimizer")


async def train_in(path: Path, plan: world.Plan) -> Summary:
    """Train in a run directory. An unfinished run is resumed."""
    env, (agent, optimizer) = Questions(), make_models(plan.delay)
    splits = load_splits(env, DataSettings(mode="splits", selection="val"))
    settings = TrainSettings(
        recipe="reflact",
        epochs=plan.epochs,
        batch_size=world.PER_STEP // plan.batches,
        accumulation=plan.batches,
        lenient_edits=True,
    )
    policy = Policy(agent, Skill(world.SKILL))
    with RunDir.open(path, {}, resume=True) as run:
        runner = Runner(env, store=run, options=RunOptions(concurrency=world.WORKERS))
        resources = Resources(optimizer_concurrency=world.WORKERS)
        records = [r async for r in train(runner, policy, splits, settings, optimizer=optimizer, resources=resources)]
    summary = records[-1]
    assert isinstance(summary, Summary)
    return summary


def run(plan: world.Plan) -> tuple[int, int, float]:
    with tempfile.TemporaryDirectory() as folder:
        summary = asyncio.run(train_in(Path(folder) / "run", plan))
    assert not summary.events and summary.best.test is not None
    return summary.steps, summary.accepted, summary.best.test.overall.hard or 0.0


def train_and_keep(path: Path) -> None:
    """Train forty steps in a run directory that is kept."""
    summary = asyncio.run(train_in(path, world.Plan(0.0, 1, 10)))
    print(json.dumps({"steps": summary.steps}))


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        train_and_keep(Path(sys.argv[2]))
    else:
        world.measure("Ludus", run)
