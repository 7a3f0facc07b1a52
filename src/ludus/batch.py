"""Run many tasks, in groups, into a run directory.

    plan_jobs ──> run_stored ──> store (the truth) ──> groups.jsonl | summary.json, samples.jsonl | trajectories.html

`plan_jobs` is pure: the same batch gives the same jobs, seeds and toolset draws in every process, so a job's content
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
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ludus import trajectory_page as page
from ludus.agent import Policy
from ludus.env import Env
from ludus.errors import ConfigError, LudusError, StoreError, describe_error
from ludus.models.openai import write_content
from ludus.rollout import Job, RunOptions, derive_seed, make_group, make_group_jobs
from ludus.runner import address_jobs, find_missing, run_stored
from ludus.sandbox.pool import Pool
from ludus.stats import RunSummary, summarize
from ludus.store import RunDir
from ludus.tokens.sequences import find_mode
from ludus.tools.distributions import Distribution, draw_toolsets
from ludus.tools.toolsets import choose_toolsets
from ludus.types import Failure, Group, JsonObject, Message, Provenance, Rollout, Task, ToolError, Usage, to_json

GROUPS = "groups.jsonl"
SAMPLES = "samples.jsonl"
SUMMARY = "summary.json"
PAGE = "trajectories.html"

SCHEMA = 1
"""The version of the rows below. It is raised when a field changes its meaning."""


@dataclass(frozen=True)
class Batch:
    """Tasks, the policy that acts on them, and how many rollouts each task gets."""

    env: Env
    tasks: tuple[Task, ...]
    policy: Policy
    group_size: int = 1
    seed: int = 0
    distribution: Distribution | None = None
    """Draws the policy's toolsets for each group."""
    disabled: tuple[str, ...] = ()
    """Toolsets that no draw may contain."""


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
        for job in make_group_jobs(task, _draw_policy(batch, task), batch.group_size, batch.seed)
    ]


def _draw_policy(batch: Batch, task: Task) -> Policy:
    """The policy with the toolsets that were drawn for the task's group."""
    if batch.distribution is None:
        return batch.policy
    registry = batch.policy.registry
    drawn = draw_toolsets(batch.distribution, derive_seed(batch.seed, task.id, -1), registry, batch.disabled)
    toolsets = choose_toolsets(drawn.toolsets, batch.disabled, registry=registry)
    return dataclasses.replace(batch.policy, toolsets=toolsets, skipped=drawn.skipped)


@dataclass(frozen=True)
class _Plan:
    """A batch's jobs and the content addresses of their outcomes."""

    batch: Batch
    jobs: Mapping[str, Job]
    """By content address."""
    keys: Mapping[tuple[str, int], str]
    """Content addresses by task id and replicate."""

    def read_group(self, run: RunDir, index: int) -> Group:
        """The group of a task as the store has it. It may have no rollouts."""
        task, size = self.batch.tasks[index], self.batch.group_size
        found = (run.get(self.keys[task.id, replicate]) for replicate in range(size))
        return make_group(task, (rollout for rollout in found if rollout is not None), size)

    def read_groups(self, run: RunDir) -> Iterator[tuple[int, Group]]:
        """The groups with at least one rollout, each with the index of its task."""
        every = ((index, self.read_group(run, index)) for index in range(len(self.batch.tasks)))
        return ((index, group) for index, group in every if group.rollouts)


def _make_plan(batch: Batch) -> _Plan:
    jobs = address_jobs(plan_jobs(batch), batch.env)
    return _Plan(batch, jobs, {(job.task.id, job.replicate): key for key, job in jobs.items()})


# ---- running it ---------------------------------------------------------------------------------------------------


async def _run_plan(
    plan: _Plan, pool: Pool | None, run: RunDir, options: RunOptions, on_rollout: OnRollout | None
) -> None:
    count = _Count(plan, run.read_scores())

    def on_outcome(_: str, rollout: Rollout) -> None:
        progress = count.add(rollout)
        if on_rollout is not None:
            on_rollout(rollout, progress)

    await run_stored(plan.jobs, plan.batch.env, pool, run, options, on_outcome=on_outcome, read_back=False)


class _Count:
    """Counts rollouts as they end."""

    def __init__(self, plan: _Plan, stored: Mapping[str, float | None]) -> None:
        scores = [score for key in plan.jobs if (score := stored.get(key)) is not None]
        self._total = len(plan.jobs)
        self._done = self._scored = len(scores)
        self._score = sum(scores)
        self._usage = Usage()

    def add(self, rollout: Rollout) -> BatchProgress:
        self._done += 1
        self._usage += rollout.usage
        if rollout.score is not None:
            self._scored += 1
            self._score += rollout.score.value
        mean = self._score / self._scored if self._scored else None
        return BatchProgress(self._total, self._done, self._scored, mean, self._usage)


