"""The records of the ledger: lines, situations, what was read in rollouts, and beliefs about effects.

A `Line` is one edit of the initial skill, with the log-odds that it works. A `Situation` is a cause of failures that
analysts have named, such as "the unit is missing". Lines about the same situation compete: at most one of them is in a
text. `LineLedger` is everything that is known about them, as one frozen value. It follows from the readings of all
rollouts: `ludus.reflact.ledger.credit` adds the readings of a step.

There are thousands of these records, and none can be part of a cycle: `gc=False` spares the collector to visit them.
Situations are few, and keep what is computed from them (`dict=True`), as the ledger does: steps ask for it many times.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import NamedTuple

from msgspec import Struct, field

from ludus.reflact.ledger.passages import drop_passages, list_passages
from ludus.skill import Edit, Skill, apply_edits


class Line(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One line that was proposed: an edit of the initial skill, and the evidence for and against it."""

    id: str
    """`L1`, `L2`, … in the order of birth."""
    edit: Edit
    """How it changes the initial skill. Its `evidence` are the tasks that it came from."""
    situation: str
    """The label of the situation that it is about."""
    born: int
    """The step that proposed it."""
    weight: float
    """The log-odds that it works: that its situation does not spoil a rollout that has the line."""
    birth_weight: float
    """The weight at birth."""
    harm: Mapping[str, float] = field(default_factory=dict[str, float])
    """The log-odds that it hurts a kind of task, by kind; the prior where a kind is missing."""
    tries: int = 0
    """The number of rollouts that said something about whether it works."""
    held: int = 0
    """In how many of them its situation did not occur."""
    suspected: int = 0
    """In how many failed rollouts an analyst suspected it."""
    retired: int = 0
    """The step that retired it; 0 while it is alive."""
    reason: str = ""
    """Why it was retired."""
    replaces: str = ""
    """The id of the line that it is meant to replace; both compete."""
    by_outcome: bool = False
    """Whether outcomes alone speak for and against it: its proposer does not name situations."""
    passage: bool = False
    """Whether it is a passage of the initial skill. Its edit adds nothing then: to have the line is to keep the
    passage."""
    pointer: str = ""
    """The line of the document that sends the agent to its file. It is in the text with the line, unless the document
    names the file already."""
    unread: int = 0
    """Rollouts on tasks that call for it in which it was in the text and its file was not read."""

    @property
    def works(self) -> float:
        """The probability that it works."""
        return compute_sigmoid(self.weight)

    @property
    def reach(self) -> float:
        """How often it is read on the tasks that call for it, if it is in the text."""
        return (2 + self.tries) / (2 + self.tries + self.unread)

    @property
    def is_free(self) -> bool:
        """Whether it is about no situation that analysts name: outcomes alone say what it does."""
        return self.passage or self.by_outcome

    @property
    def is_alive(self) -> bool:
        return self.retired == 0

    @property
    def is_untried(self) -> bool:
        """Whether next to nothing is known about it yet. That its file is not read is known."""
        return abs(self.weight - self.birth_weight) < 0.5 and self.unread < 2

    @property
    def is_settled(self) -> bool:
        """Whether it says something about how many proposals work."""
        return not self.passage and self._has_moved

    @property
    def _has_moved(self) -> bool:
        return not self.is_alive or abs(self.weight - self.birth_weight) > 1.2


