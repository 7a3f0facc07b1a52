"""Grade-school maths in the GSM8K format: a question in words, an answer that ends in `#### <number>`.

Twelve items written for Ludus come with the package. The published set is read from a JSONL file (`--env.path
train.jsonl`, rows with `question` and `answer`) or from the Hugging Face hub (`--env.path hub:openai/gsm8k`, extra
`ludus-train[hub]`).
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec import Struct

from ludus.env import Env
from ludus.errors import ConfigError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task
from ludus.verify.numbers import compare_numbers


class Item(Struct, frozen=True):
    question: str
    answer: str


class Gsm8k(Env, frozen=True):
    """Grade-school maths word problems, scored by the exact final number."""

    name: ClassVar[str] = "gsm8k"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = (
        "Solve the problem step by step. End with a line of the form '#### N', where N is the answer as a plain number."
    )

    path: str = ""
    """A JSONL file with `question` and `answer` per line, or `hub:<dataset>`; empty: the bundled items."""

    def tasks(self, split: str) -> Iterator[Task]:
        for number, item in enumerate(self._load_items(split)):
            digest = hashlib.sha256(item.question.encode()).hexdigest()[:8]
            yield Task(id=f"{split}-{number}-{digest}", prompt=item.question, split=split, answer=item.answer)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return compare_numbers(rollout.task.answer, rollout.answer)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return task.answer

    def _load_items(self, split: str) -> Iterable[Item]:
        if self.path.startswith("hub:"):
            return _load_from_hub(self.path.removeprefix("hub:"), split)
        if self.path:
            return _parse_items(_read_file(Path(self.path).expanduser()), self.path)
        items = _parse_items(files("ludus.envs").joinpath("data/gsm8k.jsonl").read_bytes(), "the bundled items")
        return {"train": items[:8], "test": items[8:]}.get(split, [])


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"env.path: cannot read {path}: {error.strerror}") from None


def _parse_items(data: bytes, source: str) -> list[Item]:
    rows: list[Item] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = msgspec.json.decode(line, type=Item)
        except msgspec.DecodeError as error:
            raise ConfigError(f"env.path: {source}, line {number}: {error}") from None
        if not re.search(r"####\s*\S", item.answer):
            raise ConfigError(f"env.path: {source}, line {number}: the answer does not end in '#### <number>'")
        rows.append(item)
    return rows


def _load_from_hub(dataset: str, split: str) -> list[Item]:
    """The split as the hub publishes it. It is downloaded once, into the hub's cache."""
    try:
        import datasets  # pyright: ignore  # an extra: heavy, and only used here
    except ImportError:
        raise ConfigError("env.path: reading from the hub needs: pip install 'ludus-train[hub]'") from None
    rows = datasets.load_dataset(dataset, "main", split=split)  # pyright: ignore
    return [Item(row["question"], row["answer"]) for row in rows]  # pyright: ignore
