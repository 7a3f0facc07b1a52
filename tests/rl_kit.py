"""A trainer without PyTorch for tests of the RL loop: a table of logits for each prompt, trained with REINFORCE.

It is a real `Trainer`: it samples with seeds, records logprobs, learns, and continues exactly from a saved state.
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from ludus.env import Env
from ludus.models import Model
from ludus.models.scripted import ScriptedModel
from ludus.policy import Policy
from ludus.rl.loop import RlRun, run_rl
from ludus.rl.records import RlStep
from ludus.rl.settings import RlSettings
from ludus.rl.trainers import PolicyUpdate, TrainingRow, UpdateMetrics, check_finite
from ludus.runner import Runner, RunOptions
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.store import MemoryStore
from ludus.types import Completion, Message, Rollout, Sampling, Score, Task, Tokens, ToolSpec, Usage

LETTERS = "abcd"


class Letters(Env, frozen=True):
    """The answer to each number is one of four letters."""

    name: ClassVar[str] = "letters"
    sandbox: ClassVar[SandboxSpec | None] = None

    def tasks(self, split: str) -> Iterator[Task]:
        for number in range(6):
            yield Task(id=f"{split}-{number}", prompt=str(number), split=split, answer=LETTERS[number % 4])

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(rollout.answer == rollout.task.answer))


class TableModel:
    """Samples from logits. `gate`, if there is one, is awaited before each reply."""

    def __init__(self, name: str, logits: dict[str, list[float]], gate: Any = None) -> None:
        self.name = name
        self.logits = logits
        self.gate = gate
        self.closed = False

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        assert not self.closed
        if self.gate is not None:
            await self.gate(self)
        prompt = messages[-1].content
        chances = softmax(self.logits.get(prompt, [0.0] * 4))
        choice = random.Random(sampling.seed).choices(range(4), chances)[0]
        ids, logprob = (100 + int(prompt), choice), math.log(chances[choice])
        return Completion(
            Message("assistant", LETTERS[choice]),
            usage=Usage(1, 1),
            tokens=Tokens(ids, (False, True), (None, logprob)),
        )

    async def close(self) -> None:
        self.closed = True


class TableTrainer:
    """Learns the table. `poison` is a version at which the loss is not a number."""

    name = "table"

    def __init__(self, rate: float = 2.0, gate: Any = None, poison: int | None = None) -> None:
        self.version = 0
        self.logits: dict[str, list[float]] = {}
        self.rate = rate
        self.gate = gate
        self.poison = poison
        self.models: list[TableModel] = []
        self.seen: list[list[TrainingRow]] = []

    async def get_model(self, name: str) -> Model:
        model = TableModel(name, {prompt: list(row) for prompt, row in self.logits.items()}, self.gate)
        self.models.append(model)
        return model

    async def update(self, rows: Sequence[TrainingRow]) -> PolicyUpdate:
        await asyncio.sleep(0)
        self.seen.append(list(rows))
        loss = float("nan") if self.version == self.poison else -math.fsum(row.advantage for row in rows)
        metrics = UpdateMetrics(loss=loss, kl=0.0, entropy=1.0, tokens=len(rows))
        check_finite(metrics)
        logprobs = tuple((self._score(row),) for row in rows)
        for row in rows:
            prompt, choice = str(row.tokens.ids[0] - 100), row.tokens.ids[1]
            logits = self.logits.setdefault(prompt, [0.0] * 4)
            chances = softmax(logits)
            for letter in range(4):
                logits[letter] += self.rate / len(rows) * row.advantage * ((letter == choice) - chances[letter])
        self.version += 1
        return PolicyUpdate(version=self.version, metrics=metrics, logprobs=logprobs)

    def _score(self, row: TrainingRow) -> float:
        first, choice = row.tokens.ids
        return math.log(softmax(self.logits.get(str(first - 100), [0.0] * 4))[choice])

    async def save(self, folder: Path) -> None:
        (folder / "table.json").write_bytes(msgspec.json.encode({"version": self.version, "logits": self.logits}))

    async def load(self, folder: Path) -> None:
        state = msgspec.json.decode((folder / "table.json").read_bytes())
        self.version, self.logits = state["version"], state["logits"]

    async def close(self) -> None: ...


def softmax(logits: Sequence[float]) -> list[float]:
    powers = [math.exp(value - max(logits)) for value in logits]
    return [power / sum(powers) for power in powers]


LETTERS_FILE = """
from tests.rl_kit import Letters as _Letters

class Letters(_Letters, frozen=True):
    \"\"\"The answer to each number is one of four letters.\"\"\"
"""


def make_run(trainer: Any = None, **changes: Any) -> RlRun:
    """A run of `Letters`. Changes are settings, or `store`, `options`, `checkpoints` and `held_out`."""
    env = Letters()
    store, options = changes.pop("store", None) or MemoryStore(), changes.pop("options", RunOptions(concurrency=64))
    checkpoints, held_out = changes.pop("checkpoints", None), changes.pop("held_out", ())
    fields = {"steps": 4, "groups": 3, "group_size": 4, "eval_every": 0, **changes}
    return RlRun(
        policy=Policy(ScriptedModel([])),
        trainer=trainer or TableTrainer(),
        settings=RlSettings(**fields),
        tasks=tuple(env.tasks("train")),
        held_out=held_out,
        runner=Runner(env, store=store, options=options),
        checkpoints=checkpoints,
    )


async def collect(run: RlRun, most: int | None = None) -> list[RlStep]:
    """The records of a run; of its first `most` only."""
    records: list[RlStep] = []
    steps: AsyncIterator[RlStep] = run_rl(run)
    async for record in steps:
        records.append(record)
        if most is not None and len(records) >= most:
            await steps.aclose()  # pyright: ignore
            break
    return records
