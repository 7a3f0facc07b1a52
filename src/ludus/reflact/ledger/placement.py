"""Placement: where in a package a line belongs, by what is known. Pure.

A proposer sees a few rollouts, often of one kind, so it cannot know which kinds of tasks need a line. The ledger does:
it has every task that called for the line's situation, and how often each kind of task reads each file. So lines are
moved. What is known about a line stays: its words are the same.

Few tasks call for one situation, and some by an error of an analyst. So two cases are weighed: that one kind of task
alone has the situation, or that all kinds have it. How often it is the one or the other is learned from the situations
of all lines that work (`KindNeeds`). Where all tasks need the same, a line whose file one kind reads goes up at once.

The value of a place is what the line is worth on the tasks that call for it, as far as they read the place, less what
text costs all tasks that read it. A line goes up, into the document, if that is worth more and its file's readers are
hardly the only ones who need it; and down, into a reference, if few others than its readers need it and the document
is known to be long for them.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from ludus.reflact.disclosure import find_excess
from ludus.reflact.ledger.assessment import compute_gain, list_slopes
from ludus.reflact.ledger.beliefs import KindSlope, estimate_line_cost
from ludus.reflact.ledger.file_reach import get_reach, name_reads
from ludus.reflact.ledger.line_records import FileReads, Line, LineChange, LineLedger, Situation
from ludus.reflact.ledger.settings import LedgerTuning
from ludus.reflact.train_settings import PackageSettings
from ludus.skill import DOCUMENT, Edit, Skill

_ERROR = 0.25
"""The share of the tasks that call for a situation which only one kind has, and which are there by an error."""
_EVEN = 8.0
"""How even kinds are in how often they have a situation that all of them have: the tasks that a belief counts for which
says that each has its share."""
_PRIOR = 4.0
"""How many situations the belief counts for that half of all situations have one kind."""
_ROUNDS = 5
"""How often that belief and what follows from it for each situation are computed in turn."""
_ALONE = 0.2
"""The probability that only readers of its file need a line, above which it does not go up."""
_READER = 0.5
"""How often a kind of task reads a file of which it is a reader."""
_KNOWN = 4
"""The rollouts from which it is known how often a kind of task reads a file."""


def move_lines(
    ledger: LineLedger, base: Skill, tuning: LedgerTuning, limits: PackageSettings
) -> tuple[LineLedger, tuple[LineChange, ...]]:
    """The ledger with lines at better places, and what was moved. A package that nobody has read a file of stays."""
    if not ledger.reads:
        return ledger, ()
    situations = {situation.label: situation for situation in ledger.situations}
    slopes, changes = list_slopes(ledger), list[LineChange]()
    needs = learn_needs(ledger)
    for line in ledger.alive:
        situation = situations.get(line.situation)
        if situation is None or line.passage or line.by_outcome or not has_free_place(line.edit):
            continue
        path = _find_place(ledger, line, situation, slopes, needs, tuning)
        if path == line.edit.path or (path and line.works <= tuning.enter_works):
            continue
        moved = _move(ledger, line, path)
        before, _ = ledger.compose(base, ledger.get_lines(ledger.working))
        after, _ = moved.compose(base, moved.get_lines({*ledger.working, line.id}))
        if not find_excess(before, after, limits):
            ledger = moved
            changes.append(LineChange(line.id, "moved", f"to {path or DOCUMENT}, for the tasks that need it"))
    return ledger, tuple(changes)


def has_free_place(edit: Edit) -> bool:
    """Whether an edit adds text that could as well be in another document of the package."""
    return edit.op == "append" and (not edit.path or edit.path.endswith(".md"))


class KindNeeds(NamedTuple):
    """Which kinds of tasks need the same."""

    shares: Mapping[str, float]
    """The share of each kind in the tasks seen."""
    single: float
    """The share of situations that one kind of task alone has."""

    def weigh(self, kinds: Mapping[str, int]) -> dict[str | None, float]:
        """The probability that one kind alone has a situation, by this kind, and that all kinds have it (None). So
        many tasks of each kind call for it."""
        weights: dict[str | None, float] = {None: math.log(1.0 - self.single) + self._weigh_spread(kinds)}
        for own, share in self.shares.items():
            chances = {kind: _ERROR * self.shares[kind] + (1.0 - _ERROR) * (kind == own) for kind in kinds}
            weights[own] = math.log(self.single * share)
            weights[own] += sum(count * math.log(chances[kind]) for kind, count in kinds.items())
        most = max(weights.values())
        found = {kind: math.exp(weight - most) for kind, weight in weights.items()}
        total = math.fsum(found.values())
        return {kind: value / total for kind, value in found.items()}

    def _weigh_spread(self, kinds: Mapping[str, int]) -> float:
        """The log-likelihood of these kinds of tasks, in their order, if all kinds have the situation: some more often
        than others (a Dirichlet distribution around the shares), so that a kind that called often may call again."""
        own = [math.log(_EVEN * self.shares[kind] + before) for kind, count in kinds.items() for before in range(count)]
        return math.fsum(own) - math.fsum(math.log(_EVEN + before) for before in range(sum(kinds.values())))


def learn_needs(ledger: LineLedger) -> KindNeeds:
    """Which kinds of tasks need the same, by the situations of the working text."""
    counts = Counter(ledger.seen.values())
    shares = {kind: count / counts.total() for kind, count in counts.items()}
    labels = {line.situation for line in ledger.get_lines(ledger.working)}
    called = [kinds for each in ledger.situations if each.label in labels and (kinds := count_kinds(ledger, each))]
    needs = KindNeeds(shares, 0.5)
    for _ in range(_ROUNDS):
        spread = sum(needs.weigh(kinds)[None] for kinds in called)
        needs = KindNeeds(shares, (_PRIOR / 2 + len(called) - spread) / (_PRIOR + len(called)))
    return needs


def count_kinds(ledger: LineLedger, situation: Situation) -> Counter[str]:
    """How many of the tasks that a situation spoiled are of each kind."""
    return Counter(ledger.seen[task] for task in situation.called if task in ledger.seen)


def _move(ledger: LineLedger, line: Line, path: str) -> LineLedger:
    pointer = next((each.pointer for each in ledger.lines if path and each.edit.path == path and each.pointer), "")
    moved = replace(line, edit=replace(line.edit, path=path), pointer=pointer, unread=0)
    return replace(ledger, lines=tuple(moved if each.id == line.id else each for each in ledger.lines))


def _find_place(
    ledger: LineLedger,
    line: Line,
    situation: Situation,
    slopes: Mapping[str, KindSlope],
    needs: KindNeeds,
    tuning: LedgerTuning,
) -> str:
    """The path of the best place for a line; its own unless another one is clearly better."""
    old, kinds = line.edit.path, count_kinds(ledger, situation)
    if not kinds:
        return old
    chances = needs.weigh(kinds)
    shares = {kind: chances[kind] + chances[None] * share for kind, share in needs.shares.items()}
    readers = [kind for kind in shares if get_reach(ledger, line, kind) >= _READER]
    if old and sum(chances[kind] for kind in readers) > _ALONE:
        return old
    gain = compute_gain(ledger, line, situation, tuning)

    def compute_value(path: str) -> float:
        at_path = replace(line, edit=replace(line.edit, path=path))
        reached = sum(share * get_reach(ledger, at_path, kind) for kind, share in shares.items())
        read = sum(share * slope * get_reach(ledger, at_path, kind) for kind, (share, slope) in slopes.items())
        return gain * reached - estimate_line_cost(ledger) * read

    most = max(shares, key=lambda kind: shares[kind])
    places = [""] if old else _list_known_files(ledger, most)
    best = max(places, key=compute_value, default=old)
    return best if compute_value(best) > compute_value(old) + tuning.price else old


def _list_known_files(ledger: LineLedger, kind: str) -> Iterator[str]:
    """The references of which it is known how often a kind of task reads them."""
    for path in dict.fromkeys(name.partition("\t")[2] for name in ledger.reads):
        if path.endswith(".md") and ledger.reads.get(name_reads(path, kind), FileReads()).rollouts >= _KNOWN:
            yield path
