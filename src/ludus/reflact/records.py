"""The data types of a training run: its state, and the record of each part.

`RunState` is everything that one part of a run passes to the next, as one frozen value. A `MeasuredSkill` is a skill
with the measure of exactly its own text, or with none. So a text that was not measured cannot inherit a score. A run
yields records: a `Baseline`, a `Step` for each step, an `EpochEnd` for each epoch, and at the end a `Summary`. Each
contains the state after it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType, field

from ludus.reflact.gate import Decision, Gate, Measure, ScoreTally, Verdict, mean, project, resolve_metric
from ludus.reflact.guards import CanaryReport
from ludus.reflact.items import Item
from ludus.reflact.ledger.line_records import LineLedger, LineStep
from ludus.reflact.request_sizes import SizeChoice
from ludus.skill import Skill, Source
from ludus.stats import Interval
from ludus.types import Rollout, Usage


class MeasuredSkill(Struct, frozen=True, omit_defaults=True):
    """A skill, its origin, and its measure."""

    skill: Skill
    origin: str
    """`initial_skill`, `step_0003`, `slow_update_epoch_02`, …"""
    step: int = 0
    measure: Measure | None = None
    """On the selection split; None if exactly this text was not measured yet."""

    def __post_init__(self) -> None:
        if self.measure is not None and self.measure.skill != self.skill.hash:
            raise ValueError(f"MeasuredSkill: {self.origin} has the measure of another text")


class StageCost(Struct, frozen=True, omit_defaults=True):
    """The cost of one role in one stage. Work that was found in the store is counted where it was first needed."""

    role: str
    """`agent` or `optimizer`."""
    stage: str
    calls: int
    """Rollouts of the agent, replies of the optimizer."""
    usage: Usage
    suspects: int = 0
    """How many of the rollouts were suspects."""


def add_costs(*parts: Iterable[StageCost]) -> tuple[StageCost, ...]:
    """The sum of costs by role and stage, in order of their names."""
    sums: dict[tuple[str, str], StageCost] = {}
    for entry in (entry for part in parts for entry in part):
        key = (entry.role, entry.stage)
        before = sums.get(key, StageCost(*key, 0, Usage()))
        suspects = before.suspects + entry.suspects
        sums[key] = StageCost(*key, before.calls + entry.calls, before.usage + entry.usage, suspects)
    return tuple(sums[key] for key in sorted(sums))


def count_rollouts(spent: Iterable[StageCost]) -> int:
    """The number of rollouts in these costs."""
    return sum(entry.calls for entry in spent if entry.role == "agent")


def count_suspects(spent: Iterable[StageCost]) -> int:
    """The number of suspects among the rollouts of these costs."""
    return sum(entry.suspects for entry in spent)


REFUSED = "the server refused it"
"""The beginning of the problem where there is no last reply, because the server refused the request."""


class UnusableReply(Struct, frozen=True):
    """A request to which the optimizer never sent a usable reply, although it was asked several times."""

    stage: str
    place: str
    problem: str
    """What is wrong with the last reply."""
    tries: int
    consequence: str = ""
    """What the run did without the reply."""

    @property
    def replies(self) -> int:
        """The number of bad replies."""
        return self.tries - self.problem.startswith(REFUSED)


class Pattern(Struct, frozen=True):
    """Something that several rollouts have in common."""

    name: str
    description: str
    tasks: tuple[str, ...]


class Reflection(Struct, frozen=True, omit_defaults=True):
    """The result of one analyst for one minibatch."""

    source: Source
    tasks: tuple[str, ...]
    """The minibatch."""
    items: tuple[Item, ...] = ()
    patterns: tuple[Pattern, ...] = ()
    notes: tuple[str, ...] = ()
    """Reminders for the appendix."""
    reasoning: str = ""
    cut: int = 0
    """The number of items that were dropped because an analyst may propose only so many."""


class BudgetDecision(Struct, frozen=True, omit_defaults=True):
    """How many items the step may apply, and how that was decided."""

    control: str
    value: int | None
    """None: no limit."""
    available: int
    asked: int | None = None
    """The optimizer's number, before it was limited to what is available."""
    reasoning: str = ""
    confidence: str = ""
    risks: tuple[str, ...] = ()


class Fate(Struct, frozen=True, omit_defaults=True):
    """What became of a proposed item within its step: `not_selected`, `used`, or an edit's status."""

    item: Item
    status: str
    reason: str = ""
    """Why it was refused, where the status does not say all: what the check of a script found."""


