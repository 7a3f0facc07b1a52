"""Checkers: what says whether an answer to a past request is right. Pure, but for the time that an expression takes.

A checker is data that a model has proposed, or that was made of an answer. So it is text of an adversary: it is never
run as code here. Texts are compared in a scoring process (`ludus.verify.scoring_process`), which is killed if an
expression takes too long. A command runs in a slot only.

A checker is kept if what the user accepted passes it. A task is valid if, beyond that, an empty reply does not pass all
of its checkers, and neither does the answer of another session.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from ludus.types import Whole

CheckKind = Literal["contains", "not_contains", "regex", "json", "section", "length", "exact", "command"]
MOST = 6
"""The most checkers of one task."""
CHARS = 2_000
"""The longest text of a checker."""
ANSWER_CHARS = 200_000
"""How much of an answer is looked at."""
SHORT_ANSWER = 200
_SCORER = "ludus.sleep.checkers:run_checker"


class Checker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One condition that an answer, or the files that an agent left, must meet."""

    kind: CheckKind
    text: str = ""
    """What the answer contains or not; the expression; the heading of a section; the whole answer; the command."""
    keys: tuple[str, ...] = ()
    """For `json`: the keys that the object has."""
    least: Whole = 0
    most: Whole = 0
    """For `length`: characters. 0: no limit."""

    @property
    def is_positive(self) -> bool:
        """Whether an empty reply can fail it."""
        return self.kind != "not_contains" and not (self.kind == "length" and not self.least)

    def describe(self) -> str:
        match self.kind:
            case "contains":
                return f"the reply contains {self.text!r}"
            case "not_contains":
                return f"the reply does not contain {self.text!r}"
            case "regex":
                return f"the reply matches /{self.text}/"
            case "json":
                return f"the reply is a JSON value{' with ' + ', '.join(self.keys) if self.keys else ''}"
            case "section":
                return f"the reply has a section {self.text!r}"
            case "length":
                return f"the reply has {self.least or 'any number'} to {self.most or 'any number'} characters"
            case "exact":
                return f"the reply is {self.text!r}"
            case "command":
                return f"`{self.text}` ends with exit code 0"


def find_checker_fault(checker: Checker) -> str:
    """What is wrong with a checker by itself; empty if nothing is."""
    if checker.kind == "json":
        return "" if len(checker.keys) <= 50 and all(checker.keys) else "json: `keys` are names, at most 50"
    if checker.kind == "length":
        if not checker.least and not checker.most:
            return "length: give `least` or `most`"
        return "length: `least` is above `most`" if checker.most and checker.least > checker.most else ""
    if not checker.text.strip() or "\0" in checker.text:
        return f"{checker.kind}: `text` is empty"
    if len(checker.text) > CHARS:
        return f"{checker.kind}: `text` has more than {CHARS:,} characters"
    if checker.kind == "regex":
        try:
            re.compile(checker.text)
        except (re.error, RecursionError, OverflowError) as error:
            return f"regex: {error}"
    return ""


def make_plain_checkers(answer: str) -> tuple[Checker, ...]:
    """Checkers that need no model: a short answer as it is, and the keys of a JSON object."""
    answer = answer.strip()
    try:
        value: Any = json.loads(answer)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and value:
        return (Checker(kind="json", keys=tuple(list(map(str, cast("dict[Any, Any]", value)))[:20])),)
    if answer and len(answer) <= SHORT_ANSWER and "\n" not in answer:
        return (Checker(kind="exact", text=answer),)
    return ()


# ---- running, in a scoring process ----------------------------------------------------------------------------------


def run_checker(plain: Mapping[str, Any], answer: str) -> bool:
    """Whether an answer passes a checker of texts. Runs in a scoring process."""
    return _passes(msgspec.convert(plain, Checker), answer[:ANSWER_CHARS].strip())


def _passes(checker: Checker, answer: str) -> bool:
    match checker.kind:
        case "contains":
            return _fold(checker.text) in _fold(answer)
        case "not_contains":
            return _fold(checker.text) not in _fold(answer)
        case "regex":
            return re.search(checker.text, answer, re.MULTILINE) is not None
        case "json":
            return _has_keys(answer, checker.keys)
        case "section":
            wanted = _name_section(checker.text)
            return any(_name_section(line) == wanted for line in _SECTION.findall(answer))
        case "length":
            return len(answer) >= checker.least and (not checker.most or len(answer) <= checker.most)
        case "exact":
            return _fold(answer) == _fold(checker.text)
        case "command":
            raise ValueError("a command runs in a slot")


_SECTION = re.compile(r"^[ \t]*(?:#{1,6}[ \t].*|\*\*.*|.{1,80}:[ \t]*)$", re.MULTILINE)
"""Lines that may be the heading of a section: `## Risks`, `**Risks**`, `Risks:`."""
_FENCE = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


def _fold(text: str) -> str:
    """The text without differences of case and white space."""
    return " ".join(text.split()).casefold()


def _name_section(line: str) -> str:
    return _fold(line).strip("#*: ")


def _has_keys(answer: str, keys: Sequence[str]) -> bool:
    fenced = _FENCE.search(answer)
    try:
        value: Any = json.loads(fenced[1] if fenced else answer)
    except (ValueError, RecursionError):
        return False
    if not keys:
        return isinstance(value, dict | list)
    return isinstance(value, dict) and all(key in value for key in keys)


async def check_text(checker: Checker, answer: str, seconds: float) -> bool:
    """Whether an answer passes a checker of texts.

    Raises:
        TimeoutError: it took too long.
        ScorerFailed: its process died.
    """
    from ludus.verify.scoring_process import run_scorer

    return bool(await run_scorer(_SCORER, msgspec.to_builtins(checker), answer[:ANSWER_CHARS], seconds=seconds))


# ---- choosing -------------------------------------------------------------------------------------------------------


class CheckerTrial(Struct, frozen=True):
    """How a checker did on answers that are known. None: it took too long, or broke."""

    reference: bool | None
    empty: bool | None
    controls: tuple[bool | None, ...]

    @property
    def problem(self) -> str:
        if None in (self.reference, self.empty, *self.controls):
            return "a checker took too long or broke"
        return "" if self.reference else "a checker that the accepted answer does not pass"


def choose_checkers(trials: Sequence[tuple[Checker, CheckerTrial]]) -> tuple[tuple[Checker, ...], str]:
    """The checkers that hold, and why the task has none; the reason is empty if it has."""
    kept = [(checker, trial) for checker, trial in trials if not trial.problem]
    problems = [trial.problem for _, trial in trials if trial.problem]
    if not kept:
        return (), problems[0] if problems else "no checker was proposed"
    if all(trial.empty for _, trial in kept):
        return (), "an empty reply passes its checkers"
    controls = zip(*(trial.controls for _, trial in kept), strict=True)
    if any(all(passed) for passed in controls):
        return (), "the answer of another session passes its checkers"
    return tuple(checker for checker, _ in kept), ""
