"""Run many tasks, in groups, into a run directory.

    plan_jobs ──> run_stored ──> store (the truth) ──> groups.jsonl | summary.json, samples.jsonl

`plan_jobs` is pure: the same batch gives the same jobs, seeds and toolset samples in every process, so a job's content
address finds its outcome again. Only jobs without a score in the store are run. A failed rollout is stored
too, and is run again when the run is resumed: a failure is not a result. All other files are derived from the store.
`process` writes scored groups as they complete; `evaluate` writes numbers and samples. When a budget is spent or
something breaks, both write what there is and then raise.

A row of `groups.jsonl` is a `GroupRow`, a row of `samples.jsonl` a `SampleRow`. Groups are written in the order in
which they complete; `index` is the position of the task in the batch. No row contains `Task.answer`, which the agent
must not know.
"""

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from ludus.chat_form import write_message
from ludus.encoding import to_json
from ludus.engine import address_jobs, derive_seed, make_group, make_group_jobs, run_missing, select_missing
from ludus.env import Env
from ludus.errors import ConfigError, LudusError, StoreError, describe_error
from ludus.policy import Policy
from ludus.runner import Job, Runner
from ludus.stats import RunSummary, summarize
from ludus.store import RunDir
from ludus.tools.toolsets import choose_toolsets
from ludus.types import Failure, Group, JsonObject, Provenance, Rollout, Task, ToolError, Usage

if TYPE_CHECKING:
    from ludus.tools.distributions import Distribution

GROUPS = "groups.jsonl"
SAMPLES = "samples.jsonl"
SUMMARY = "summary.json"

SCHEMA = 1
"""The version of the rows below. It is raised when a field changes its meaning."""


@dataclass(frozen=True)
class Batch:
    """Tasks, the policy that acts on them, and how many rollouts each task gets."""

    tasks: tuple[Task, ...]
    policy: Policy
    group_size: int = 1
    seed: int = 0
    distribution: "Distribution | None" = None
    """Samples the policy's toolsets for each group."""
    disabled: tuple[str, ...] = ()
    """Toolsets that no sample may contain."""


@dataclass(frozen=True)
class BatchProgress:
    """The progress of a batch. Rollouts of an earlier run are counted; their cost is not."""

    total: int
    done: int
    scored: int
    mean: float | None
    """Of the scored rollouts so far."""
    usage: Usage

    @property
    def failed(self) -> int:
        return self.done - self.scored


OnRollout = Callable[[Rollout, BatchProgress], None]
MoreFields = Callable[[Group], Mapping[str, object]]


class ProcessReport(Struct, frozen=True):
    """What `process` wrote."""

    groups: int
    partial: int
    summary: RunSummary


# ---- what to run --------------------------------------------------------------------------------------------------


def load_tasks(env: Env, split: str, limit: int | None = None, ids: Sequence[str] | None = None) -> tuple[Task, ...]:
    """The tasks of a split, checked: the first `limit` of them, or those named by `ids` in that order."""
    tasks = tuple(itertools.islice(read_tasks(env, split), None if ids else limit))
    if not tasks:
        raise ConfigError(
            f"env.split: {env.name} has no tasks in split '{split}'; choose another split, or check the environment's "
            "data options and env.limit"
        )
    _check_ids(env, tasks)
    if not ids:
        return tasks
    by_id = {task.id: task for task in tasks}
    unknown = [id for id in ids if id not in by_id]
    if unknown:
        raise ConfigError(f"env {env.name}, split '{split}': no task has the id {', '.join(map(repr, unknown[:5]))}")
    return tuple(by_id[id] for id in dict.fromkeys(ids))[:limit]


def read_tasks(env: Env, split: str) -> Iterator[Task]:
    """The tasks of a split as the environment makes them. Ids are not checked. Any error there is a ConfigError."""
    try:
        for task in env.tasks(split):
            if not isinstance(task, Task):  # pyright: ignore[reportUnnecessaryIsInstance]  # foreign code
                raise ConfigError(f"env {env.name}: tasks() returns {type(task).__name__}, not Task")
            yield task
    except LudusError:
        raise
    except Exception as error:  # an environment is foreign code, and the user can fix its data
        raise ConfigError(
            f"env {env.name}: the tasks of split '{split}' cannot be loaded: {describe_error(error)}"
        ) from error


