"""LiveMathematicianBench: multiple-choice questions about theorems of recent papers.

Rows have `question`, `choices` (objects with `label` and `text`), `correct_choice`, `theorem_type`, and `id`, or
`month` and `no`. Files are `qa_<month>_final.json` (the id is then `<month>:<no>`), or a folder of them for each split.
The order of the choices is sampled from the seed and the id, and labels are given anew, so that the position says
nothing.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from msgspec import Struct

from ludus.env import Env, EnvFacts
from ludus.envs.dataset import DataRow, give_ids, load_rows, require_path
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task
from ludus.verify.qa_answers import find_final_answer

LABELS = "ABCDEFGHIJ"
_MONTH = re.compile(r"qa_(\w+?)_final")


class Choice(Struct, frozen=True):
    label: str
    text: str


class TheoremQuestion(Struct, frozen=True):
    """A row."""

    question: str
    choices: tuple[Choice, ...]
    correct_choice: Choice
    theorem_type: tuple[str, ...] | str = ()
    theorem: str = ""
    sketch: str = ""
    id: str | int = ""
    month: str = ""
    no: str | int = ""


class LiveMathematicianBench(Env, frozen=True):
    """Multiple-choice questions about recent theorems (LiveMathematicianBench)."""

    name: ClassVar[str] = "livemathematicianbench"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="one per row of env.path",
        licence="that of the data",
        scored="the right label (soft is the same)",
        speed="below 1 ms per task",
    )
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = (
        "Choose the right answer. Think it through, then write the letter of your choice, and only it, between "
        "<answer> and </answer>."
    )

    path: str = ""
    """A file or folder with the questions."""
    shuffle_choices: bool = True
    """Sample the order of the choices."""
    seed: int = 0
    """The seed of the order."""
    use_theorem: bool = False
    """Show the theorem that a question is about."""
    use_sketch: bool = False
    """Show the sketch of its proof."""

    def tasks(self, split: str) -> Iterator[Task]:
        rows = load_rows(require_path(self.path, self.name), TheoremQuestion, split, texts=["question"])
        for id, row in give_ids(rows, (), lambda row, number: _make_id(row, split, number)):
            texts, right = self._order_choices(row, id)
            types = row.item.theorem_type
            kind = types if isinstance(types, str) else (types[0] if types else "")
            answer = {"label": LABELS[right], "choices": texts}
            yield Task(id=id, prompt=self._make_prompt(row.item, texts), split=split, kind=kind, answer=answer)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        answer = rollout.task.answer
        label = find_label(rollout.answer, answer["choices"])
        right = label == answer["label"]
        said = f"The choice {label} is" if label else "No choice was made, which is"
        return Score.of(float(right), f"{said} {'right' if right else 'wrong; right is ' + answer['label']}.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return f"<answer>{task.answer['label']}</answer>"

    def _order_choices(self, row: DataRow[TheoremQuestion], id: str) -> tuple[list[str], int]:
        """The texts of the choices in their order, and the place of the right one."""
        choices = list(row.item.choices)
        right = [choice for choice in choices if choice.label == row.item.correct_choice.label]
        if len(choices) < 2 or len(choices) > len(LABELS):
            raise row.refuse(f"choices: there are {len(choices)}, not 2 to {len(LABELS)}")
        if len(right) != 1:
            raise row.refuse(f"correct_choice: {len(right)} choices have its label '{row.item.correct_choice.label}'")
        if self.shuffle_choices:
            digest = hashlib.sha256(f"{self.seed}/{id}".encode()).digest()
            Random(int.from_bytes(digest[:8], "big")).shuffle(choices)
        return [choice.text for choice in choices], choices.index(right[0])

    def _make_prompt(self, item: TheoremQuestion, texts: list[str]) -> str:
        theorem = f"Theorem: {item.theorem}\n\n" if self.use_theorem and item.theorem else ""
        sketch = f"Sketch of its proof: {item.sketch}\n\n" if self.use_sketch and item.sketch else ""
        choices = "\n".join(f"{label}. {text}" for label, text in zip(LABELS, texts, strict=False))
        return f"{theorem}{sketch}{item.question}\n\n{choices}"


def _make_id(row: DataRow[TheoremQuestion], split: str, number: int) -> str:
    item = row.item
    file = _MONTH.search(Path(row.place.partition(",")[0]).name)
    month = item.month or (file[1] if file else "")
    if ":" in str(item.id) or (item.id != "" and not month):
        return str(item.id)
    own: Any = item.no if item.no != "" else item.id
    return f"{month}:{own}" if month and own != "" else str(own) or f"{split}-{number}"


def find_label(reply: str, choices: list[str]) -> str:
    """The label that a reply gives: a letter, the text of a choice, or a letter before other words."""
    answer = find_final_answer(reply).strip()
    labels = LABELS[: len(choices)]
    bare = answer.strip("()[].:* ").upper()
    if len(bare) == 1 and bare in labels:
        return bare
    by_text = {" ".join(text.split()).lower(): label for label, text in zip(labels, choices, strict=True)}
    if (label := by_text.get(" ".join(answer.split()).lower())) is not None:
        return label
    first = re.match(rf"\(?([{labels}])(?:[).:,]|\s|$)", answer)
    return first[1] if first else ""
