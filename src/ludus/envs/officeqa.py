"""OfficeQA: questions whose answers are in long documents, which the agent searches with `glob`, `grep` and `read`.

Rows (CSV or JSON) have `uid` (or `id`), `question`, `ground_truth` (or `answer`), `category`, and `source_files`: the
names of the documents, as text files below `env.docs`. A task shows only its own documents; one without `source_files`
shows all. Only an answer in tags counts. Hard is an exact match of figures without units, soft the token F1. SkillOpt's
modes with a search service, and its context of the right pages, are not part of it.
"""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from ludus.env import Env, EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_rows, read_list_text, require_path
from ludus.errors import ConfigError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import Tool, tool
from ludus.types import Rollout, Score, Task
from ludus.verify.qa_answers import compare_answers, normalize_figures

MOST_FILES = 50
MOST_LINES = 20
MOST_CHARS = 4000
TEXTS = (".txt", ".md", ".csv", ".html")


class OfficeQuestion(Struct, frozen=True):
    """A row."""

    question: str
    uid: str | int = ""
    id: str | int = ""
    ground_truth: str | int | float = ""
    answer: str | int | float = ""
    category: str = ""
    difficulty: str = ""
    source_files: str | tuple[str, ...] = ()


class OfficeQA(Env, frozen=True):
    """Questions about long documents, searched with tools (OfficeQA)."""

    name: ClassVar[str] = "officeqa"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="one per row of env.path",
        licence="that of the data",
        runs="text and three tools of its own, no slot",
        scored="exact match of figures; soft: token F1",
        speed="below 1 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = (
        "Answer the question from the documents. Find them with glob, search them with grep and read them with read. "
        "Write the final answer, and only it, between <answer> and </answer>."
    )

    path: str = ""
    """A file or folder with the questions."""
    docs: str = ""
    """The folder of the documents; empty: `docs` beside the questions."""

    def tasks(self, split: str) -> Iterator[Task]:
        documents = self._find_documents()
        rows = load_rows(require_path(self.path, self.name), OfficeQuestion, split, texts=["question"])
        for id, row in give_ids(rows, ["uid", "id"], lambda _, number: f"{split}-{number}"):
            item = row.item
            gold = str(item.ground_truth).strip() or str(item.answer).strip()
            if not gold:
                raise row.refuse("ground_truth: it is missing (`answer` will do, too)")
            answer = {"answer": gold, "documents": _choose_documents(row, documents)}
            kind = item.category or item.difficulty
            yield Task(id=id, prompt=item.question, split=split, kind=kind, answer=answer)

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        every = self._find_documents()
        return make_document_tools({name: every[name] for name in task.answer["documents"] if name in every})

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        golds = [rollout.task.answer["answer"]]
        return compare_answers(golds, rollout.answer, normalize_figures, tags_only=True)

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return f"<answer>{task.answer['answer']}</answer>"

    def _find_documents(self) -> dict[str, Path]:
        """The documents by name, relative to their folder."""
        given = Path(require_path(self.path, self.name)).expanduser()
        folder = Path(self.docs).expanduser() if self.docs else (given if given.is_dir() else given.parent) / "docs"
        if not folder.is_dir():
            raise ConfigError(f"env.docs: there is no folder {folder}; name the folder of the documents")
        found = sorted(file for file in folder.rglob("*") if file.suffix in TEXTS and file.is_file())
        if not found:
            raise ConfigError(f"env.docs: {folder} has no document that ends in {', '.join(TEXTS)}")
        return {str(file.relative_to(folder)): file for file in found}


def _choose_documents(row: DataRow[OfficeQuestion], documents: Mapping[str, Path]) -> list[str]:
    """The documents that a task shows."""
    given = row.item.source_files
    names = read_list_text(given) if isinstance(given, str) else list(given)
    if not [name for name in names if name.strip()]:
        return list(documents)
    by_stem = {Path(name).stem: name for name in documents}
    chosen = [name if name in documents else by_stem.get(Path(name).stem, "") for name in names]
    if missing := [name for name, found in zip(names, chosen, strict=True) if not found]:
        raise row.refuse(f"source_files: there is no document '{missing[0]}' in env.docs")
    return chosen


def make_document_tools(documents: Mapping[str, Path]) -> list[Tool]:
    """Tools that reach these documents and no other file."""

    @tool
    async def glob(pattern: str = "*") -> str:
        """List the documents whose names match a pattern such as `*1995*`."""
        names = [name for name in documents if fnmatch.fnmatch(name, pattern)]
        more = f"\n… and {len(names) - MOST_FILES} more" if len(names) > MOST_FILES else ""
        return "\n".join(names[:MOST_FILES]) + more or "No document matches."

    @tool
    async def grep(text: str, document: str = "") -> str:
        """Find the lines that contain a text, in one document or in all. Upper and lower case are the same."""
        wanted = text.lower()
        hits: list[str] = []
        for name in [document] if document else documents:
            for number, line in enumerate(_read_lines(documents, name), 1):
                if wanted in line.lower():
                    hits.append(f"{name}:{number}: {line.strip()[:300]}")
                if len(hits) > MOST_LINES:
                    return "\n".join(hits[:MOST_LINES]) + "\n… and more: search for a longer text"
        return "\n".join(hits) or "No line contains it."

    @tool
    async def read(document: str, first_line: int = 1, lines: int = 80) -> str:
        """Read a part of a document."""
        found = _read_lines(documents, document)
        start = max(1, first_line)
        part = "\n".join(found[start - 1 : start - 1 + max(1, lines)])
        cut = part[:MOST_CHARS] + ("\n… (cut: read fewer lines)" if len(part) > MOST_CHARS else "")
        return f"{document}, from line {start} of {len(found)}:\n{cut}"

    return [glob, grep, read]


def _read_lines(documents: Mapping[str, Path], name: str) -> list[str]:
    if name not in documents:
        raise ValueError(f"there is no document '{name}': list them with glob")
    return re.split(r"\r?\n", documents[name].read_text(encoding="utf-8", errors="replace"))