def _check_ids(env: Env, tasks: Iterable[Task]) -> None:
    counts = Counter[object](task.id for task in tasks)
    wrong = [id for id in counts if not isinstance(id, str) or not id.strip()]
    if wrong:
        raise ConfigError(f"env {env.name}: a task id is a non-empty string, not {wrong[0]!r}")
    twice = [str(id) for id, count in counts.items() if count > 1]
    if twice:
        raise ConfigError(
            f"env {env.name}: task ids must be unique within a split; {len(twice)} occur more than once: "
            f"{', '.join(map(repr, twice[:5]))}"
        )


def plan_jobs(batch: Batch) -> list[Job]:
    """All jobs of the batch, group after group."""
    if batch.group_size < 1:
        raise ConfigError(f"env.group_size is {batch.group_size}; a group has at least one rollout: use 1 or more")
    return [
        job
        for task in batch.tasks
        for job in make_group_jobs(task, _sample_policy(batch, task), batch.group_size, batch.seed)
    ]


def _sample_policy(batch: Batch, task: Task) -> Policy:
    """The policy with the toolsets that were sampled for the task's group."""
    if batch.distribution is None:
        return batch.policy
    from ludus.tools.distributions import sample_toolsets  # few batches sample

    registry = batch.policy.registry
    sampled = sample_toolsets(batch.distribution, derive_seed(batch.seed, task.id, -1), registry, batch.disabled)
    toolsets = choose_toolsets(sampled.toolsets, batch.disabled, registry=registry)
    return dataclasses.replace(batch.policy, toolsets=toolsets, skipped=sampled.skipped)


@dataclass(frozen=True)
class _Plan:
    """A batch's jobs and the content addresses of their outcomes."""

    batch: Batch
    runner: Runner
    directory: RunDir
    jobs: Mapping[str, Job]
    """By content address."""
    keys: Mapping[tuple[str, int], str]
    """Content addresses by task id and replicate."""

    def find_work(self) -> "_Work":
        """What is still to be run, and what is done. The store's index is read once: it may have a million rows."""
        stored = self.directory.read_scores()
        scores = {key: score for key, score in stored.items() if score is not None}
        missing = select_missing(self.jobs, scores, groups=self.runner.env.judges_groups)
        return _Work(missing, [scores[key] for key in self.jobs if key not in missing])

    def read_group(self, index: int) -> Group:
        """The group of a task as the store has it. It may have no rollouts."""
        task, size = self.batch.tasks[index], self.batch.group_size
        found = (self.directory.get(self.keys[task.id, replicate]) for replicate in range(size))
        return make_group(task, (rollout for rollout in found if rollout is not None), size)

    def read_groups(self) -> Iterator[tuple[int, Group]]:
        """The groups with at least one rollout, each with the index of its task."""
        every = ((index, self.read_group(index)) for index in range(len(self.batch.tasks)))
        return ((index, group) for index, group in every if group.rollouts)


class _Work(NamedTuple):
    """The work of a plan when it begins."""

    missing: Mapping[str, Job]
    scores: Sequence[float]
    """Of the jobs that are done."""


def _make_plan(batch: Batch, runner: Runner) -> _Plan:
    if not isinstance(runner.store, RunDir):
        raise TypeError(f"the outcomes of a batch go to a run directory: its store is a {type(runner.store).__name__}")
    jobs = address_jobs(plan_jobs(batch), runner.env)
    return _Plan(batch, runner, runner.store, jobs, {(job.task.id, job.replicate): key for key, job in jobs.items()})


# ---- running it ---------------------------------------------------------------------------------------------------


async def _run_plan(plan: _Plan, work: _Work, on_rollout: OnRollout | None) -> None:
    count = _Count(len(plan.jobs), work.scores)

    def on_outcome(key: str, rollout: Rollout) -> None:
        progress = count.add(key, rollout)
        if on_rollout is not None:
            on_rollout(rollout, progress)

    await run_missing(work.missing, plan.runner, on_outcome=on_outcome)