class Situation(Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """A cause of failures, with a label that stays the same."""

    label: str
    called: tuple[str, ...] = ()
    """The train tasks that it spoiled at least once."""
    tries: int = 0
    """Rollouts on called tasks without a line about it in the text. The failure that called a task is not counted."""
    named: int = 0
    """In how many of them it was named again."""
    returns: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """The same two numbers for each of these tasks. A cause that was named by mistake does not come back on its task,
    however often it does on others."""

    @property
    def rate(self) -> float:
        """The probability that it spoils a called task without a line about it."""
        return (1 + self.named) / (2 + self.tries)

    def get_rate(self, task: str) -> float:
        """The same for one task: what was seen on it, and as long as that is little, what was seen on all."""
        tries, named = self.returns.get(task, (0, 0))
        return (named + _OTHERS * self.rate) / (tries + _OTHERS)

    @cached_property
    def rates(self) -> Sequence[float]:
        """The same for each called task, in their order."""
        get, others = self.returns.get, _OTHERS * self.rate
        counts = [get(task, (0, 0)) for task in self.called]
        return [(named + others) / (tries + _OTHERS) for tries, named in counts]

    @property
    def is_refuted(self) -> bool:
        """Whether it hardly ever comes back without any line on any task: then no line about it is needed."""
        return self.tries >= 6 and max(self.rates, default=self.rate) < 0.07


_OTHERS = 1.5
"""As how many rollouts on a task those on other tasks count."""


class FileReads(Struct, frozen=True, array_like=True, gc=False):
    """How often a file of a package was read on one kind of task."""

    read: int = 0
    rollouts: int = 0
    """Those that had a line of the ledger in the file, and whose slot saw what was read."""

    @property
    def rate(self) -> float:
        """The probability that it is read. A file that was never there counts as read."""
        return (1 + self.read) / (1 + self.rollouts)


class Gaussian(Struct, frozen=True, array_like=True, gc=False):
    """A belief about one number."""

    mean: float
    variance: float


class BlamedRollout(Struct, frozen=True, array_like=True, gc=False):
    """A rollout, with the places of what may have spoiled it."""

    failed: float
    """How much of a failure it was, from 0 to 1."""
    causes: tuple[int, ...]
    lines: tuple[int, ...] = ()
    """Of the lines in its text that nobody suspected, if it failed."""
    suspects: tuple[int, ...] = ()
    explained: bool = False
    """Whether something else was named that spoiled it."""


class Suspicions(NamedTuple):
    """What suspicions were worth: how often lines were suspected that spoiled a rollout, and that did not."""

    guilty: float = 0.0
    guilty_rollouts: float = 0.0
    innocent: float = 0.0
    innocent_rollouts: float = 0.0


class Blame(Struct, frozen=True, omit_defaults=True):
    """What spoils rollouts (`ludus.reflact.ledger.blame`)."""

    other_causes: tuple[str, ...] = ()
    """The names of what is no line."""
    rates: tuple[float, ...] = ()
    """How often each of them spoils a rollout, in this order."""
    lines: tuple[str, ...] = ()
    """Lines, each with a kind of task. The next six have a number for each, in this order."""
    runs: tuple[int, ...] = ()
    """How many rollouts had the line."""
    passes: tuple[float, ...] = ()
    """How many of them went well."""
    odds: tuple[float, ...] = ()
    """What older failures add to the log-odds that it does harm."""
    harmful: tuple[float, ...] = ()
    """The probability that it does harm."""
    plain_odds: tuple[float, ...] = ()
    """`odds` by outcomes alone, as if nobody had been suspected."""
    by_outcome: tuple[float, ...] = ()
    """`harmful` by outcomes alone. Suspicions are judged by it: they cannot confirm themselves."""
    recent: tuple[BlamedRollout, ...] = ()
    """The latest rollouts."""
    suspicions: Suspicions = Suspicions()
    has_suspects: bool = False
    """Whether any line was ever suspected."""


class Assessment(Struct, frozen=True, array_like=True, gc=False):
    """What a line is worth, in accuracy."""

    gain: float
    """From its situation alone."""
    net: float
    """With its side effect and the harm it is suspected of."""
    deviation: float
    """The standard deviation of `net`."""
    pays: float
    """The probability that the net gain is above the price of a line."""


class LineLedger(Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """Everything that is known about lines, after some steps."""

    lines: tuple[Line, ...] = ()
    """All lines in the order of birth, the retired ones too."""
    situations: tuple[Situation, ...] = ()
    working: tuple[str, ...] = ()
    """The ids of the lines of the working text, at most one for each situation."""
    seen: Mapping[str, str] = field(default_factory=dict[str, str])
    """The kind of each train task that was run, by its id."""
    assessed: Mapping[str, Assessment] = field(default_factory=dict[str, Assessment])
    """What each line that is alive is worth, by its id."""
    digest: str = ""
    """A hash of everything that was added so far. It stands for the ledger in content addresses."""
    taken: int = 0
    """How many tasks were taken from the shuffled epochs so far."""
    merged: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels that turned out to mean a known situation, with its label."""
    whole: int = 0
    """Rollouts whose text had all passages of the working text."""
    whole_passed: float = 0.0
    """The sum of their outcomes, each from 0 to 1."""
    notes: tuple[str, ...] = ()
    """The notes of the appendix, if the run writes any. They are in every text."""
    beliefs: Mapping[str, Gaussian] = field(default_factory=dict[str, Gaussian])
    """Beliefs about effects on the outcome, by name (`ludus.reflact.ledger.beliefs`)."""
    reads: Mapping[str, FileReads] = field(default_factory=dict[str, FileReads])
    """How often the files of a package are read, by kind and path (`ludus.reflact.ledger.file_reach`)."""
    blame: Blame = Blame()

    def get_lines(self, ids: Iterable[str]) -> tuple[Line, ...]:
        """The lines with these ids, in the order of birth."""
        wanted = set(ids)
        return tuple([line for line in self.lines if line.id in wanted])  # a list is faster than a generator

    @cached_property
    def alive(self) -> tuple[Line, ...]:
        return tuple([line for line in self.lines if not line.retired])

    @cached_property
    def passages(self) -> tuple[Line, ...]:
        """The passages of the initial skill that are on trial, the retired ones too. They were born first."""
        return tuple(takewhile(lambda line: line.passage, self.lines))

    @property
    def is_silent(self) -> bool:
        """Whether no situation was named and no line was proposed so far."""
        return not self.situations and len(self.lines) == len(self.passages)

    def compose(self, base: Skill, lines: Sequence[Line]) -> tuple[Skill, tuple[str, ...]]:
        """The text with these lines, and the ids of those that are in it."""
        return compose_text(base, lines, self.passages)


class Reading(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one training rollout says about lines."""

    task: str
    kind: str = ""
    skill: str
    """The hash of the text that it ran with."""
    lines: tuple[str, ...] = ()
    """The ids of the lines in this text that could act."""
    unread: tuple[str, ...] = ()
    """The ids of the others: the agent did not read the file that they are in."""
    passed: bool | None
    """None if the rollout has no score: it says nothing."""
    score: float | None = None
    """Its score between 0 and 1, if that says more than whether it passed."""
    read: bool = True
    """Whether the causes are known: the rollout passed, or an analyst has read it."""
    situations: tuple[str, ...] = ()
    """The labels of the situations that spoiled it."""
    suspects: tuple[str, ...] = ()
    """The ids of lines in the text that an analyst suspects of misleading the agent."""

    @property
    def outcome(self) -> float:
        """How well it went, from 0 to 1."""
        return float(bool(self.passed)) if self.score is None else self.score


class LineProposal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A proposal for a line."""

    edit: Edit
    situation: str
    replaces: str = ""
    """The id of a line that it should replace."""
    by_outcome: bool = False
    """Whether its proposer does not name situations."""
    pointer: str = ""
    """The line of the document that sends the agent to the file of the edit."""


class LineChange(Struct, frozen=True, omit_defaults=True):
    """What became of a line, or of a proposal, in a step."""

    line: str
    """The id of the line; empty for a proposal that was dropped."""
    change: str
    """`new`, `revived`, `moved`, `entered`, `left`, `retired`, `dropped`."""
    reason: str = ""
    text: str = ""
    """The content of a proposal that was dropped."""


class LineStep(Struct, frozen=True, omit_defaults=True):
    """What one step added to the ledger."""

    readings: tuple[Reading, ...]
    changes: tuple[LineChange, ...] = ()


def compose_text(initial: Skill, lines: Sequence[Line], passages: Sequence[Line] = ()) -> tuple[Skill, tuple[str, ...]]:
    """The initial skill with these lines, and the ids of those that are in it. A line whose place is gone is not.

    `passages` are those that are on trial: one that is not among the lines is left out.
    """
    present = {line.id for line in lines}
    initial = drop_passages(initial, {line.id for line in passages if line.id not in present})
    kept = tuple(line.id for line in lines if line.passage)
    lines = [line for line in lines if not line.passage]
    if not lines:
        return initial, kept
    if _REGION not in initial.text and _are_plain([line.edit for line in lines]):  # the usual case, much faster
        blocks = [initial.text.rstrip(), *[line.edit.content.strip() for line in lines]]
        text = "\n\n".join([block for block in blocks if block])
        if initial.text.strip() or not text.startswith("---"):  # no line becomes front matter
            return initial.change_text(f"{text}\n"), (*kept, *[line.id for line in lines])
    skill, reports = apply_edits(initial, [line.edit for line in lines])
    made = [line for line, report in zip(lines, reports, strict=True) if report.applied]
    return add_pointers(skill, made), (*kept, *(line.id for line in made))


def add_pointers(skill: Skill, lines: Sequence[Line]) -> Skill:
    """The skill with the pointers of these lines, each at the end of the document. One to a file that the document
    names, or that is not there, is left out."""
    for line in lines:
        skill = add_pointer(skill, line.edit.path, line.pointer)
    return skill


def add_pointer(skill: Skill, path: str, pointer: str) -> Skill:
    """The skill with a pointer to a file at the end of the document, unless the document names the file."""
    if not pointer or path in skill.text or skill.get_file(path) is None:
        return skill
    return apply_edits(skill, [Edit("append", pointer)])[0]


def make_passage_lines(initial: Skill) -> tuple[Line, ...]:
    """The passages of the initial skill as lines of the ledger, each with a situation of its own."""
    return tuple(
        Line(
            id=passage.id,
            edit=Edit("append", passage.text, path=passage.path),
            situation=f"passage {passage.id}",
            born=0,
            weight=0.0,
            birth_weight=0.0,
            passage=True,
        )
        for passage in list_passages(initial)
    )


_REGION = "<!--"
_MARKS = (_REGION, "```", "~~~")


def _are_plain(edits: Sequence[Edit]) -> bool:
    """Whether edits add texts at the end of the document as they are: without a marker or a block of code."""
    added = "\n".join([edit.content for edit in edits])
    appends = all(edit.op == "append" and not edit.path and edit.content.strip() for edit in edits)
    return appends and not any(mark in added for mark in _MARKS)


def compute_sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


def compute_logit(probability: float) -> float:
    return math.log(probability / (1.0 - probability))
