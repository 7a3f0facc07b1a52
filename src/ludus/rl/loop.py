"""The RL loop: rollouts ──> groups ──> rows with advantages ──> the trainer ──> new weights ──> rollouts.

`run_rl` shows one step from top to bottom and yields its record. Everything else has its own place: the feed runs
groups (`group_feed`), filters decide which rows are used (`group_filters`), advantages are computed (`advantages`), and
the trainer makes the next version (`trainers`).

A run can be killed at any moment. Rollouts are in the store when they end. After an update, the trainer's state and the
record of the step are written to a folder of `checkpoints/`, which gets its name when it is complete; then the record
goes to the store. A resumed run continues from the last checkpoint.
"""

import hashlib
import math
import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ludus.encoding import canonical, to_json
from ludus.engine import address_jobs, make_group, make_group_jobs, run_stored
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.policy import Policy
from ludus.rl.advantages import build_training_rows, measure_staleness
from ludus.rl.group_feed import FeedPlan, GroupFeed, SampledGroup
from ludus.rl.group_filters import DroppedGroup, GroupRules, KeptGroup, filter_group
from ludus.rl.records import (
    RL_STEPS,
    ConsumedGroup,
    HeldOutScore,
    RlStep,
    TrainedShares,
    find_best_step,
    make_key,
    measure_held_out,
    measure_shares,
    read_steps,
)
from ludus.rl.server_exchange import NumberedGroup, ServerExchange
from ludus.rl.settings import RlSettings
from ludus.rl.trainer_logprobs import store_trainer_logprobs
from ludus.rl.trainers import Trainer, TrainingRow, UpdateMetrics
from ludus.runner import Runner
from ludus.store import decode_record
from ludus.suspects import count_suspects
from ludus.types import Rollout, Sampling, Task

RECORD = "step.json"
"""The record of the step, in its checkpoint."""


class _Draining(Exception):
    """The run stops within a step. The step is not recorded: a resumed run makes it again from the stored rollouts."""


@dataclass(frozen=True)
class RlRun:
    """A run: the policy without its model, the trainer, the tasks, and what rollouts are run with."""

    policy: Policy
    """Everything but the model, which is the trainer's."""
    trainer: Trainer
    settings: RlSettings
    tasks: tuple[Task, ...]
    held_out: tuple[Task, ...]
    """Tasks for evaluations; empty: none."""
    runner: Runner
    checkpoints: Path | None = None
    """The folder for checkpoints. Without one, a run that is killed starts again."""
    wrap: Callable[[Model], Model] = lambda model: model
    """Wraps the trainer's model, for example to book its calls."""
    exchange: ServerExchange | None = None
    """A trajectory server through which the groups go; None: directly."""
    on_rollout: Callable[[Rollout], None] = lambda _: None

    @property
    def plan(self) -> FeedPlan:
        settings = self.settings
        return FeedPlan(self.tasks, settings.groups, settings.group_size, settings.staleness, settings.seed)

    @property
    def rules(self) -> GroupRules:
        """Which groups are used. Through a server all have the same number of rows, so that a step is one batch."""
        settings = self.settings
        if self.exchange is not None:
            limit, too_long = settings.row_tokens, settings.too_long
            return GroupRules(row_tokens=limit, too_long=too_long, equal_scores="send", branches="longest")
        return GroupRules(
            row_tokens=settings.row_tokens,
            too_long=settings.too_long,
            equal_scores=settings.equal_scores,
            partial=settings.partial,
        )

    @property
    def identity(self) -> str:
        """A hash of everything that decides the versions of the policy. It is in their names."""
        env, policy, settings = self.runner.env, self.policy, self.settings
        acting = (policy.skill_hash, policy.sampling, policy.limits, policy.system, policy.toolsets)
        deciding = (settings.groups, settings.group_size, settings.staleness, settings.seed, settings.scale)
        kept = [settings.row_tokens, settings.too_long, settings.equal_scores, settings.partial]
        if (suspects := self.runner.suspects) != "zero":  # the only way before there were others
            kept.append(suspects)
        tasks = [task.id for task in self.tasks]
        parts = (env.name, env.version, env, acting, deciding, kept, tasks, self.trainer.name)
        return hashlib.sha256(canonical(parts)).hexdigest()[:8]

    def name_version(self, version: int) -> str:
        """The name of the model of a version. That of version 0 is the same in every run from the same weights."""
        return f"{self.trainer.name}@{version}-{self.identity}" if version else self.trainer.name


async def run_rl(run: RlRun) -> AsyncGenerator[RlStep, None]:
    """Train, and yield the record of each step, first those of an earlier process.

    Ends early when the run's control is stopping: what is under way is finished and stored. A step whose groups or
    evaluation could not be completed has no record, so that a resumed run has the same records as one that never
    stopped.

    Raises:
        TrainingDiverged: the loss is not a finite number. The last checkpoint has the last good weights.
        LudusError: a spent budget, an unusable store or model.
    """
    check_settings(run.settings, run.policy.sampling)
    steps = await _restore(run)
    for record in steps:
        yield record
    with suppress(_Draining):
        async with aclosing(_take_steps(run, steps)) as taken:  # ends what runs when the caller has enough
            async for record in taken:
                yield record


