"""Judge stored rollouts again with a new or corrected `verify`, without the model.

`rescore` takes the outcomes of a run and judges each with the environment that is given: in a fresh slot with the files
that its agent left, as the store has kept them, or without a slot if the environment has none. The run is not changed;
each result is yielded beside the old one.

What cannot be judged is said and counted (`find_obstacle`): a rollout of another task, one whose files were not kept,
one that a failure of the world ended before its agent had finished. A rollout whose agent broke its slot keeps its
score of 0. One whose `verify` failed is judged: a corrected verifier gives it a score.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from ludus.batch import read_tasks
from ludus.comparison import TaskKey
from ludus.engine import run_many
from ludus.env import Env
from ludus.errors import raise_first
from ludus.models.no_model import NoModel
from ludus.policy import Limits, Policy
from ludus.runner import ActedWork, Job, Runner
from ludus.sandbox.file_tree import CollectedFiles
from ludus.stats import UNSCORED, FailureLedger, Interval, ScoreCell, compute_interval, make_failure_ledger
from ludus.store import RunDir
from ludus.types import Rollout, StopReason, Task

JUDGED_BOUNDARIES = frozenset({"verifier"})
"""Failures after which the agent had finished: another `verify` may judge what it left."""


BROKE_SLOT = "its agent broke its slot and left no files: its score of 0 stays"


class Rescored(Struct, frozen=True):
    """A stored rollout, and the same with its new score. `after` is None where it could not be judged: see `reason`."""

    before: Rollout
    after: Rollout | None
    reason: str = ""
    files: CollectedFiles | None = None
    failed_at: str = UNSCORED
    """The boundary that failed, where there is no new score."""

    @property
    def stays(self) -> bool:
        """Whether it keeps its score of 0 although there is nothing to judge: its agent broke its slot."""
        return self.after is None and self.reason == BROKE_SLOT


class ScoreChange(Struct, frozen=True):
    """One rollout whose score has changed."""

    task: str
    replicate: int
    before: float | None
    """None: it had no score."""
    after: float
    feedback: str


class RescoreReport(Struct, frozen=True, kw_only=True):
    """Old and new scores side by side. Means are over tasks, as in a summary, of the rollouts that have both scores."""

    rollouts: int
    judged: int
    tasks: int
    mean_before: float | None
    mean_after: float | None
    interval_before: Interval | None
    interval_after: Interval | None
    raised: int
    lowered: int
    unchanged: int
    new: int
    """Rollouts that had no score and now have one."""
    changes: tuple[ScoreChange, ...]
    unjudged: Mapping[str, int]
    """The number of rollouts that could not be judged, by reason."""
    failures: FailureLedger
    """What has no new score, by cause, with the bounds of the new mean."""


# ---- what can be judged -------------------------------------------------------------------------------------------


def find_obstacle(rollout: Rollout, task: Task | None, env: Env) -> str:
    """Why a stored rollout cannot be judged with `env`; empty if it can. `task` is the environment's task of its id."""
    if task is None:
        return f"{env.name} has no task with its id"
    if task.prompt != rollout.task.prompt:
        return "the environment asks something else: the prompt of its task has changed"
    if rollout.failure is not None and rollout.failure.boundary not in JUDGED_BOUNDARIES:
        return f"its agent did not finish: the {rollout.failure.boundary} failed"
    if env.sandbox is None:
        return ""
    if env.verify_in == "same":
        return f"{env.name} verifies in the agent's own slot, which is gone"
    if not rollout.files and rollout.stop is StopReason.BROKEN:
        return BROKE_SLOT
    if not rollout.files:
        return "its files were not kept: they were too large, or run.keep_files_mb was 0, or an older Ludus ran it"
    return ""


def read_tasks_of(rollouts: Iterable[Rollout], env: Env, split: str) -> dict[TaskKey, Task]:
    """The environment's tasks in `split`, which is the run's, and in the splits of its rollouts."""
    splits = dict.fromkeys([split, *(rollout.task.split for rollout in rollouts)])
    return {(task.split, task.id): task for each in splits for task in read_tasks(env, each)}


def restore_acted(rollout: Rollout, task: Task) -> Rollout:
    """The rollout as it was when its agent had finished, as an attempt at `task`."""
    return msgspec.structs.replace(rollout, task=task, score=None, failure=None, stop=rollout.agent_stop, left_out=())


# ---- judging ------------------------------------------------------------------------------------------------------


