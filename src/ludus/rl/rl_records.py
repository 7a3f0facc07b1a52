"""What an RL run records: one `RlStep` for each update, in the store and in `steps.jsonl`.

A record is stored under a hash of the step and of the groups that it consumed. A run that was killed computes the steps
after its last checkpoint again. On-policy that gives the same groups, the same key and so the same record.
"""

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct, field

from ludus.rl.trainers import UpdateMetrics
from ludus.stats import Interval, compute_interval
from ludus.store import Store, decode_record
from ludus.types import Group, canonical

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


class ConsumedGroup(Struct, frozen=True):
    """A group that a step took."""

    number: int
    version: int
    """The version of the policy that sampled it."""
    dropped: str = ""
    """Why it was not trained on: `stale`, `equal_scores`, `partial`, `too_long` or `no_rows`."""


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
    reward: float | None = None
    """The mean score of the rollouts, also of those that were not trained on, except stale ones."""
    passed: float | None = None
    length: float | None = None
    """The mean number of sampled ids of a rollout."""
    rows: int = 0
    staleness: float = 0.0
    """The mean number of versions between the policy of a row and the policy that learned from it."""
    stalest: int = 0
    metrics: UpdateMetrics = UpdateMetrics()
    held_out: HeldOutScore | None = None
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
    """A record as a line of `steps.jsonl`: without times, so that equal runs have equal lines."""
    plain = msgspec.to_builtins(record)
    plain.pop("seconds", None)
    plain.get("metrics", {}).pop("seconds", None)
    return msgspec.json.encode(plain)


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
    )