async def _take_steps(run: RlRun, steps: Sequence[RlStep]) -> AsyncGenerator[RlStep, None]:
    """The steps after those that an earlier process has recorded."""
    done = steps[-1].step if steps else 0
    consumed = {group.number for record in steps for group in record.groups}
    async with GroupFeed(run.plan, run.policy, run.runner, run.name_version, consumed, run.on_rollout) as feed:
        await feed.set_model(await _get_model(run), run.trainer.version, done)
        if not steps:
            yield await _record_start(run, feed)
        while done < run.settings.steps:
            clock = _Clock()
            taken = await feed.take()
            if taken is None:
                return
            clock.lap("wait")
            draft, rows = _learn_from(run, taken)
            if run.exchange is not None:
                draft, rows = await _trade(run, feed, draft, taken, frozenset(consumed))
            draft = msgspec.structs.replace(draft, step=done + 1)
            consumed.update(group.number for group in draft.groups)
            if rows:
                update = await run.trainer.update(rows)
                draft = msgspec.structs.replace(draft, version=update.version, metrics=update.metrics)
                groups = [(each.number, each.group) for each in taken]
                store_trainer_logprobs(run.runner.store, groups, rows, update.logprobs)
                clock.lap("update")
                model = await _get_model(run)
                await feed.set_model(model, update.version, done + 1)
                clock.lap("publish")
            else:
                feed.finish_step(done + 1)
            done += 1
            held_out = await _evaluate(run, feed.policy, done)
            clock.lap("evaluate")
            draft = msgspec.structs.replace(draft, held_out=held_out)
            record = await _record(run, draft, clock)
            if run.exchange is not None:
                await run.exchange.finish_step()
            yield record


async def _get_model(run: RlRun) -> Model:
    return run.wrap(await run.trainer.get_model(run.name_version(run.trainer.version)))


def check_settings(settings: RlSettings, sampling: Sampling) -> None:
    """Raises `ConfigError` for settings that cannot work."""
    if settings.group_size < 2:
        raise ConfigError("rl.group_size: advantages compare rollouts of one task: use 2 or more")
    if sampling.temperature not in (None, 1.0) or (sampling.top_p or 1.0) != 1.0:
        raise ConfigError(
            "sampling: rollouts for RL are sampled at temperature 1 and top_p 1, because the recorded logprobs are "
            "those of that distribution: leave sampling.temperature and sampling.top_p out"
        )
    if settings.eval_every and settings.eval_split == settings.split:
        raise ConfigError("rl.eval_split: it must be another split than rl.split; rl.eval_every 0 turns evaluation off")


# ---- one step -------------------------------------------------------------------------------------------------------


def _learn_from(run: RlRun, taken: Sequence[SampledGroup]) -> tuple[RlStep, list[TrainingRow]]:
    """The rows of the groups, and the record of the step as far as it is known before the update."""
    rows: list[TrainingRow] = []
    consumed: list[ConsumedGroup] = []
    for each in taken:
        kept = filter_group(each.group, run.rules)
        if isinstance(kept, DroppedGroup):
            consumed.append(ConsumedGroup(each.number, each.version, kept.reason))
            continue
        consumed.append(ConsumedGroup(each.number, each.version))
        rows += build_training_rows(kept, number=each.number, version=each.version, scale=run.settings.scale)
    rollouts = [rollout for each in taken for rollout in each.group.rollouts]
    scores = [rollout.score for rollout in rollouts if rollout.score is not None]
    mean, most = measure_staleness(rows, run.trainer.version)
    record = RlStep(
        run=run.identity,
        step=0,
        version=run.trainer.version,
        groups=tuple(sorted(consumed, key=lambda group: group.number)),
        rollouts=len(rollouts),
        failed=len(rollouts) - len(scores),
        suspects=count_suspects(rollouts),
        reward=_average([score.value for score in scores]),
        passed=_average([float(score.passed) for score in scores]),
        length=_average([float(_count_sampled(rollout)) for rollout in rollouts if rollout.score is not None]),
        rows=len(rows),
        staleness=mean,
        stalest=most,
        metrics=UpdateMetrics(),
        shares=_measure_shares(taken, consumed),
    )
    return record, rows


def _measure_shares(taken: Sequence[SampledGroup], consumed: Sequence[ConsumedGroup]) -> TrainedShares | None:
    dropped = {group.number for group in consumed if group.dropped}
    lengths = [(max(rollout.seconds for rollout in each.group.rollouts), each.number) for each in taken]
    return measure_shares([(seconds, number not in dropped) for seconds, number in lengths])