class _Count:
    """Counts rollouts as they end."""

    def __init__(self, total: int, scores: Sequence[float]) -> None:
        self._total = total
        self._done = self._scored = len(scores)
        self._score = sum(scores)
        self._usage = Usage()
        self._failed: set[str] = set()

    def add(self, key: str, rollout: Rollout) -> BatchProgress:
        """Count an outcome. One that failed may come again: somebody asked for it."""
        self._done += key not in self._failed
        self._failed.discard(key) if rollout.score else self._failed.add(key)
        self._usage += rollout.usage
        if rollout.score is not None:
            self._scored += 1
            self._score += rollout.score.value
        mean = self._score / self._scored if self._scored else None
        return BatchProgress(self._total, self._done, self._scored, mean, self._usage)


def read_groups(batch: Batch, runner: Runner) -> Iterator[Group]:
    """Read the groups that have outcomes from the store, in task order. A group with missing outcomes is partial."""
    return (group for _, group in _make_plan(batch, runner).read_groups())


def is_complete(batch: Batch, runner: Runner) -> bool:
    """Whether every rollout of the batch has ended."""
    rollouts = sum(len(group.rollouts) for group in read_groups(batch, runner))
    return rollouts == len(batch.tasks) * batch.group_size


def group_outcomes(run: RunDir, size: int = 1) -> list[Group]:
    """Group the outcomes of a run directory without its batch, in the order in which the groups were begun."""
    members: dict[tuple[str, str], list[Rollout]] = {}
    for _, rollout in run.read_outcomes():
        members.setdefault((rollout.task.id, rollout.provenance.policy), []).append(rollout)
    return [make_group(rollouts[0].task, rollouts, max(size, len(rollouts))) for rollouts in members.values()]


class _TaskId(Struct):
    id: str


class _Place(Struct):
    index: int
    task: _TaskId


_PLACE = msgspec.json.Decoder(_Place)


def read_places(run: RunDir) -> dict[str, int]:
    """The position of each task in the batch, by id, as the rows of the run have it. Damaged rows are left out."""
    places: dict[str, int] = {}
    for line in itertools.chain(run.read_lines(GROUPS), run.read_lines(SAMPLES)):
        with contextlib.suppress(ValueError, RecursionError):  # msgspec's errors are ValueErrors
            row = _PLACE.decode(line)
            places[row.task.id] = row.index
    return places


# ---- what comes out -----------------------------------------------------------------------------------------------


async def process(
    batch: Batch,
    runner: Runner,
    *,
    on_rollout: OnRollout | None = None,
    more: MoreFields = lambda group: {},
) -> ProcessReport:
    """Run the batch into the run directory of the runner. Writes scored groups as they complete, and at the end a page
    that shows them.

    A group is complete when all its rollouts have ended. Groups that were begun but not completed are added at the
    end, as partial. A resumed run first rewrites the file from the store. `more` returns further fields for a group's
    line.
    """
    plan = _make_plan(batch, runner)
    run = plan.directory
    places = {task.id: index for index, task in enumerate(batch.tasks)}
    work = plan.find_work()
    missing = Counter(job.task.id for job in work.missing.values())
    again: set[str] = set()

    def read_line(index: int) -> bytes:
        return encode_line(plan.read_group(index), index)

    def encode_line(group: Group, index: int) -> bytes:
        return to_json({**msgspec.structs.asdict(make_group_row(group, index)), **more(group)})

    def on_stored(rollout: Rollout, progress: BatchProgress) -> None:
        id = rollout.task.id
        if not missing[id]:  # a rollout that was asked for again: its group is written already
            again.add(id)
        else:
            missing[id] -= 1
            if not missing[id]:
                run.append(GROUPS, read_line(places[id]))
        if on_rollout is not None:
            on_rollout(rollout, progress)

    def finish() -> ProcessReport:
        if again:
            write_complete()
        for id, index in places.items():
            if missing[id] and (group := plan.read_group(index)).rollouts:
                run.append(GROUPS, encode_line(group, index))
        summary = summarize(group for _, group in plan.read_groups())
        return ProcessReport(summary.overall.tasks, summary.partial, summary)

    def write_complete() -> None:
        run.write(GROUPS, (read_line(index) + b"\n" for id, index in places.items() if not missing[id]))

    write_complete()
    running = _run_plan(plan, work, on_stored)
    return await _run_to_end(running, finish)


