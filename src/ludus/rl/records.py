"""What an RL run records: one `RlStep` for each update, in the store and in `steps.jsonl`.

A record is stored under a hash of the step and of the groups that it consumed. A run that was killed computes the steps
after its last checkpoint again. On-policy that gives the same groups, the same key and so the same record.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from ludus.encoding import canonical
from ludus.rl.trainers import UpdateMetrics
from ludus.stats import Interval, compute_interval
from ludus.store import Store, decode_record
from ludus.suspects import count_suspects
from ludus.types import Group

RL_STEPS = "rl-step"
"""The kind of these records in the store."""


class HeldOutScore(Struct, frozen=True, kw_only=True):
    """A measurement of the policy on tasks that it is not trained on."""

    split: str
    tasks: int
    mean: float | None
    """None if no rollout has a score."""
    interval: Interval | None = None
    failed: int = 0
    suspects: int | UnsetType = UNSET
    """How many of the rollouts were suspects, if there were any."""
    rollouts: int | UnsetType = UNSET
    """All of them, if there were several for each task."""


class ConsumedGroup(Struct, frozen=True):
    """A group that a step took."""

    number: int
    version: int
    """The version of the policy that sampled it."""
    dropped: str = ""
    """Why it was not trained on: `equal_scores`, `partial`, `too_long` or `no_rows`; in old runs also `stale`."""


class TrainedShares(Struct, frozen=True):
    """Which share of a step's groups was trained on, by how long they took. If slow tasks were left out, it shows."""

    fast: float
    """Of the faster half of the groups."""
    slow: float
    """Of the slower half."""


class RlStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step. Step 0 is the start: it has an evaluation and no update."""

    run: str
    """The identity of the run: a store may have several."""
    step: int
    version: int
    """The version of the policy after the step. It stays as it was if no group gave a row."""
    groups: tuple[ConsumedGroup, ...] = ()
    rollouts: int = 0
    failed: int = 0
    """Rollouts without a score. They are in no mean."""
    suspects: int = 0
    """Rollouts whose verdict the agent may have changed. They count as `run.suspects` says."""
    reward: float | None = None
    """The mean score of the rollouts, also of those that were not trained on."""
    passed: float | None = None
    length: float | None = None
    """The mean number of sampled ids of a rollout."""
    rows: int = 0
    staleness: float = 0.0
    """The mean number of versions between the policy of a row and the policy that learned from it."""
    stalest: int = 0
    metrics: UpdateMetrics = UpdateMetrics()
    held_out: HeldOutScore | None = None
    shares: TrainedShares | None = None
    """None if the step took fewer than two groups."""
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    """`wait` for rollouts, `update`, `publish` the weights, `save`, `evaluate`, and the `whole` step."""


def make_key(identity: str, step: int, groups: Sequence[ConsumedGroup]) -> str:
    """The key of a step's record."""
    return hashlib.sha256(canonical((identity, "rl-step", step, groups))).hexdigest()[:32]


_STEP = msgspec.json.Decoder(RlStep)


def read_steps(store: Store, run: str = "") -> list[RlStep]:
    """The steps of a run in order; of the last one, if a store has several and `run` names none. A step that was
    computed again after a resume replaces those from it on."""
    records = [decode_record(_STEP, body) for _, body in store.read_records(RL_STEPS)]
    wanted = run or (records[-1].run if records else "")
    steps: list[RlStep] = []
    for record in records:
        if record.run == wanted:
            steps = [*(step for step in steps if step.step < record.step), record]
    return steps


def encode_step(record: RlStep) -> bytes:
    """A record as a line of `steps.jsonl`: without times and what depends on them, so that equal runs have equal
    lines."""
    plain = msgspec.to_builtins(record)
    plain.pop("seconds", None)
    plain.pop("shares", None)
    plain.get("metrics", {}).pop("seconds", None)
    return msgspec.json.encode(plain)


@dataclass(frozen=True)
class StepColumn:
    """A number of a step, for the page, the tables and trackers alike."""

    name: str
    read: Callable[[RlStep], float | None]
    digits: int = 3

    def format(self, record: RlStep) -> str:
        value = self.read(record)
        return "none" if value is None else f"{value:.{self.digits}f}"


STEP_COLUMNS: tuple[StepColumn, ...] = (
    StepColumn("reward", lambda step: step.reward),
    StepColumn("length", lambda step: step.length, 1),
    StepColumn("kl", lambda step: step.metrics.kl, 4),
    StepColumn("entropy", lambda step: step.metrics.entropy),
    StepColumn("clipped", lambda step: step.metrics.clipped),
    StepColumn("staleness", lambda step: step.staleness, 2),
    StepColumn("dropped", lambda step: sum(bool(group.dropped) for group in step.groups), 0),
    StepColumn("trained fast", lambda step: step.shares.fast if step.shares else None, 2),
    StepColumn("trained slow", lambda step: step.shares.slow if step.shares else None, 2),
    StepColumn("failed", lambda step: step.failed, 0),
    StepColumn("suspects", lambda step: step.suspects, 0),
    StepColumn("held out", lambda step: step.held_out.mean if step.held_out else None),
    StepColumn("s", lambda step: step.seconds.get("whole", 0.0), 1),
)


def list_step_values(record: RlStep) -> dict[str, float]:
    """The numbers of a step for trackers."""
    columns = {f"train/{column.name.replace(' ', '_')}": column.read(record) for column in STEP_COLUMNS}
    return {name: float(value) for name, value in columns.items() if value is not None}


def measure_shares(groups: Sequence[tuple[float, bool]]) -> TrainedShares | None:
    """The shares of a step. Takes how long each group took, and whether it was trained on."""
    if len(groups) < 2:
        return None
    trained = [is_trained for _, is_trained in sorted(groups, key=lambda group: group[0])]
    half = len(trained) // 2
    fast, slow = trained[:half], trained[-half:]
    return TrainedShares(sum(fast) / half, sum(slow) / half)


def find_best_step(records: Sequence[RlStep]) -> RlStep | None:
    """The step with the best score on held-out tasks, the latest of equal ones; None if none was measured."""
    measured = [(record.held_out.mean, record.step, record) for record in records if record.held_out is not None]
    scored = [(mean, step, record) for mean, step, record in measured if mean is not None]
    return max(scored, key=lambda each: each[:2])[2] if scored else None


def measure_held_out(split: str, groups: Sequence[Group]) -> HeldOutScore:
    """The mean over tasks of the mean score of their rollouts, with its 95 % interval over tasks."""
    scores = [[r.score.value for r in group.scored if r.score] for group in groups]
    means = [sum(values) / len(values) for values in scores if values]
    return HeldOutScore(
        split=split,
        tasks=len(means),
        mean=sum(means) / len(means) if means else None,
        interval=compute_interval(means),
        failed=sum(len(group.rollouts) - len(group.scored) for group in groups),
        suspects=count_suspects(rollout for group in groups for rollout in group.rollouts) or UNSET,
        rollouts=rollouts if (rollouts := sum(len(group.rollouts) for group in groups)) > len(groups) else UNSET,
    )