class Digest(Struct, frozen=True, omit_defaults=True):
    """A summary of a step for the next steps of its epoch."""

    step: int
    decision: str
    tasks: int
    failed: int
    patterns: tuple[Pattern, ...] = ()
    before: float | None = None
    after: float | None = None
    tried: tuple[str, ...] = ()
    """The items that were tried and rejected."""
    misplaced: tuple[str, ...] = ()
    """Edits that could not be made, and why."""


LEDGER_ACTIONS = ("working_text_changed", "working_text_kept")
"""The actions of steps of the recipe `ledger`."""


class HistoryLine(Struct, frozen=True):
    """A line of the run's history."""

    step: int
    epoch: int
    action: str
    """A decision of the gate, or `skip_no_updates`, `skip_none_selected`, `skip_no_rewrite`; with the recipe `ledger`
    one of `LEDGER_ACTIONS`."""
    current: float | None
    best: float | None


class RunState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a run between two parts."""

    epoch: int = 0
    step: int = 0
    """The last step that was finished."""
    selections: int = 0
    """How often items were selected under a scheduled budget. It is the schedule's position."""
    initial: MeasuredSkill
    current: MeasuredSkill
    """The skill that the next rollouts use."""
    best: MeasuredSkill
    """The skill with the highest score on the selection split so far."""
    previous: Skill | None = None
    """The current skill at the end of the last epoch."""
    memory: str = ""
    """The optimizer's notes to itself."""
    buffer: tuple[Digest, ...] = ()
    """The steps of this epoch so far."""
    history: tuple[HistoryLine, ...] = ()
    spent: tuple[StageCost, ...] = ()
    ledger: LineLedger | UnsetType = UNSET
    """With the recipe `ledger`: what is known about each line. Unset with another recipe."""
    scores: ScoreTally | UnsetType = UNSET
    """With the recipe `ledger`: how many train rollouts have graded scores. They decide the metric `auto`."""


def find_gate(gate: Gate, state: RunState) -> Gate:
    """The gate with the metric that a run uses at this point: `auto` depends on the scores so far."""
    return resolve_metric(gate, state.scores or ScoreTally())


# ---- what a run yields ----------------------------------------------------------------------------------------------


class Baseline(Struct, frozen=True, kw_only=True, tag="baseline", tag_field="record"):
    """The initial skill on the selection split."""

    measure: Measure
    spent: tuple[StageCost, ...]
    seconds: Mapping[str, float]
    state: RunState


class BatchReport(Struct, frozen=True):
    """The results of the rollouts of one batch. Means are over the scored ones."""

    seed: int
    tasks: int
    failed: int
    hard: float | None
    soft: float | None

    @classmethod
    def from_rollouts(cls, seed: int, rollouts: Sequence[Rollout]) -> "BatchReport":
        scores = [rollout.score for rollout in rollouts if rollout.score is not None]
        hard, soft = mean([float(s.passed) for s in scores]), mean([s.soft for s in scores])
        return cls(seed, len(rollouts), len(rollouts) - len(scores), hard, soft)


