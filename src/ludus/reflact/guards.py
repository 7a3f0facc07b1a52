"""Guards: texts that must not get into a skill. Pure.

A skill that holds a piece of a task, its reference answer or a secret can score well without teaching anything, or do
harm where it is shipped. `Guard.find_fault` looks at the text that an edit would add:

    secret           it has the form of a key, a token or a password
    leaked_answer    it holds the reference answer of a task
    copied_task      it repeats a row of words of a task
    hidden_text      it holds characters that a reader does not see: control characters, which a terminal would obey,
                     marks that turn the direction of writing, or invisible letters (`ludus.hidden_text`)

Answers and rows of words count only if they belong to one or two tasks: what many tasks share, such as a label or the
form of the question, is what a skill may teach. Short answers, such as numbers, are in many texts by chance and do not
count. Worked examples (`ludus.skill_examples`) are made from train tasks on purpose: they are checked for secrets only.

Canary items detect skills that game the verifier: tasks whose reference was replaced by a random text. No honest
answer passes, unless the verifier does not look at the reference. `make_canaries` makes them.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Literal, TypeVar, cast, get_args

from msgspec import Struct
from msgspec.structs import replace

from ludus.settings import Settings
from ludus.skill import Edit, Skill, render_whole
from ludus.skill_examples import remove_examples
from ludus.types import Count, Task, Whole

_Key = TypeVar("_Key", str, tuple[str, ...])
FaultKind = Literal["secret", "leaked_answer", "copied_task", "hidden_text"]

REFUSED_STATUSES = frozenset(f"skipped_{kind}" for kind in get_args(FaultKind))
"""The fates of items that a guard refused."""

_WORD = re.compile(r"\w+")
_SECRET_CHARS = 12
"""The shortest secret that is told by the name before it, and not by its form."""
_SHARED = 2
"""An answer or a row of words of more tasks than this is common knowledge."""


class GuardSettings(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """What may not get into a skill."""

    enabled: bool = True
    """Look for edits that hold a secret, the answer of a task, a copied piece of a task or characters that are not
    seen."""
    refuse: bool = True
    """Refuse such edits. If not, they are made, and the run warns of each."""
    words: Count = 10
    """The number of words in a row that make a copy of a task."""
    answer_chars: Count = 12
    """The shortest reference answer that is looked for, in characters."""
    canaries: Whole = 0
    """At the end, run the skill to be shipped on this many selection tasks whose reference is a random text. If it
    passes some of them and the initial skill does not, it games the verifier and is not shipped. For verifiers that
    compare with `Task.answer`."""


class Fault(Struct, frozen=True):
    """Why a text may not get into the skill."""

    kind: FaultKind
    excerpt: str
    """The words in question, or the codes of characters; empty for a secret."""
    task: str = ""

    @property
    def status(self) -> str:
        """The fate of an item with this fault."""
        return f"skipped_{self.kind}"

    def describe(self) -> str:
        """The fault in words."""
        match self.kind:
            case "secret":
                return "it holds what looks like a secret"
            case "leaked_answer":
                return f"it holds the answer of task {self.task}"
            case "copied_task":
                return f"it repeats words of task {self.task}: {self.excerpt}"
            case "hidden_text":
                return f"it holds characters that are not seen: {self.excerpt}"


class Guard:
    """Checks texts against the tasks of the train and the selection split. The index of the tasks is made once.

    `warn` is told of the texts that are not refused although something is wrong with them (`GuardSettings.refuse`), and
    of notes that are.
    """

    def __init__(
        self,
        settings: GuardSettings,
        train: Sequence[Task],
        selection: Sequence[Task],
        warn: Callable[[str], None] = lambda warning: None,
    ) -> None:
        self._settings = settings
        self._warn = warn
        self._splits = {"train": train, "selection": selection}
        self._rows: dict[str, Mapping[tuple[str, ...], str]] = {}
        self._answers: dict[str, Mapping[str, str]] = {}

    def find_fault(self, before: Skill, added: str) -> Fault | None:
        """Why a text may not be added to a skill; None if it may. What the skill has is allowed."""
        fault = self._look_for_fault(before, added) if self._settings.enabled and added.strip() else None
        if fault is None or self._settings.refuse:
            return fault
        self._warn(f"a text is added to the skill although {fault.describe()}")
        return None

    def _look_for_fault(self, before: Skill, added: str) -> Fault | None:
        known = render_whole(before)
        if any(secret not in known for secret in _list_secrets(added)):
            return Fault("secret", "")
        from ludus.hidden_text import find_hidden  # settings are read without it

        if hidden := sorted(find_hidden(added) - find_hidden(known)):
            return Fault("hidden_text", " ".join(f"U+{ord(each):04X}" for each in hidden[:4]))
        plain = remove_examples(added)
        return self._find_copy(before, plain, "train") or self._find_copy(before, plain, "selection")

    def check_edit(self, before: Skill, edit: Edit) -> Fault | None:
        """What is wrong with an edit: with what it adds, or with the name of a new file."""
        if edit.op in ("delete", "remove"):
            return None
        named = "" if edit.path in before.paths else edit.path
        return self.find_fault(before, edit.content) or self.find_fault(before, named)

    def keep_allowed(self, before: Skill, notes: Iterable[str]) -> list[str]:
        """The notes that may be added to a skill. What is wrong with each of the others is a warning."""
        kept: list[str] = []
        for note in notes:
            if fault := self.find_fault(before, note):
                self._warn(f"a note is left out: {fault.describe()}")
            else:
                kept.append(note)
        return kept

    def hide_secret(self, edit: Edit) -> Edit:
        """The edit as it may be recorded: a secret in it is masked."""
        content = edit.content
        for secret in sorted(_list_secrets(content), key=len, reverse=True):
            content = content.replace(secret, "[redacted]")
        return replace(edit, content=content)

    def _find_copy(self, before: Skill, added: str, split: str) -> Fault | None:
        words = _split_words(added)
        joined, known = f" {' '.join(words)} ", _join_words(render_whole(before))
        for answer, task in self._get_answers(split).items():
            if f" {answer} " in joined and f" {answer} " not in known:
                return Fault("leaked_answer", answer, task)
        rows = self._get_rows(split)
        for row in _list_rows(words, self._settings.words):
            if (task := rows.get(row)) and f" {' '.join(row)} " not in known:
                return Fault("copied_task", " ".join(row), task)
        return None

    def _get_rows(self, split: str) -> Mapping[tuple[str, ...], str]:
        """The rows of words of a split's prompts that belong to few tasks, with one of these."""
        if split not in self._rows:
            size = self._settings.words
            pairs = (
                (row, task.id)
                for task in self._splits[split]
                for row in set(_list_rows(_split_words(task.prompt), size))
            )
            self._rows[split] = _keep_rare(pairs)
        return self._rows[split]

    def _get_answers(self, split: str) -> Mapping[str, str]:
        """The reference answers of a split that are long enough and belong to few tasks, with one of these."""
        if split not in self._answers:
            texts = ((text, task.id) for task in self._splits[split] for text in _list_answers(task.answer))
            long = ((text, id) for text, id in texts if len(text.strip()) >= self._settings.answer_chars)
            self._answers[split] = _keep_rare((" ".join(_split_words(text)), id) for text, id in long)
        return self._answers[split]


