"""Shared by the tests of skill training: rollouts with a result, a view with a scripted optimizer, and rollouts that
wait for each other.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from tests.build import make_rollout, make_task

from ludus.reflact.gate import Rule
from ludus.reflact.journal import Journal
from ludus.reflact.measure import SkillRunner
from ludus.reflact.optimizer import Optimizer
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.records import Record
from ludus.reflact.report.run_files import BEST, FINAL, STEPS, RunRecorder
from ludus.reflact.train_settings import SlowUpdate, TrainSettings
from ludus.reflact.training_run import Resources, TrainingRun, start_run
from ludus.runner import Runner, RunOptions
from ludus.skill import Skill
from ludus.store import MemoryStore, RunDir
from ludus.types import Message, Rollout, Score

REPORT_SETTINGS = TrainSettings(
    recipe="reflact",
    epochs=2,
    batch_size=3,
    minibatch_size=2,
    edit_budget=2,
    min_edit_budget=1,
    slow=SlowUpdate(samples=3),
)
EVIL = "<script>alert(1)</script><img src=http://example.org/x onerror=y>"


def make_result(id: str, passed: bool | None, *, soft: float | None = None, feedback: str = "") -> Rollout:
    """A rollout that passed, failed its task, or (None) could not be run."""
    credit = float(passed or False) if soft is None else soft
    score = None if passed is None else Score(float(passed), passed, credit, feedback)
    return make_rollout(score, task=make_task(id, f"do {id}"))


class ScriptedView:
    """A view whose optimizer answers with what `replies` returns. It keeps all requests."""

    def __init__(self, world: SimpleNamespace, replies: Any = None, skill: str = "# Skill\n", **settings: Any) -> None:
        self.requests: list[Sequence[Message]] = []
        self.journal = Journal()
        model = world.optimizer_model(replies or world.optimizer, self.requests)
        self.view = View(
            settings=TrainSettings(**{"minibatch_size": 2, "merge_batch_size": 2, **settings}),
            skill=Skill(skill),
            epoch=1,
            step=1,
            history="",
            memory="",
            system="",
            optimizer=Optimizer(model, Prompts.load(), MemoryStore(), self.journal, tries=2),
        )


def make_run(
    world: SimpleNamespace, *, proposer: Proposer | None = None, rule: Rule | None = None, **settings: Any
) -> TrainingRun:
    """A training run in the small world that has not begun."""
    return start_run(
        Runner(world.Env()),
        world.policy(),
        world.splits(),
        msgspec.structs.replace(world.SETTINGS, **settings),
        optimizer=world.optimizer_model(),
        proposer=proposer,
        prompts=None,
        rule=rule,
        resources=Resources(),
    )


async def stream(rollouts: Sequence[Rollout]) -> AsyncIterator[Rollout]:
    for rollout in rollouts:
        yield rollout


# ---- rollouts that wait for each other ----------------------------------------------------------------------------


def make_waiting_agent(world: SimpleNamespace, size: int) -> Any:
    """An agent whose rollouts wait until `size` of them are running."""
    running: list[int] = []
    complete = asyncio.Event()

    async def agent(messages: Sequence[Message], *rest: Any) -> Message:
        running.append(1)
        if len(running) == size:
            complete.set()
        await complete.wait()
        return world.agent(messages, *rest)

    return agent


def make_waiting_runner(world: SimpleNamespace, size: int) -> SkillRunner:
    policy = world.policy(script=make_waiting_agent(world, size))
    return SkillRunner(Runner(world.Env(), options=RunOptions(concurrency=64)), policy, Journal())


# ---- the files of a run -------------------------------------------------------------------------------------------


def write_run_files(path: Path, records: Sequence[Record]) -> dict[str, bytes]:
    """Write the files of a run, or of a resumed one, and return them."""
    with RunDir.open(path, {}, resume=True) as run:
        recorder = RunRecorder(run, REPORT_SETTINGS)
        for record in records:
            recorder.add(record)
    return {name: (path / name).read_bytes() for name in (STEPS, BEST, FINAL)}
