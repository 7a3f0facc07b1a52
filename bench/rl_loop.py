"""Measure how busy the RL loop keeps an engine and a trainer. Needs no PyTorch.

    $ python bench/rl_loop.py             about two minutes
    $ python bench/rl_loop.py --short     a few seconds, as a test of the script

The engine and the trainer are simulated: a reply takes a fixed time in one of the engine's slots, an update takes a
fixed time, and neither uses the CPU. Everything between them is real: the loop, its groups, the rollouts through the
runner, the store on disk, advantages and records. The engine is busy to the share of its slots that are in use, the
trainer while an update runs. The first steps, in which the engine has nothing to overlap with, are not counted.

An asynchronous loop (`rl.staleness` 1 or more) should keep the slower of the two busy. It is compared with the
on-policy loop, in which they take turns.
"""

import argparse
import asyncio
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from common import Check, describe_machine, print_verdict, render_table

from ludus.env import Env
from ludus.models import Model
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rl.loop import RlRun, run_rl
from ludus.rl.settings import RlSettings
from ludus.rl.trainers import PolicyUpdate, TrainingRow, UpdateMetrics
from ludus.runner import Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.store import RunDir
from ludus.types import Completion, Message, Rollout, Sampling, Score, Task, Tokens, ToolSpec, Usage

MIN_BUSY = 0.85
GROUPS, GROUP_SIZE, SLOTS = 8, 8, 32
SKIPPED = 2
"""Steps at the beginning that are not counted."""


class Coin(Env, frozen=True):
    """Half of the answers are right."""

    name: ClassVar[str] = "coin"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterator[Task]:
        return (Task(id=str(n), prompt=str(n), split=split) for n in range(64))

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(rollout.provenance.replicate % 2))


@dataclass
class Engine:
    """Slots, and the time for which they were in use."""

    seconds: float
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS))
    used: float = 0.0

    async def draw(self) -> None:
        async with self.slots:
            started = time.monotonic()
            await asyncio.sleep(self.seconds)
            self.used += time.monotonic() - started


@dataclass
class SimulatedModel:
    name: str
    engine: Engine

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        await self.engine.draw()
        tokens = Tokens((1, 2), (False, True), (None, -math.log(2)))
        return Completion(Message("assistant", "x"), usage=Usage(1, 1), tokens=tokens)

    async def close(self) -> None: ...


@dataclass
class SimulatedTrainer:
    engine: Engine
    seconds: float
    used: float = 0.0
    version: int = 0
    name: str = "simulated"

    async def get_model(self, name: str) -> Model:
        return SimulatedModel(name, self.engine)

    async def update(self, rows: Sequence[TrainingRow]) -> PolicyUpdate:
        started = time.monotonic()
        await asyncio.sleep(self.seconds)
        self.used += time.monotonic() - started
        self.version += 1
        return PolicyUpdate(version=self.version, metrics=UpdateMetrics(tokens=len(rows)))

    async def save(self, folder: Path) -> None:
        (folder / "state").write_bytes(b"x")

    async def load(self, folder: Path) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Busy:
    """The shares of the measured time in which each was busy."""

    engine: float
    trainer: float
    steps: float
    """Steps per second."""


async def measure(step: float, update: float, staleness: int, steps: int) -> Busy:
    """Run the loop. The engine needs `step` seconds for the rollouts of one step, the trainer `update` for them."""
    engine = Engine(step * SLOTS / (GROUPS * GROUP_SIZE))
    trainer = SimulatedTrainer(engine, update)
    settings = RlSettings(steps=steps, groups=GROUPS, group_size=GROUP_SIZE, staleness=staleness, eval_every=0)
    with tempfile.TemporaryDirectory() as folder, RunDir.open(Path(folder) / "run", {}) as store:
        options = RunOptions(concurrency=GROUPS * GROUP_SIZE * (1 + staleness))
        env = Coin()
        run = RlRun(
            policy=Policy(ScriptedModel([])),
            trainer=trainer,
            settings=settings,
            tasks=tuple(env.tasks("train")),
            held_out=(),
            runner=Runner(env, store=store, options=options),
            checkpoints=Path(folder) / "checkpoints",
        )
        before = (0.0, 0.0, 0.0)
        async for record in run_rl(run):
            if record.step == SKIPPED:
                before = (time.monotonic(), engine.used, trainer.used)
        elapsed = time.monotonic() - before[0]
    return Busy(
        (engine.used - before[1]) / SLOTS / elapsed, (trainer.used - before[2]) / elapsed, (steps - SKIPPED) / elapsed
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="few and short steps, as a test of the script")
    short = parser.parse_args().short
    unit, steps = (0.1, 6) if short else (0.5, 14)
    cases = {"engine slower": (2 * unit, unit), "trainer slower": (unit, 2 * unit), "equal": (unit, unit)}
    rows: list[Sequence[object]] = [("case", "staleness", "engine busy", "trainer busy", "steps/s")]
    checks: list[Check] = []
    for name, (step, update) in cases.items():
        found = {staleness: asyncio.run(measure(step, update, staleness, steps)) for staleness in (0, 1, 2)}
        for staleness, busy in found.items():
            rows.append((name, str(staleness), f"{busy.engine:.0%}", f"{busy.trainer:.0%}", busy.steps))
        slower = (
            max(found[1].engine, found[1].trainer)
            if name == "equal"
            else (found[1].engine if name == "engine slower" else found[1].trainer)
        )
        checks.append(Check(f"{name}: busy", slower, MIN_BUSY, at_least=True))
        checks.append(Check(f"{name}: steps per second against on-policy", found[1].steps / found[0].steps, unit="x"))
    print(describe_machine())
    print(render_table(rows))
    return print_verdict("rl_loop", checks)


if __name__ == "__main__":
    sys.exit(main())