def _list_answers(answer: object) -> list[str]:
    """The texts that an answer is, or that an answer of several fields has."""
    values = cast("Mapping[str, object]", answer).values() if isinstance(answer, Mapping) else (answer,)
    return [value for value in values if isinstance(value, str)]


def _list_secrets(text: str) -> set[str]:
    """What looks like a secret. A short value after a name may be part of a task."""
    from ludus.secret_forms import (
        find_keys,
        find_named,
    )  # its patterns are compiled at import: no command waits for them

    named = (span for span in find_named(text) if span.end - span.start >= _SECRET_CHARS)
    return {text[span.start : span.end] for span in (*find_keys(text), *named)}


def _keep_rare(pairs: Iterable[tuple[_Key, str]]) -> dict[_Key, str]:
    """The keys that few tasks have, with the first of these."""
    tasks: dict[_Key, tuple[str, int]] = {}
    for key, task in pairs:
        first, count = tasks.get(key, (task, 0))
        tasks[key] = (first, count + 1)
    return {key: first for key, (first, count) in tasks.items() if count <= _SHARED and key}


@lru_cache(maxsize=16)  # many proposals are added to the same text
def _join_words(text: str) -> str:
    return f" {' '.join(_split_words(text))} "


def _split_words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _list_rows(words: Sequence[str], size: int) -> Iterable[tuple[str, ...]]:
    return (tuple(words[start : start + size]) for start in range(len(words) - size + 1))


def list_added(before: Skill, after: Skill) -> str:
    """The lines of a new document that the old one does not have."""
    known = set(render_whole(before).splitlines())
    return "\n".join(line for line in render_whole(after).splitlines() if line not in known)


# ---- canary items ---------------------------------------------------------------------------------------------------


class CanaryReport(Struct, frozen=True):
    """How many canary items skills passed."""

    items: int
    """Canary items with a score under both skills."""
    initial: int
    """The number that the initial skill passed. If there are any, the verifier does not depend on the reference."""
    best: int

    @property
    def suspicious(self) -> bool:
        """Whether the new skill passes items that no honest answer passes."""
        return self.best > 0 and self.initial == 0

    def describe(self) -> str:
        """The result in one sentence."""
        if self.suspicious:
            return (
                f"the new skill passes {self.best} of {self.items} canary items, whose reference is a random text: it "
                "games the verifier and is not shipped"
            )
        if self.initial:
            return "canary items: the initial skill passes some too, so the verifier does not depend on the reference"
        return f"canary items: none of {self.items} is passed, as it should be"


def make_canaries(tasks: Sequence[Task], count: int, seed: int) -> list[Task]:
    """Tasks whose reference is a random text. Only tasks with a reference in words can be used."""
    random = Random(f"canaries/{seed}")
    usable = [task for task in tasks if isinstance(task.answer, str) and task.answer.strip()]
    chosen = random.sample(usable, min(count, len(usable)))
    return [replace(task, id=f"{task.id}~canary", answer=f"canary {random.randbytes(8).hex()}") for task in chosen]
