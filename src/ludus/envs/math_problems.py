"""Mathematical problems with one answer, compared by `math-verify` (`ludus-train[math]`).

Twelve problems written for Ludus come with the package. Published sets are read from a file or the hub (`--env.path`):
rows with `problem` (or `question`) and `answer`, as in MATH-500, AIME and DAPO; or with a `solution` that ends in
`\\boxed{…}`, as in MATH. `subject` (or `type`) becomes the kind of a task, `unique_id` (or `id`) its id.
"""

import hashlib
from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from ludus.env import Env, EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_bundled, load_rows
from ludus.envs.math_answers import compare_expressions, find_boxed, require_math_verify
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task

BUNDLED = {"train": slice(0, 8), "test": slice(8, 12)}


class MathItem(Struct, frozen=True):
    """A row. Published sets give a field one of several names."""

    problem: str = ""
    question: str = ""
    answer: str | int | float = ""
    solution: str = ""
    subject: str = ""
    type: str = ""
    unique_id: str = ""
    id: str | int = ""

    @property
    def prompt(self) -> str:
        return self.problem or self.question


class MathProblems(Env, frozen=True):
    """Mathematical problems, scored by the final answer as a mathematical object."""

    name: ClassVar[str] = "math"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="8 train, 4 test; or one per row of env.path",
        licence="MIT (written for Ludus); that of the data for others",
        scored="equal as mathematical objects (math-verify)",
        extra="math",
        speed="5 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "Solve the problem step by step. Put the final answer, and only it, in \\boxed{}."

    path: str = ""
    """A file or folder of problems (JSON, JSONL, CSV, Parquet), or `hub:<dataset>`; empty: the bundled problems."""

    def tasks(self, split: str) -> Iterator[Task]:
        require_math_verify()

        def make_id(row: DataRow[MathItem], number: int) -> str:
            return f"{split}-{number}-{hashlib.sha256(row.item.prompt.encode()).hexdigest()[:8]}"

        for id, row in give_ids(self._load(split), ["unique_id", "id"], make_id):
            item, answer = row.item, _find_answer(row)
            yield Task(id=id, prompt=item.prompt, split=split, kind=item.subject or item.type, answer=answer)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return await compare_expressions(rollout.task.answer, rollout.answer, problem=rollout.task.prompt)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return f"\\boxed{{{task.answer}}}"

    def _load(self, split: str) -> list[DataRow[MathItem]]:
        if self.path:
            return load_rows(self.path, MathItem, split)
        return load_bundled("math.jsonl", MathItem)[BUNDLED[split]] if split in BUNDLED else []


def _find_answer(row: DataRow[MathItem]) -> str:
    """The final answer: a field of its own, or the last box of the solution."""
    item = row.item
    if not item.prompt.strip():
        raise row.refuse("problem: it is missing or empty (`question` will do, too)")
    if given := str(item.answer).strip():
        return find_boxed(given) or given.rpartition("####")[2].strip()
    boxed = find_boxed(item.solution)
    if boxed is None:
        raise row.refuse("answer: it is missing, and `solution` does not end in \\boxed{<answer>}")
    return boxed
