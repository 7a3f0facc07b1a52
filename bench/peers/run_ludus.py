"""Ludus, through its public API: an environment with one tool, a metered chat model with a budget, and `process`.

As in a normal run, every rollout is stored in the run directory, groups are appended to `groups.jsonl` when they are
complete, and the page of trajectories is written at the end. All of that is measured.
"""

import asyncio
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from meter import PROMPT, Work, measure

from ludus.batch import Batch, load_tasks, process
from ludus.env import Env
from ludus.models.ledger import Budget, Ledger, MeteredModel
from ludus.models.openai import ChatModel
from ludus.models.settings import OpenAISettings
from ludus.policy import Policy
from ludus.runner import Runner, RunOptions
from ludus.sandbox import Sandbox
from ludus.store import RunDir
from ludus.tools import Tool, tool
from ludus.types import Rollout, Score, Task


@tool
async def add(a: int, b: int) -> str:
    """Add two whole numbers."""
    return str(a + b)


class Adding(Env, frozen=True, kw_only=True):
    """Sums that take three steps."""

    name = "bench-adding"
    sandbox = None
    count: int

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(id=f"sum-{number}", prompt=PROMPT, split=split, answer="42") for number in range(self.count))

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return (add,)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(rollout.task.answer in rollout.answer))


async def generate(work: Work) -> int:
    group_size = math.gcd(work.rollouts, 8)
    env = Adding(count=work.rollouts // group_size)
    server = OpenAISettings(base_url=work.base_url, name="mock", concurrency=work.concurrency)
    model = MeteredModel(ChatModel(server), Ledger(Budget(tokens=1_000_000_000)), "agent")
    batch = Batch(load_tasks(env, "train"), Policy(model), group_size)
    with tempfile.TemporaryDirectory() as folder, RunDir.open(Path(folder) / "run", {}) as run:
        try:
            await process(batch, Runner(env, store=run, options=RunOptions(concurrency=work.concurrency)))
        finally:
            await model.close()
        return sum(score == 1.0 for score in run.read_scores().values())


if __name__ == "__main__":
    measure("Ludus", lambda work: asyncio.run(generate(work)))