def read_groups(batch: Batch, run: RunDir) -> Iterator[Group]:
    """Read the groups that have outcomes from the store, in task order. A group with missing outcomes is partial."""
    return (group for _, group in _make_plan(batch).read_groups(run))


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
    pool: Pool | None,
    run: RunDir,
    options: RunOptions = RunOptions(),
    *,
    on_rollout: OnRollout | None = None,
    more: MoreFields = lambda group: {},
) -> ProcessReport:
    """Run the batch. Writes scored groups as they complete, and at the end a page that shows them.

    A group is complete when all its rollouts have ended. Groups that were begun but not completed are added at the
    end, as partial. A resumed run first rewrites the file from the store. `more` returns further fields for a group's
    line.
    """
    plan = _make_plan(batch)
    places = {task.id: index for index, task in enumerate(batch.tasks)}
    missing = Counter(job.task.id for job in find_missing(plan.jobs, run).values())

    def read_line(index: int) -> bytes:
        return encode_line(plan.read_group(run, index), index)

    def encode_line(group: Group, index: int) -> bytes:
        return to_json({**msgspec.structs.asdict(make_group_row(group, index)), **more(group)})

    def on_stored(rollout: Rollout, progress: BatchProgress) -> None:
        id = rollout.task.id
        missing[id] -= 1
        if not missing[id]:
            run.append(GROUPS, read_line(places[id]))
        if on_rollout is not None:
            on_rollout(rollout, progress)

    def finish() -> ProcessReport:
        for id, index in places.items():
            if missing[id] and (group := plan.read_group(run, index)).rollouts:
                run.append(GROUPS, encode_line(group, index))
        summary = summarize(group for _, group in plan.read_groups(run))
        _write_page(plan, run, summary)
        return ProcessReport(summary.overall.tasks, summary.partial, summary)

    run.write(GROUPS, (read_line(index) + b"\n" for id, index in places.items() if not missing[id]))
    running = _run_plan(plan, pool, run, options, on_stored)
    return await _run_to_end(running, finish)


async def evaluate(
    batch: Batch,
    pool: Pool | None,
    run: RunDir,
    options: RunOptions = RunOptions(),
    *,
    on_rollout: OnRollout | None = None,
) -> RunSummary:
    """Run the batch. Writes its numbers, every sample, and a page that shows them."""
    plan = _make_plan(batch)

    def finish() -> RunSummary:
        summary = summarize(group for _, group in plan.read_groups(run))
        run.write(SUMMARY, msgspec.json.format(to_json(summary), indent=2) + b"\n")
        rows = (row for index, group in plan.read_groups(run) for row in make_sample_rows(group, index))
        run.write(SAMPLES, (to_json(row) + b"\n" for row in rows))
        _write_page(plan, run, summary)
        return summary

    running = _run_plan(plan, pool, run, options, on_rollout)
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


def _write_page(plan: _Plan, run: RunDir, summary: RunSummary) -> None:
    env, policy = plan.batch.env, plan.batch.policy
    facts = {
        "environment": f"{env.name} {env.version}",
        "model": policy.model_name,
        "policy": policy.fingerprint,
        "skill": policy.skill.hash if policy.skill else "",
    }
    rows = (to_json(make_group_row(group, index)) for index, group in plan.read_groups(run))
    run.write(PAGE, page.render_page(run.path.resolve().name, facts, summary, rows))


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
    """value, passed, soft, feedback, parts; null when the rollout failed."""
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


def to_chat_message(message: Message) -> JsonObject:
    """Convert a message to OpenAI's chat format."""
    chat: JsonObject = {"role": message.role, "content": write_content(message)}
    if message.reasoning is not None:
        chat["reasoning_content"] = message.reasoning.text
    if message.calls:
        chat["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.role == "tool":
        chat["tool_call_id"] = message.call_id
    return chat


def _make_task_row(task: Task) -> TaskRow:
    return TaskRow(task.id, task.kind, task.split, task.prompt)


def _make_fields(rollout: Rollout) -> dict[str, Any]:
    return {
        "replicate": rollout.provenance.replicate,
        "score": msgspec.structs.asdict(rollout.score) if rollout.score else None,
        "failure": rollout.failure,
        "stop": rollout.stop.value,
        "mode": find_mode(rollout),
        "messages": [to_chat_message(message) for message in rollout.messages],
        "tool_errors": rollout.tool_errors,
        "turns": len(rollout.turns),
        "usage": msgspec.structs.asdict(rollout.usage),
        "seconds": rollout.seconds,
        "provenance": _list_provenance(rollout.provenance),
    }


def _list_provenance(provenance: Provenance) -> JsonObject:
    """Every field, but `skipped` only if it is not empty: rows without it have the form of earlier versions."""
    fields = msgspec.structs.asdict(provenance)
    return fields if provenance.skipped else {name: value for name, value in fields.items() if name != "skipped"}
