"""Tasks without a single right answer: a model grades each reply by a rubric (`ludus.verify.grading`).

Four tasks come with the package. Yours are read from `--env.path`: rows with `prompt` and `rubric`, which is a text, a
list of texts, or a list of objects with `criterion` and `weight`. `reference` is a reply that meets all criteria:
judges see it, agents do not, and `ludus validate` proves the task with it. `id` and `kind` are optional.

    ludus evaluate judge --env.path tasks.jsonl --judge.base_url URL --judge.name NAME --judge.api_key_var VARIABLE
"""

import hashlib
from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta, Struct

from ludus.env import Env, EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_bundled, load_rows
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task
from ludus.verify.grading import Criterion, Judges


class JudgedItem(Struct, frozen=True):
    """A row."""

    prompt: str
    rubric: str | tuple[str | Criterion, ...]
    reference: str = ""
    id: str = ""
    kind: str = ""


class Judged(Env, frozen=True):
    """Open tasks, graded by a model with a rubric."""

    name: ClassVar[str] = "judge"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="4 train; or one per row of env.path",
        licence="MIT (written for Ludus); that of the data for others",
        runs="text only, no slot; needs a judge model",
        scored="share of the rubric's weights that a judge finds met",
        speed="that of the judge",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    graded: ClassVar[bool] = True

    path: str = ""
    """A file or folder of tasks with `prompt` and `rubric`, or `hub:<dataset>`; empty: the bundled tasks."""
    pass_mark: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """The share of the rubric's weights from which a reply passes."""

    def tasks(self, split: str) -> Iterator[Task]:

        def make_id(row: DataRow[JudgedItem], number: int) -> str:
            return f"{split}-{number}-{hashlib.sha256(row.item.prompt.encode()).hexdigest()[:8]}"

        for id, row in give_ids(self._load(split), ["id"], make_id):
            item = row.item
            rubric = [msgspec.to_builtins(each) for each in _read_rubric(row)]
            answer = {"rubric": rubric, "reference": item.reference}
            yield Task(id=id, prompt=item.prompt, split=split, kind=item.kind, answer=answer)

    async def grade(self, rollout: Rollout, box: Sandbox | None, judges: Judges) -> Score:
        answer = rollout.task.answer
        rubric = msgspec.convert(answer["rubric"], tuple[Criterion, ...])
        return await judges.grade(
            rollout.task.prompt, rubric, rollout.answer, reference=answer["reference"], pass_mark=self.pass_mark
        )

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        if not task.answer["reference"]:
            raise ValueError(f"task '{task.id}' has no reference: add the field `reference` to prove it")
        return task.answer["reference"]

    def _load(self, split: str) -> list[DataRow[JudgedItem]]:
        if self.path:
            return load_rows(self.path, JudgedItem, split, texts=["prompt"])
        return load_bundled("judged.jsonl", JudgedItem) if split == "train" else []


def _read_rubric(row: DataRow[JudgedItem]) -> list[Criterion]:
    given = (row.item.rubric,) if isinstance(row.item.rubric, str) else row.item.rubric
    rubric = [Criterion(each) if isinstance(each, str) else each for each in given]
    if not rubric or not all(each.criterion.strip() for each in rubric):
        raise row.refuse("rubric: it has no criterion, or an empty one")
    return rubric
