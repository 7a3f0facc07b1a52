"""SearchQA: a question and passages of a web search, in the format of `lucadiliello/searchqa`.

Rows have `question`, `context` (passages with `[DOC]` between them), `answers`, and `key` (or `id`). As in SkillOpt,
the context is cut to 6,000 characters at the boundary of a passage, hard is an exact match and soft the token F1.
"""

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from ludus.env import Env, EnvFacts
from ludus.envs.dataset import give_ids, load_rows, require_path
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Count, Rollout, Score, Task
from ludus.verify.qa_answers import compare_answers

DOCUMENT = "[DOC]"


class SearchQuestion(Struct, frozen=True):
    """A row."""

    question: str
    context: str
    answers: tuple[str, ...]
    key: str = ""
    id: str | int = ""


class SearchQA(Env, frozen=True):
    """Questions about passages of a web search (SearchQA)."""

    name: ClassVar[str] = "searchqa"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="one per row of env.path (or hub:lucadiliello/searchqa)",
        licence="that of the data",
        scored="exact match of the answer; soft: token F1",
        speed="below 1 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = (
        "Answer the question with the help of the passages. Write the answer, a name or a few words, between <answer> "
        "and </answer>."
    )

    path: str = ""
    """A file or folder with the questions, or `hub:lucadiliello/searchqa`."""
    context_chars: Count = 6000
    """How much of the passages is shown, up to the end of a passage."""

    def tasks(self, split: str) -> Iterator[Task]:
        rows = load_rows(require_path(self.path, self.name), SearchQuestion, split, texts=["question"])
        for id, row in give_ids(rows, ["key", "id"], lambda _, number: f"{split}-{number}"):
            item = row.item
            if not any(answer.strip() for answer in item.answers):
                raise row.refuse("answers: there is none")
            passages = cut_passages(item.context, self.context_chars)
            yield Task(
                id=id,
                prompt=f"Passages:\n{passages}\n\nQuestion: {item.question}",
                split=split,
                kind="qa",
                answer=list(item.answers),
            )

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return compare_answers(rollout.task.answer, rollout.answer)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return f"<answer>{task.answer[0]}</answer>"


def cut_passages(context: str, most: int) -> str:
    """The first passages that fit. Of the first one, as much as fits."""
    if len(context) <= most:
        return context
    cut = context[:most]
    end = cut.rfind(DOCUMENT)
    return cut[:end].rstrip() if end > 0 else cut
