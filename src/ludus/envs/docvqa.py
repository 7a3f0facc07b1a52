"""DocVQA: a question about the picture of a document.

Rows (CSV, as SkillOpt's splits have them, or any other format) have `questionId`, `question`, `answer` (a list, also
written as text), `image_path` and `topic`. Pictures are looked for below `env.images`, below the folder of `env.path`
and below `images/` in it. The model must take pictures. Hard is an ANLS of 0.999, soft the ANLS.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from ludus.env import Env, EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_rows, read_list_text, require_path
from ludus.errors import ConfigError
from ludus.images import read_image
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task
from ludus.verify.qa_answers import compare_readings

_EMBEDDED = re.compile(r"document_path:\s*(\S+)")


class DocumentQuestion(Struct, frozen=True):
    """A row."""

    question: str
    answer: str | tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    questionId: str | int = ""
    id: str | int = ""
    image_path: str = ""
    topic: str = ""


class DocVQA(Env, frozen=True):
    """Questions about pictures of documents (DocVQA)."""

    name: ClassVar[str] = "docvqa"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="one per row of env.path",
        licence="that of the data",
        runs="text and pictures, no slot; needs a model that takes pictures",
        scored="ANLS of at least 0.999; soft: ANLS",
        speed="below 1 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = (
        "Answer the question about the document in the picture, in the words of the document. Write the answer between "
        "<answer> and </answer>."
    )

    path: str = ""
    """A file or folder with the questions."""
    images: str = ""
    """The folder of the pictures; empty: the folder of the questions."""

    def tasks(self, split: str) -> Iterator[Task]:
        rows = load_rows(require_path(self.path, self.name), DocumentQuestion, split, texts=["question"])
        for id, row in give_ids(rows, ["questionId", "id"], lambda _, number: f"{split}-{number}"):
            item = row.item
            yield Task(
                id=id,
                prompt=_EMBEDDED.sub("", item.question).strip(),
                split=split,
                kind=item.topic,
                images=(self._read_picture(row),),
                answer=_list_answers(row),
            )

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return compare_readings(rollout.task.answer, rollout.answer)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return f"<answer>{task.answer[0]}</answer>"

    def _read_picture(self, row: DataRow[DocumentQuestion]) -> str:
        embedded = _EMBEDDED.search(row.item.question)
        name = row.item.image_path or (embedded[1] if embedded else "")
        if not name:
            raise row.refuse("image_path: it is missing")
        for place in self._list_places():
            if (place / name).is_file():
                try:
                    return read_image(place / name)
                except ConfigError as error:
                    raise row.refuse(f"image_path: {error}") from None
        raise row.refuse(f"image_path: there is no file {name} below {self.images or self.path} (see env.images)")

    def _list_places(self) -> Iterator[Path]:
        if self.images:
            yield Path(self.images).expanduser()
            return
        given = Path(self.path).expanduser()
        folder = given if given.is_dir() else given.parent
        yield from (folder, folder / "images", folder.parent)


def _list_answers(row: DataRow[DocumentQuestion]) -> list[str]:
    given = row.item.answers or row.item.answer
    answers = read_list_text(given) if isinstance(given, str) else list(given)
    if not any(answer.strip() for answer in answers):
        raise row.refuse("answer: it is missing or empty")
    return answers