async def rescore(
    run: RunDir,
    tasks: Mapping[TaskKey, Task],
    runner: Runner,
    limits: Limits = Limits(),
    *,
    record: Callable[[Rescored], None],
) -> None:
    """Judge the outcomes of a run again, side by side. `record` is called with each when it ends."""
    policy = Policy(NoModel(), limits=limits)
    stored: dict[int, Rollout] = {}

    def list_jobs() -> Iterator[Job]:
        for _, rollout in run.read_outcomes():
            task = tasks.get((rollout.task.split, rollout.task.id))
            if reason := find_obstacle(rollout, task, runner.env):
                record(Rescored(rollout, None, reason))
                continue
            assert task is not None
            files = run.read_files(rollout.files) if runner.env.sandbox is not None else None
            acted = ActedWork(restore_acted(rollout, task), files)
            job = Job(task, policy, rollout.provenance.replicate, rollout.provenance.seed, acted=acted)
            stored[id(job)] = rollout
            yield job

    def take(job: Job, after: Rollout) -> None:
        before = stored.pop(id(job))
        if after.failure is not None:
            record(Rescored(before, None, f"no score: {after.failure.message}", failed_at=after.failure.boundary))
        else:
            record(Rescored(before, after, files=job.acted.files if job.acted else None))

    with raise_first():
        await run_many(list_jobs(), runner, take)


# ---- side by side -------------------------------------------------------------------------------------------------


@dataclass
class RescoreTally:
    """Counts rollouts as they are judged. It keeps their numbers, not the rollouts."""

    rollouts: int = 0
    both: dict[tuple[str, str], list[tuple[float, float]]] = field(
        default_factory=dict[tuple[str, str], list[tuple[float, float]]]
    )
    """Old and new scores by policy and task."""
    changes: list[ScoreChange] = field(default_factory=list[ScoreChange])
    unjudged: Counter[str] = field(default_factory=Counter[str])
    cells: dict[tuple[str, str], ScoreCell] = field(default_factory=dict[tuple[str, str], ScoreCell])
    """New scores by policy and task."""
    lost: Counter[str] = field(default_factory=Counter[str])
    """Rollouts without a new score, by the boundary that failed."""

    def add(self, rescored: Rescored) -> None:
        self.rollouts += 1
        before, after = rescored.before, rescored.after
        self._count(rescored)
        if after is None or after.score is None:
            self.unjudged[rescored.reason] += 1
            return
        old, new = before.score.value if before.score else None, after.score.value
        if old is not None:
            self.both.setdefault((before.provenance.policy, before.task.id), []).append((old, new))
        if old != new:
            feedback = after.score.feedback
            self.changes.append(ScoreChange(before.task.id, before.provenance.replicate, old, new, feedback))

    def _count(self, rescored: Rescored) -> None:
        """Count it for the ledger of failures. One whose score of 0 stays is not lost."""
        before, score = rescored.before, rescored.after.score if rescored.after else None
        value = 0.0 if rescored.stays else score.value if score else None
        cell = self.cells.get(place := (before.provenance.policy, before.task.id), ScoreCell(0.0, 0, 0))
        if value is None:
            self.lost[rescored.failed_at] += 1
            self.cells[place] = cell._replace(lost=cell.lost + 1)
        else:
            self.cells[place] = cell._replace(total=cell.total + value, scored=cell.scored + 1)

    def make_report(self) -> RescoreReport:
        pairs = [pair for scores in self.both.values() for pair in scores]
        new = sum(change.before is None for change in self.changes)
        before, after = _average(self.both.values(), 0), _average(self.both.values(), 1)
        every = [score for pair in pairs for score in pair]
        lowest, highest = min([0.0, *every]), max([1.0, *every])
        return RescoreReport(
            rollouts=self.rollouts,
            judged=len(pairs) + new,
            tasks=len(self.both),
            mean_before=math.fsum(before) / len(before) if before else None,
            mean_after=math.fsum(after) / len(after) if after else None,
            interval_before=compute_interval(before, lowest, highest),
            interval_after=compute_interval(after, lowest, highest),
            raised=sum(new > old for old, new in pairs),
            lowered=sum(new < old for old, new in pairs),
            unchanged=sum(new == old for old, new in pairs),
            new=new,
            changes=tuple(sorted(self.changes, key=lambda change: (change.task, change.replicate))),
            unjudged=dict(self.unjudged.most_common()),
            failures=make_failure_ledger(self.cells.values(), self.lost),
        )


def _average(scores: Iterable[Sequence[tuple[float, float]]], which: int) -> list[float]:
    """The mean of each task: of its old scores (0) or of its new ones (1)."""
    return [math.fsum(pair[which] for pair in pairs) / len(pairs) for pairs in scores]