def pool_scores(batches: Sequence[BatchReport]) -> tuple[int, float | None, float | None]:
    """The number of scored rollouts in several batches, and their mean hard and soft score. All rollouts have the same
    weight."""
    parts = [(b.tasks - b.failed, b.hard, b.soft) for b in batches if b.hard is not None and b.soft is not None]
    scored = sum(count for count, _, _ in parts)
    if not scored:
        return 0, None, None
    hard = math.fsum(count * hard for count, hard, _ in parts) / scored
    return scored, hard, math.fsum(count * soft for count, _, soft in parts) / scored


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step", tag_field="record"):
    """Everything that happened in one step."""

    number: int
    epoch: int
    place: int
    """Within its epoch, from 1."""
    batches: tuple[BatchReport, ...]
    reflections: tuple[Reflection, ...] = ()
    budget: BudgetDecision | None = None
    """None where no budget applies, or where there was nothing to select from."""
    fates: tuple[Fate, ...] = ()
    """Every merged item and its status."""
    changes: tuple[str, ...] = ()
    """What the rewriter says it changed."""
    candidate: Skill | None = None
    measure: Measure | None = None
    """Of the candidate."""
    verdict: Verdict | None = None
    action: str
    notes_added: int = 0
    notes: int = 0
    """In the appendix, after this step."""
    consolidated: bool = False
    lines: LineStep | None = None
    """With the recipe `ledger`: what the rollouts say about lines, and what became of the lines."""
    events: tuple[UnusableReply, ...] = ()
    warnings: tuple[str, ...] = ()
    """What a user should know about the texts of this step."""
    spent: tuple[StageCost, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """By stage. `reflect` is the time after the rollouts ended, because both run side by side."""
    state: RunState

    @property
    def hard(self) -> float | None:
        """The share of the step's train rollouts that passed."""
        return pool_scores(self.batches)[1]

    def compute_train_score(self, gate: Gate) -> float | None:
        """The mean score of the step's train rollouts, by the gate's metric."""
        _, hard, soft = pool_scores(self.batches)
        return None if hard is None or soft is None else project(gate, hard, soft)

    @property
    def soft(self) -> float | None:
        """The mean partial credit of the step's train rollouts."""
        return pool_scores(self.batches)[2]


class SlowReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The slow update of an epoch."""

    action: str
    """A decision of the gate, or `skip_first_epoch`, `no_content`, `off`."""
    categories: Mapping[str, int] = field(default_factory=dict[str, int])
    """The number of tasks, among those shown, that improved, regressed, failed both times and succeeded both times."""
    previous_hard: float | None = None
    current_hard: float | None = None
    reasoning: str = ""
    guidance: str = ""
    candidate: Skill | None = None
    measure: Measure | None = None
    verdict: Verdict | None = None


class EpochEnd(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="epoch", tag_field="record"):
    """Everything that happened at the end of an epoch."""

    epoch: int
    slow: SlowReport
    memory: str = ""
    """The optimizer's notes after this epoch."""
    memory_action: str = "off"
    """`write`, `skip_first_epoch`, `no_content` (the old notes are kept), `off`."""
    events: tuple[UnusableReply, ...] = ()
    warnings: tuple[str, ...] = ()
    """What a user should know about the guidance."""
    spent: tuple[StageCost, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    state: RunState


class ScoreBucket(Struct, frozen=True):
    """The scores of a set of test tasks."""

    tasks: int
    scored: int
    """The number of tasks with at least one scored rollout. Means are over these."""
    hard: float | None
    soft: float | None
    interval: Interval | None
    """The 95 % interval of `hard`, with the task as the unit."""


def project_bucket(gate: Gate, bucket: ScoreBucket) -> float | None:
    """The mean score of these tasks by the gate's metric."""
    if bucket.hard is None or bucket.soft is None:
        return None
    return project(gate, bucket.hard, bucket.soft)


class SplitScores(Struct, frozen=True):
    """The scores of a skill on the test split."""

    overall: ScoreBucket
    kinds: Mapping[str, ScoreBucket]
    """By kind of task; empty when there is only one kind."""
    failed: int


class Product(Struct, frozen=True):
    """One of the skills that a run ends with."""

    skill: Skill
    origin: str
    step: int
    selection: float | None
    """The score that the gate compares, on the selection split. The best skill was chosen because it is high, so it is
    biased: trust `test`."""
    hard: float | None
    soft: float | None
    test: SplitScores | None
    untested: str = ""
    """Why there is no test result; empty if there is one."""


class ShipCandidate(Struct, frozen=True, kw_only=True):
    """A skill that could be shipped, measured afresh on the selection split beside the initial skill."""

    origin: str
    step: int
    skill: Skill
    measure: Measure
    difference: float
    """The mean difference to the initial skill over the tasks with a score under both, by the gate's metric."""
    better: int
    """The number of tasks on which it does better than the initial skill."""
    worse: int
    certainty: float
    """The probability that it is better on the selection tasks, and not by luck (`ludus.reflact.paired_evidence`). In
    runs of earlier versions: that its mean difference on all tasks is above zero, or that it does better on more than
    half of the tasks on which the two differ."""
    transfer: float = 1.0
    """The probability that other tasks gain, too. 1 in runs of earlier versions, which did not judge it apart."""


class Shipment(Struct, frozen=True, kw_only=True):
    """How the skill was chosen that the run ends with."""

    candidates: tuple[ShipCandidate, ...] = ()
    initial: Measure
    """The initial skill on the same tasks with the same seeds."""
    shipped: str = ""
    """The hash of the skill that is shipped; empty if the initial skill stays."""
    rollouts: int = 0
    fresh: bool = True
    """Whether the measures were made for shipping. If not, they are those that the best skill was chosen for."""
    metric: str | UnsetType = UNSET
    """The metric that decided: `hard` (passed), `soft` (score) or `mixed`. Unset in runs of earlier versions."""


class Claim(Struct, frozen=True, kw_only=True):
    """What the run claims: the paired difference on the sealed test split."""

    sentence: str
    gain: bool
    """Whether this may be called a gain: a new skill is shipped, its difference can be told from chance, and what the
    same rollouts bring as samples of the initial skill was measured beside it (`Summary.arms`)."""
    difference: float | None = None
    """The mean difference to the initial skill, from -1 to 1; None if nothing was tested."""
    interval: Interval | None = None
    tasks: int = 0
    """The number of test tasks with a score under both skills."""
    skill: str = ""
    """The hash of the skill that was tested."""
    test_split: str = ""
    """A hash of the test split."""
    test_uses: int = 0
    """How many skills were tested on this test split for a claim, this one included, as far as is known."""
    metric: str | UnsetType = UNSET
    """What the difference is about: `hard` (passed), `soft` (score) or `mixed`. Unset in runs of earlier versions,
    which claimed passed tasks."""
    passed: float | None = None
    """With graded scores: the mean difference in passed tasks."""

    @property
    def is_better(self) -> bool:
        """Whether a new skill is shipped that does better on the test tasks than can be told from chance."""
        return self.interval is not None and self.interval.low > 0


class BestOfArm(Struct, frozen=True, kw_only=True):
    """The initial skill, sampled several times for each test task, with the verifier choosing: what the rollouts of
    training bring without any training."""

    samples: int
    """For each task."""
    matched: int
    """The samples for each test task that take at least as many rollouts as training and shipping took."""
    tasks: int
    """Test tasks with so many scored samples."""
    excluded: int = 0
    """Test tasks that are left out because samples of theirs have no score."""
    passed: float | None
    """The share of tasks of which at least one sample passes; with graded scores, the mean of the best sample's score.
    None without a task."""
    interval: Interval | None
    pass_at: Mapping[int, float]
    """The same for fewer samples, without bias: 1, 2, 4, …"""
    lead: float | None
    """The shipped skill with one try, less this arm: the mean difference over tasks."""
    lead_interval: Interval | None
    rollouts: int
    tokens: int

    @property
    def is_matched(self) -> bool:
        """Whether the arm has at least the budget of training."""
        return self.tasks > 0 and self.samples >= self.matched


class TransferArm(Struct, frozen=True, kw_only=True):
    """Both skills on tasks of another family, or with another model: the paired difference, with one try each."""

    what: str
    """`tasks` or `model`."""
    name: str
    """The kinds or the split of the tasks, or the name of the model."""
    tasks: int
    """Tasks with a score under both skills."""
    initial: float | None
    shipped: float | None
    difference: float | None
    interval: Interval | None
    rollouts: int
    tokens: int


class ClaimArms(Struct, frozen=True, kw_only=True):
    """What a claim is compared with (`ludus train --claim`)."""

    sentence: str
    training_rollouts: int
    """The rollouts of training and shipping, without the test."""
    training_tokens: int
    """What they took, with the optimizer's replies."""
    best_of: BestOfArm | None = None
    transfers: tuple[TransferArm, ...] = ()
    metric: str | UnsetType = UNSET
    """What all results are, as in the claim. Unset in runs of earlier versions, which compared passed tasks."""


class EpochStats(Struct, frozen=True):
    epoch: int
    steps: int
    accepted: int
    rejected: int
    undecided: int
    skipped: int
    current: float | None
    best: float | None


class Summary(Struct, frozen=True, kw_only=True, tag="summary", tag_field="record"):
    """The result of a run."""

    schema: int = 1
    steps: int
    accepted: int
    rejected: int
    undecided: int
    skipped: int
    epochs: tuple[EpochStats, ...]
    promoted: bool
    """Whether the final skill was better than the best one and replaced it."""
    ended_early: str = ""
    """Why training ended before its plan did, such as a spent budget."""
    claim: Claim | None = None
    """None in runs of earlier versions."""
    shipment: Shipment | None = None
    arms: ClaimArms | None = None
    """None if they were not measured (`claim.enabled`)."""
    sizes: SizeChoice | None = None
    """The sizes of steps and requests that were chosen by prices; None if they were set by hand."""
    canaries: CanaryReport | None = None
    """None if the run has no canary items."""
    initial: Product
    best: Product
    final: Product
    best_on_selection: Product | None = None
    """The skill with the highest score on the selection split during training, shipped or not. None with the recipe
    `ledger`, which measures nothing there, and in runs of earlier versions."""
    events: tuple[UnusableReply, ...] = ()
    spent: tuple[StageCost, ...]
    """By stage and role, over the whole run."""
    seconds: Mapping[str, float]
    state: RunState


Record = Baseline | Step | EpochEnd | Summary


def list_record_values(record: Record) -> dict[str, float]:
    """The numbers of a part for trackers."""
    values: dict[str, float | None] = {}
    match record:
        case Baseline():
            values = {"selection/hard": record.measure.hard, "selection/soft": record.measure.soft}
        case Step():
            values = {"train/hard": record.hard, "train/soft": record.soft}
            if record.measure is not None:
                values |= {"selection/hard": record.measure.hard, "selection/soft": record.measure.soft}
        case EpochEnd():
            values = {"slow/hard": record.slow.measure.hard if record.slow.measure else None}
        case Summary():
            products = {"initial": record.initial, "best": record.best, "final": record.final}
            values = {f"test/{name}": each.test.overall.hard for name, each in products.items() if each.test}
    values["suspects"] = float(count_suspects(record.state.spent)) or None
    return {name: value for name, value in values.items() if value is not None}


def count_useless_replies(records: Sequence[Record]) -> int:
    """The number of the optimizer's replies if none of them was usable, else 0."""
    parts = [record for record in records if not isinstance(record, Summary)]  # a summary has the sums of the others
    spent = add_costs(*(part.spent for part in parts))
    replies = sum(entry.calls for entry in spent if entry.role == "optimizer")
    events = [event for part in parts if not isinstance(part, Baseline) for event in part.events]
    return replies if replies == sum(event.replies for event in events) else 0


def explain_equal_scores(records: Sequence[Record]) -> str:
    """What to do if all train rollouts have the same score, so that there was nothing to learn from; else nothing."""
    steps = [record for record in records if isinstance(record, Step)]
    scores = {step.soft for step in steps if step.soft is not None}
    tally = steps[-1].state.scores if steps else UNSET
    alike = bool(tally) and tally.lowest == tally.highest
    if len(scores) != 1 or not (alike or scores <= {0.0, 1.0}):
        return ""
    if scores == {1.0}:
        return "every train rollout has the full score: there is nothing to learn from. Use harder tasks"
    return (
        f"every train rollout scores {scores.pop():g}: nothing shows what helps. Read some of them, and ask `ludus "
        "headroom` whether the agent can do these tasks when it is told the result"
    )


class Exclusions(NamedTuple):
    """How many rollouts of a run have no score, and how many rollouts there were."""

    excluded: int
    rollouts: int


def count_exclusions(records: Sequence[Record]) -> Exclusions:
    """The number of rollouts without a score in all batches and measures of a run, the test included."""
    excluded = 0
    for record in records:
        match record:
            case Baseline():
                excluded += record.measure.failed
            case Step():
                excluded += sum(batch.failed for batch in record.batches)
                excluded += record.measure.failed if record.measure else 0
            case EpochEnd():
                excluded += record.slow.measure.failed if record.slow.measure else 0
            case Summary():
                products = {each.skill.hash: each for each in (record.initial, record.best, record.final)}
                excluded += sum(product.test.failed for product in products.values() if product.test)
    spent = records[-1].state.spent if records else ()
    return Exclusions(excluded, sum(entry.calls for entry in spent if entry.role == "agent"))


def make_epoch_stats(history: Iterable[HistoryLine]) -> tuple[EpochStats, ...]:
    """Make the statistics of each epoch from the history."""
    epochs: dict[int, list[HistoryLine]] = {}
    for line in history:
        epochs.setdefault(line.epoch, []).append(line)
    return tuple(_make_epoch_line(epoch, lines) for epoch, lines in epochs.items())


def _make_epoch_line(epoch: int, lines: list[HistoryLine]) -> EpochStats:
    accepted = sum(line.action in _ACCEPTED for line in lines)
    rejected = sum(line.action == Decision.REJECT for line in lines)
    undecided = sum(line.action == Decision.UNDECIDED for line in lines)
    ledger = sum(line.action in LEDGER_ACTIONS for line in lines)
    skipped = len(lines) - accepted - rejected - undecided - ledger
    return EpochStats(epoch, len(lines), accepted, rejected, undecided, skipped, lines[-1].current, lines[-1].best)


_ACCEPTED = {decision.value for decision in Decision if decision.accepted}
