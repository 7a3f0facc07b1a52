"""Grade-school maths in the GSM8K format: a question in words, an answer that ends in `#### <number>`.

Twelve items written for Ludus come with the package. The published set is read from a JSONL file (`--env.path
train.jsonl`, rows with `question` and `answer`; Parquet too) or from the Hugging Face hub (`--env.path
hub:openai/gsm8k`, extra `ludus-train[hub]`).
"""

import hashlib
from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from ludus.env import Env, EnvFacts
from ludus.envs.dataset import DataRow, load_bundled, load_rows
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task
from ludus.verify.numbers import compare_numbers, find_number


class Item(Struct, frozen=True):
    question: str
    answer: str


class Gsm8k(Env, frozen=True):
    """Grade-school maths word problems, scored by the exact final number."""

    name: ClassVar[str] = "gsm8k"
    facts: ClassVar[EnvFacts] = EnvFacts(
        licence="MIT (written for Ludus; the published set, with `env.path`, is MIT too)",
        scored="the final number is right",
        extra="`hub` for paths with `hub:`",
        speed="below 1 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = (
        "Solve the problem step by step. End with a line of the form '#### N', where N is the answer as a plain number."
    )

    path: str = ""
    """A JSONL or Parquet file with `question` and `answer` per row, or `hub:<dataset>`; empty: the bundled items."""

    def tasks(self, split: str) -> Iterator[Task]:
        for number, item in enumerate(self._load_items(split)):
            digest = hashlib.sha256(item.question.encode()).hexdigest()[:8]
            yield Task(id=f"{split}-{number}-{digest}", prompt=item.question, split=split, answer=item.answer)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return compare_numbers(rollout.task.answer, rollout.answer)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return task.answer

    def _load_items(self, split: str) -> list[Item]:
        if self.path:
            return [
                _check_item(row) for row in load_rows(self.path, Item, split, texts=["question"], configuration="main")
            ]
        items = [_check_item(row) for row in load_bundled("gsm8k.jsonl", Item)]
        return {"train": items[:8], "test": items[8:]}.get(split, [])


def _check_item(row: DataRow[Item]) -> Item:
    _, mark, number = row.item.answer.rpartition("####")
    if not mark or find_number(number) is None:
        raise row.refuse("answer: it does not end in '#### <number>'")
    return row.item
