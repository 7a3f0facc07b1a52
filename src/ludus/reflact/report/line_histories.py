"""What is known about each line of a run of the recipe `ledger`, with the rollouts behind it. Pure.

The readings of all steps are added again, one by one, exactly as in training (`ludus.reflact.ledger.credit`). A reading
that counts a try of a line is evidence: for it if its situation did not occur, against it if it did. So every number of
the ledger can be followed to rollouts, and these to their transcripts.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ludus.reflact.ledger.credit import add_readings
from ludus.reflact.ledger.line_records import Assessment, Line, LineLedger, Situation
from ludus.reflact.ledger.settings import LedgerTuning
from ludus.reflact.records import Record, Step


class RolloutPlace(Struct, frozen=True, order=True):
    """A training rollout: its step and its task."""

    step: int
    task: str


class LineEvent(Struct, frozen=True):
    """When a line was proposed, entered the working text, left it, or was retired or revived."""

    step: int
    change: str
    """`new`, `revived`, `entered`, `left` or `retired`."""
    reason: str = ""


class LineHistory(Struct, frozen=True, kw_only=True):
    """A line, and everything that speaks for and against it."""

    line: Line
    situation: Situation
    working: bool
    """Whether it is in the working text at the end."""
    assessment: Assessment | None
    """What it is worth; None once it is retired."""
    evidence_for: tuple[RolloutPlace, ...]
    """Rollouts with the line in which its situation could have occurred and did not."""
    evidence_against: tuple[RolloutPlace, ...]
    """Rollouts with the line in which its situation occurred."""
    suspected: tuple[RolloutPlace, ...]
    """Failed rollouts in which an analyst suspected the line."""
    rollouts: int
    """The number of scored rollouts with the line in their text."""
    passed: int
    events: tuple[LineEvent, ...]

    @property
    def status(self) -> str:
        """`working`, `waiting` or `retired`."""
        return "working" if self.working else "waiting" if self.line.is_alive else "retired"


def collect_histories(records: Sequence[Record], tuning: LedgerTuning) -> list[LineHistory]:
    """The history of each line: those of the working text first, then others that are alive, then retired ones."""
    steps = [record for record in records if isinstance(record, Step) and record.lines is not None]
    if not steps:
        return []
    notes: dict[str, _Notes] = {}
    first = steps[0].state.ledger or LineLedger()
    ledger = LineLedger(lines=tuple(_make_new(line) for line in first.passages))
    for step in steps:
        _read_step(step, ledger, tuning, notes)
        ledger = step.state.ledger or ledger
    found = [_make_history(line, ledger, notes.get(line.id, _Notes())) for line in ledger.lines]
    order = ("working", "waiting", "retired")
    return sorted(found, key=lambda history: order.index(history.status))


def _make_new(passage: Line) -> Line:
    """A passage before the first step."""
    return replace(passage, harm={}, suspected=0, retired=0, reason="")


class _Notes:
    """What the steps say about one line."""

    def __init__(self) -> None:
        self.gained: list[RolloutPlace] = []
        self.lost: list[RolloutPlace] = []
        self.suspected: list[RolloutPlace] = []
        self.events: list[LineEvent] = []
        self.rollouts = self.passed = 0


def _read_step(step: Step, ledger: LineLedger, tuning: LedgerTuning, notes: dict[str, _Notes]) -> None:
    """Note what the readings and the changes of a step say about each line."""
    assert step.lines is not None
    for reading in step.lines.readings:
        before = {line.id: line for line in ledger.get_lines(reading.lines)}
        ledger = add_readings(ledger, [reading], tuning)
        place = RolloutPlace(step.number, reading.task)
        for line in ledger.get_lines(before):
            own, was = notes.setdefault(line.id, _Notes()), before[line.id]
            if line.tries > was.tries:
                (own.gained if line.held > was.held else own.lost).append(place)
            if line.suspected > was.suspected:
                own.suspected.append(place)
            own.rollouts += reading.passed is not None
            own.passed += reading.passed is True
    for change in step.lines.changes:
        if change.line:
            event = LineEvent(step.number, change.change, change.reason)
            notes.setdefault(change.line, _Notes()).events.append(event)


def _make_history(line: Line, ledger: LineLedger, own: _Notes) -> LineHistory:
    situations = {situation.label: situation for situation in ledger.situations}
    return LineHistory(
        line=line,
        situation=situations.get(line.situation, Situation(label=line.situation)),
        working=line.id in ledger.working,
        assessment=ledger.assessed.get(line.id),
        evidence_for=tuple(own.gained),
        evidence_against=tuple(own.lost),
        suspected=tuple(own.suspected),
        rollouts=own.rollouts,
        passed=own.passed,
        events=tuple(own.events),
    )


# ---- words ----------------------------------------------------------------------------------------------------------


def describe_passage(found: Assessment | None, reason: str) -> str:
    """What a passage of the initial skill is worth, with a 95 % interval: by all rollouts with and without it."""
    if found is None:
        return f"a passage of yours, given up: {reason}"
    low, high = 100 * (found.net - 1.96 * found.deviation), 100 * (found.net + 1.96 * found.deviation)
    if high < 0:
        return f"this passage of yours costs {-100 * found.net:.0f} points [{-high:.0f}, {-low:.0f}]"
    if low > 0:
        return f"this passage of yours earns {100 * found.net:.0f} points [{low:.0f}, {high:.0f}]"
    words = f"{100 * found.net:+.0f} points [{low:+.0f}, {high:+.0f}]"
    return f"this passage of yours makes no difference that could be told from chance: {words}"


def describe_worth(history: LineHistory) -> str:
    """How sure it is that a line works, and what it is worth."""
    if history.line.passage:
        return describe_passage(history.assessment, history.line.reason)
    works = f"works with {history.line.works:.0%}"
    if history.assessment is None:
        return works
    return f"{works}, worth {100 * history.assessment.net:+.1f} points (pays with {history.assessment.pays:.0%})"


def describe_situation(situation: Situation) -> str:
    """What is known about a situation."""
    tasks = f"it spoiled {len(situation.called)} train task{'' if len(situation.called) == 1 else 's'}"
    if not situation.tries:
        return tasks
    again = f"without a line about it, it came back in {situation.named} of {situation.tries} rollouts"
    return f"{tasks}; {again}"


def describe_event(event: LineEvent) -> str:
    """An event in words."""
    words = {
        "new": "proposed",
        "entered": "entered the working text",
        "left": "left the working text",
        "revived": "proposed again",
        "moved": "moved",
    }
    done = words.get(event.change, event.change)
    reason = f" ({event.reason})" if event.reason not in ("", done) else ""  # runs of earlier versions repeat it
    return f"step {event.step}: {done}{reason}"