async def evaluate(batch: Batch, runner: Runner, *, on_rollout: OnRollout | None = None) -> RunSummary:
    """Run the batch into the run directory of the runner. Writes its numbers, every sample, and a page that shows
    them."""
    plan = _make_plan(batch, runner)
    run = plan.directory

    def finish() -> RunSummary:
        summary = summarize(group for _, group in plan.read_groups())
        run.write(SUMMARY, msgspec.json.format(to_json(summary), indent=2) + b"\n")
        rows = (row for index, group in plan.read_groups() for row in make_sample_rows(group, index))
        run.write(SAMPLES, (to_json(row) + b"\n" for row in rows))
        return summary

    running = _run_plan(plan, plan.find_work(), on_rollout)
    return await _run_to_end(running, finish)


T = TypeVar("T")


async def _run_to_end(running: Awaitable[None], finish: Callable[[], T]) -> T:
    """Run, then call `finish`, also after an error: finished work is written when a budget is spent or a bug occurs."""
    try:
        await running
    except StoreError:
        raise
    except Exception:
        finish()
        raise
    return finish()


# ---- rows ---------------------------------------------------------------------------------------------------------


class TaskRow(Struct, frozen=True):
    id: str
    kind: str
    split: str
    prompt: str


class RolloutRow(Struct, frozen=True, kw_only=True):
    """One rollout. It has a `score` or a `failure`, not both. Every field is always present."""

    replicate: int
    score: JsonObject | None
    """value, passed, soft, feedback, parts, suspect; null when the rollout failed."""
    failure: Failure | None
    stop: str
    mode: str
    """`tokens`: recorded with exact ids; `chat`: without, so no data for RL; `mixed`: in part; `empty`: no turn."""
    messages: list[JsonObject]
    """The conversation in OpenAI's chat format. Thinking is in `reasoning_content`."""
    tool_errors: tuple[ToolError, ...]
    turns: int
    usage: JsonObject
    seconds: float
    provenance: JsonObject
    facts: JsonObject
    """What else is known: `exit` of a command-line agent, files that were `left_out`, the hash of the kept `files`."""


class GroupRow(Struct, frozen=True, kw_only=True):
    """One group: a line of `groups.jsonl`."""

    schema: int = SCHEMA
    index: int
    task: TaskRow
    size: int
    """The number of rollouts that were requested."""
    partial: bool
    """Whether fewer than that have a score."""
    rollouts: list[RolloutRow]


class SampleRow(RolloutRow, frozen=True, kw_only=True):
    """One rollout and its task: a line of `samples.jsonl`."""

    schema: int = SCHEMA
    index: int
    task: TaskRow
    answer: str
    """The last text of the model."""


def make_group_row(group: Group, index: int = 0) -> GroupRow:
    rollouts = [RolloutRow(**_make_fields(rollout)) for rollout in group.rollouts]
    return GroupRow(
        index=index, task=_make_task_row(group.task), size=group.size, partial=group.partial, rollouts=rollouts
    )


def make_sample_rows(group: Group, index: int = 0) -> list[SampleRow]:
    task = _make_task_row(group.task)
    return [SampleRow(index=index, task=task, answer=r.answer, **_make_fields(r)) for r in group.rollouts]


def _make_task_row(task: Task) -> TaskRow:
    return TaskRow(task.id, task.kind, task.split, task.prompt)


def _make_fields(rollout: Rollout) -> dict[str, Any]:
    from ludus.tokens.sequences import find_mode  # rows are written when a run ends

    return {
        "replicate": rollout.provenance.replicate,
        "score": msgspec.structs.asdict(rollout.score) if rollout.score else None,
        "failure": rollout.failure,
        "stop": rollout.stop.value,
        "mode": find_mode(rollout),
        "messages": [write_message(message) for message in rollout.messages],
        "tool_errors": rollout.tool_errors,
        "turns": len(rollout.turns),
        "usage": msgspec.structs.asdict(rollout.usage),
        "seconds": rollout.seconds,
        "provenance": _list_provenance(rollout.provenance),
        "facts": rollout.facts,
    }


def _list_provenance(provenance: Provenance) -> JsonObject:
    """Every field, but `skipped` only if it is not empty: rows without it have the form of earlier versions."""
    fields = msgspec.structs.asdict(provenance)
    return fields if provenance.skipped else {name: value for name, value in fields.items() if name != "skipped"}