async def _trade(
    run: RlRun, feed: GroupFeed, draft: RlStep, taken: Sequence[SampledGroup], consumed: frozenset[int]
) -> tuple[RlStep, list[TrainingRow]]:
    """Pass the groups of a step through the server. A group that cannot be sent is replaced by another one.

    Raises:
        _Draining: there are no others, because the run stops.
    """
    assert run.exchange is not None
    sent: list[NumberedGroup] = []
    groups = list(draft.groups)
    while taken:
        found = [(each, filter_group(each.group, run.rules)) for each in taken]
        sent += [NumberedGroup(each.number, each.version, kept) for each, kept in found if isinstance(kept, KeptGroup)]
        if not (missing := run.settings.groups - len(sent)):
            break
        feed.replace(missing)
        taken = await feed.take(missing) or ()
        groups += [ConsumedGroup(each.number, each.version) for each in taken]
    if len(sent) < run.settings.groups:
        raise _Draining
    rows = await run.exchange.trade(sent, consumed)
    mean, most = measure_staleness(rows, run.trainer.version)
    groups = tuple(sorted(groups, key=lambda group: group.number))
    return msgspec.structs.replace(draft, groups=groups, rows=len(rows), staleness=mean, stalest=most), rows


def _count_sampled(rollout: Rollout) -> int:
    return sum(sum(turn.completion.tokens.sampled) for turn in rollout.turns if turn.completion.tokens is not None)


def _average(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


async def _evaluate(run: RlRun, policy: Policy, step: int) -> HeldOutScore | None:
    """Measure the policy on held-out tasks if it is time for it."""
    every = run.settings.eval_every
    if not every or not run.held_out or (step % every and step != run.settings.steps):
        return None
    return await _measure_policy(run, policy)


async def _measure_policy(run: RlRun, policy: Policy) -> HeldOutScore:
    """Measure a policy on the held-out tasks. What the store has is not run again.

    Raises:
        _Draining: the run stopped before all rollouts had begun. The mean of the others would be another number.
    """
    size = run.settings.eval_size
    wanted = [job for task in run.held_out for job in make_group_jobs(task, policy, size, run.settings.seed)]
    jobs, found = address_jobs(wanted, run.runner.env), dict[str, Rollout]()
    await run_stored(jobs, run.runner, on_outcome=found.__setitem__)
    if len(found) < len(jobs):
        raise _Draining
    rollouts: dict[str, list[Rollout]] = {task.id: [] for task in run.held_out}
    for rollout in found.values():
        rollouts[rollout.task.id].append(rollout)
    groups = [make_group(task, rollouts[task.id], size) for task in run.held_out]
    return measure_held_out(run.settings.eval_split, groups)


# ---- records and checkpoints ----------------------------------------------------------------------------------------


class _Clock:
    """Measures the parts of a step."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        now = time.monotonic()
        self.seconds[part] = now - self._last
        self._last = now

    def read(self) -> dict[str, float]:
        return {**self.seconds, "whole": time.monotonic() - self._started}


async def _record_start(run: RlRun, feed: GroupFeed) -> RlStep:
    held_out = await _evaluate(run, feed.policy, 0)
    return _store(run, RlStep(run=run.identity, step=0, version=run.trainer.version, held_out=held_out))


async def _record(run: RlRun, draft: RlStep, clock: _Clock) -> RlStep:
    due = draft.step % run.settings.checkpoint_every == 0 or draft.step == run.settings.steps
    if run.checkpoints is not None and due:
        record = msgspec.structs.replace(draft, seconds=clock.read())
        await _save(run, run.checkpoints, record)
        clock.lap("save")
    return _store(run, msgspec.structs.replace(draft, seconds=clock.read()))


def _store(run: RlRun, record: RlStep) -> RlStep:
    key = make_key(run.identity, record.step, record.groups)
    return decode_record(_STEP, run.runner.store.put_record(key, RL_STEPS, to_json(record)))


_STEP = msgspec.json.Decoder(RlStep)


async def _save(run: RlRun, folder: Path, record: RlStep) -> None:
    """Write a checkpoint. It gets its name when it is complete and on disk. Older ones are removed, but not that of the
    best step."""
    draft, final = folder / ".draft", folder / name_checkpoint(record.step)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    await run.trainer.save(draft)
    (draft / RECORD).write_bytes(to_json(record))
    for path in (*draft.iterdir(), draft):
        _sync(path)
    shutil.rmtree(final, ignore_errors=True)
    draft.rename(final)
    _sync(folder)
    best = find_best_step([*read_steps(run.runner.store, run.identity), record])
    for old in list_checkpoints(folder)[: -run.settings.checkpoints]:
        if best is None or old.name != name_checkpoint(best.step):
            shutil.rmtree(old, ignore_errors=True)


def name_checkpoint(step: int) -> str:
    return f"step-{step:06}"


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def list_checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


async def _restore(run: RlRun) -> list[RlStep]:
    """Load the last checkpoint. Returns the records up to it."""
    stored = read_steps(run.runner.store, run.identity)
    found = list_checkpoints(run.checkpoints) if run.checkpoints is not None else []
    if not found:
        return [record for record in stored if record.step == 0]
    await run.trainer.load(found[-1])
    last = decode_record(_STEP, (found[-1] / RECORD).read_bytes())
    earlier = [record for record in stored if record.step <= last.step]
    if not earlier or earlier[-1].step < last.step:  # killed after the checkpoint and before its record
        earlier.append(_store(run, last))
    return earlier
