"""The worker of `ludus serve`: groups of rollouts from an environment to a trajectory server.

    /status-env ──> credits ──> begin groups ──> run_stored ──> filter_group ──> wire groups ──> /scored_data
                       ^                                             └─> dropped, with a reason        │
                       └──────────────── the group has ended: look again ──────────────────────────────┘

A group is begun only if the server has room for it, and what has begun is finished, never cancelled. A finished group
stays in the store until the server has accepted it: while the server is away, posts are repeated and no group is begun.
If the server has forgotten the worker, the worker registers again. `worker_journal` says what survives a kill.

Tasks come in a shuffled order, epoch after epoch, which depends on the seed alone. A `WorkerSource` makes groups in
another way: files that own their groups are one.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from ludus.batch import Batch, plan_jobs
from ludus.engine import address_jobs, derive_seed, make_group, run_stored
from ludus.errors import BudgetExhausted, ConfigError, LudusError, ModelUnusable, raise_first
from ludus.rl.atropos_client import AtroposClient, ServerRefused, ServerUnavailable, WorkerPlace
from ludus.rl.group_filters import DroppedGroup, GroupRules, filter_group
from ludus.rl.row_checks import Vocabulary
from ludus.rl.server_credits import (
    CreditRules,
    ServerStatus,
    compute_credits,
    has_crossed,
    is_finished,
    limit_for_eval,
)
from ludus.rl.server_link import ServerLink
from ludus.rl.wire_groups import build_wire_groups
from ludus.rl.worker_journal import WorkerJournal
from ludus.rl.worker_metrics import WorkerMetrics
from ludus.rl.worker_settings import ServeSettings
from ludus.runner import Job, Runner
from ludus.stats import RunSummary, summarize
from ludus.suspects import count_suspects, describe_suspects
from ludus.trackers import TrackerSet
from ludus.types import Group, Rollout, Task

FIRST_DELAY, LONGEST_DELAY = 0.25, 15.0
"""Seconds before a post is repeated; the delay doubles each time."""
UNSCORED_LIMIT = 25
"""The worker stops after this many groups in a row without any score."""
DEFAULT_TOKENS = 2048
"""The length of rows that the worker reports if no setting says it. Servers use it to weigh workers."""


class NothingScored(LudusError):
    """Group after group has no score: something that all rollouts need is broken."""


class SourcedGroup(Struct, frozen=True, kw_only=True):
    """What a source made under one number."""

    task: str
    groups: list[dict[str, Any]] = []
    """Wire groups, which are sent as they are. None: nothing is sent."""
    scores: list[float] = []
    reason: str = ""
    """Why nothing is sent."""
    message: str = ""


class WorkerSource(Protocol):
    """Makes groups in place of the rollouts of a batch."""

    @property
    def registration(self) -> dict[str, Any]:
        """What the worker says when it registers, beside the settings."""
        ...

    def name_group(self, number: int) -> str: ...

    async def make_group(self, number: int, row_tokens: int | None, ended: asyncio.Event) -> SourcedGroup | None:
        """The group of a number. None: there is none yet, and `ended` is set. Raises as `run_stored` does."""
        ...

    async def begin(self, place: WorkerPlace, row_tokens: int | None) -> None:
        """Called with each registration."""
        ...

    async def use_step(self, before: int, step: int) -> None:
        """Called when the trainer has taken steps."""
        ...

    async def evaluate(self, step: int) -> dict[str, float]:
        """Evaluate, and return the values."""
        ...


@dataclass(frozen=True)
class WorkerPlan:
    """What a worker runs."""

    batch: Batch
    runner: Runner
    settings: ServeSettings
    eval_tasks: tuple[Task, ...] = ()
    vocabulary: Vocabulary = Vocabulary()
    source: WorkerSource | None = None
    """Makes the groups in place of the batch's rollouts."""

    @property
    def most_groups(self) -> int:
        return max(1, self.runner.options.at_once // self.batch.group_size)

    @property
    def group_runner(self) -> Runner:
        """What a group is run with. It has no stop: a group that has begun is finished."""
        return replace(self.runner, options=replace(self.runner.options, drains=False))


class WorkerReport(Struct, frozen=True, kw_only=True):
    """How a worker ended."""

    finished: bool
    """The trainer has taken all its steps."""
    step: int
    verdicts: dict[str, int]
    """How many groups were sent, or not sent and why."""
    waiting: int
    """Groups that were begun and not ended. `--resume` goes on with them."""
    suspects: int = 0
    """Rollouts of this process whose verdict the agent may have changed."""


@dataclass(frozen=True)
class WorkerProgress:
    """What a worker shows while it runs."""

    step: int
    sent: int
    rejected: int
    running: int
    reward: float | None
    """The mean score of the last group."""
    suspects: int = 0


def plan_group(batch: Batch, number: int) -> list[Job]:
    """The jobs of the group with this number, counted from 0 over all epochs."""
    epoch, place = divmod(number, len(batch.tasks))
    order = list(range(len(batch.tasks)))
    random.Random(f"{batch.seed}/{epoch}").shuffle(order)
    seed = derive_seed(batch.seed, f"epoch {epoch}", -1)
    return plan_jobs(replace(batch, tasks=(batch.tasks[order[place]],), seed=seed))


def _list_registration(plan: WorkerPlan) -> dict[str, Any]:
    """What the worker says about itself when it registers."""
    settings = plan.settings
    return {
        "max_token_length": settings.row_tokens or plan.batch.policy.limits.context_tokens or DEFAULT_TOKENS,
        "desired_name": settings.name or plan.runner.env.name,
        "weight": settings.weight,
        "group_size": plan.batch.group_size,
        "min_batch_allocation": settings.min_batch_allocation,
        **(plan.source.registration if plan.source is not None else {}),
    }


class Worker:
    """Feeds one server until the trainer is done, a budget is spent, or it is asked to stop."""

    def __init__(
        self,
        plan: WorkerPlan,
        client: AtroposClient,
        trackers: TrackerSet,
        *,
        tell: Callable[[str], None],
        show: Callable[[WorkerProgress], None] = lambda progress: None,
    ) -> None:
        self._plan = plan
        self._trackers = trackers
        self._tell = tell
        self._show = show
        self._journal = WorkerJournal(plan.runner.store)
        self._metrics = WorkerMetrics(plan.settings.shown_rollouts, counts_tools=plan.source is None)
        self._link = ServerLink(client, _list_registration(plan), tell)
        self._rules = CreditRules(
            group_size=plan.batch.group_size,
            batch_size=-1,
            max_batches_offpolicy=plan.settings.max_batches_offpolicy,
            min_batch_allocation=plan.settings.min_batch_allocation,
            most=plan.most_groups,
        )
        self._row_tokens = plan.settings.row_tokens
        self._step = self._logged = 0
        self._running: set[int] = set()
        self._evaluating = False
        self._unscored = 0
        self._sent = self._rejected = self._suspects = 0
        self._finished = False
        self._failure: LudusError | None = None
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._tasks: asyncio.TaskGroup

    async def run(self) -> WorkerReport:
        """Serve until the end. The worker is then disconnected from the server.

        Raises:
            BudgetExhausted, ModelUnusable, NothingScored: the groups that ran were finished first.
            ConfigError: the server refuses the worker, or the settings do not fit the server.
        """
        try:
            with raise_first():
                async with asyncio.TaskGroup() as self._tasks:
                    await self._serve_until_ended()
        finally:
            self._log_metrics()
            await self._link.disconnect()
        if self._failure is not None:
            raise self._failure
        return WorkerReport(
            finished=self._finished,
            step=self._step,
            verdicts=self._journal.count_verdicts(),
            waiting=len(self._journal.list_open()),
            suspects=self._suspects,
        )

    async def _serve_until_ended(self) -> None:
        """Begin groups. When this returns, those that run are still finished and sent."""
        try:
            with self._plan.runner.options.control.watch(self._wake.set):
                while not self._is_ending:
                    began = time.monotonic()
                    await self._take_round()
                    self._metrics.add_duration("mainloop_timings", time.monotonic() - began)
                    await self._pause()
        finally:
            self._ended.set()
            self._link.registered.set()  # groups that wait to be sent go on

    async def _take_round(self) -> None:
        """Look at the server once, and do what follows from that."""
        if not self._link.registered.is_set():
            if await self._link.register():
                self._use_place()
                self._wake.set()
            return
        status = await self._link.look(self._step)
        if status is not None:
            self._use_status(status)

    @property
    def _is_ending(self) -> bool:
        return self._finished or self._failure is not None or self._plan.runner.options.is_stopping

    async def _pause(self) -> None:
        """Wait until something has happened, or it is time to look at the server."""
        if not self._is_ending:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._plan.settings.poll_seconds):
                    await self._wake.wait()
        self._wake.clear()

    def _use_place(self) -> None:
        """Take over what the server says about the run, and go on with what was begun before."""
        place, info, settings = self._link.place, self._link.info, self._plan.settings
        assert place is not None
        size = self._plan.batch.group_size
        if 0 < info.batch_size < size:
            raise ConfigError(
                f"env.group_size is {size}, but the trainer's batches have {info.batch_size} rows: use a smaller "
                "group, or a larger batch of the trainer"
            )
        allowed = [n for n in (settings.row_tokens, info.max_token_len - 1) if n is not None and n > 0]
        self._row_tokens = min(allowed, default=None)
        steps = settings.steps or (place.num_steps if place.num_steps > 0 else None)
        self._rules = msgspec.structs.replace(self._rules, batch_size=info.batch_size, steps=steps)
        self._step = place.starting_step
        if self._plan.source is not None:
            self._tasks.create_task(self._plan.source.begin(place, self._row_tokens))
        for number in self._journal.list_open():
            if number not in self._running:
                self._begin(number)
        for step in () if self._evaluating else self._journal.list_open_evals():
            self._begin_eval(step)

    # ---- groups ---------------------------------------------------------------------------------------------------

    def _use_status(self, status: ServerStatus) -> None:
        self._use_step(status.current_step)
        self._finished = is_finished(status, self._rules)
        if self._is_ending:
            return
        settings = self._plan.settings
        rules = self._rules = msgspec.structs.replace(self._rules, most=self._plan.most_groups)
        allowed = limit_for_eval(
            compute_credits(status, rules),
            settings.eval_handling,
            settings.eval_limit_ratio,
            evaluating=self._evaluating,
        )
        free = max(0, min(allowed, rules.most) - len(self._running))
        for _ in range(free):
            self._begin(self._journal.next_number)
        if free:
            self._metrics.add_duration("workers_added_per_attempt", free)

    def _begin(self, number: int) -> None:
        source = self._plan.source
        jobs = plan_group(self._plan.batch, number) if source is None else []
        if number >= self._journal.next_number:
            self._journal.begin(number, jobs[0].task.id if source is None else source.name_group(number), self._step)
        self._running.add(number)
        self._tasks.create_task(self._work(number, jobs))

    async def _work(self, number: int, jobs: list[Job]) -> None:
        began = time.monotonic()
        try:
            if self._plan.source is not None:
                await self._take_from(self._plan.source, number)
                return
            group = await self._run_jobs(jobs)
            self._metrics.add_group(group, time.monotonic() - began)
            self._suspects += (suspects := count_suspects(group.rollouts))
            failure = next((rollout.failure for rollout in group.rollouts if rollout.failure), None)
            why = describe_suspects(suspects, self._plan.runner.suspects) or "none"
            self._note_scores(bool(group.scored), failure.message if failure else why)
            await self._end(number, group)
        except (BudgetExhausted, ModelUnusable, NothingScored) as error:
            self._failure = self._failure or error
        finally:
            self._running.discard(number)
            self._wake.set()

    async def _run_jobs(self, jobs: list[Job]) -> Group:
        """Run the jobs of one group. What the store has of them is not run again."""
        found: dict[str, Rollout] = {}
        runner = self._plan.group_runner
        await run_stored(address_jobs(jobs, runner.env), runner, on_outcome=found.__setitem__)
        return make_group(jobs[0].task, found.values(), len(jobs))

    def _note_scores(self, scored: bool, failure: str) -> None:
        self._unscored = 0 if scored else self._unscored + 1
        if self._unscored >= UNSCORED_LIMIT:
            raise NothingScored(f"the last {UNSCORED_LIMIT} groups have no score at all. The last failure: {failure}")

    async def _take_from(self, source: WorkerSource, number: int) -> None:
        """Send what a source makes, or record why nothing is sent."""
        made = await source.make_group(number, self._row_tokens, self._ended)
        if made is None:
            return
        self._note_scores(bool(made.scores), made.message or made.reason)
        if made.groups:
            await self._send(number, made.task, made.groups)
        else:
            self._reject(number, made.reason, made.message)
        self._show_progress(made.scores)

    async def _end(self, number: int, group: Group) -> None:
        """Send a group, or drop it."""
        settings = self._plan.settings
        rules = GroupRules(
            row_tokens=self._row_tokens,
            too_long=settings.too_long,
            equal_scores=settings.equal_scores,
            partial=settings.partial,
            branches=settings.branches,
        )
        verdict = filter_group(group, rules, self._plan.vocabulary)
        if isinstance(verdict, DroppedGroup):
            self._reject(number, verdict.reason, verdict.message)
        else:
            for finding in verdict.findings:
                if finding.level == "fatal":
                    self._tell(f"task '{group.task.id}': a row was left out: {finding.message} [{finding.code}]")
            self._metrics.add_kept(verdict)
            version = self._journal.get_version(number)
            groups = build_wire_groups(verdict, version, messages=self._plan.settings.messages)
            await self._send(number, group.task.id, groups)
        self._show_progress([rollout.score.value for rollout in group.scored if rollout.score])

    def _show_progress(self, scores: list[float]) -> None:
        reward = sum(scores) / len(scores) if scores else None
        running = len(self._running) - 1
        self._show(WorkerProgress(self._step, self._sent, self._rejected, running, reward, self._suspects))

    def _reject(self, number: int, reason: str, message: str) -> None:
        self._journal.end(number, reason, message)
        self._metrics.add_rejected(reason)
        self._rejected += 1

    async def _send(self, number: int, task: str, groups: list[dict[str, Any]]) -> None:
        """Post a group until the server has accepted it. A worker that ends gives up after a while; the group is then
        sent when the run is resumed."""
        version, key = self._journal.get_version(number), self._journal.make_key(number)
        delay, deadline = FIRST_DELAY, None
        while True:
            await self._link.registered.wait()
            try:
                await self._link.post(groups, key)
            except ServerUnavailable as error:
                if deadline is None and self._ended.is_set():
                    deadline = time.monotonic() + self._plan.settings.drain_seconds
                if deadline is not None and time.monotonic() > deadline:
                    self._tell(f"a group could not be sent ({error}): it is sent with --resume")
                    return
                await self._wait_to_repeat(max(delay, error.retry_after))
                delay = min(2 * delay, LONGEST_DELAY)
            except ServerRefused as error:
                self._tell(f"the server refuses the group of task '{task}': {error}")
                self._reject(number, "refused", str(error))
                return
            else:
                self._journal.end(number, "sent")
                self._metrics.add_sent(max(0, self._step - version))
                self._sent += 1
                return

    async def _wait_to_repeat(self, seconds: float) -> None:
        """Wait, but not longer than until the worker begins to end."""
        if self._ended.is_set():
            await asyncio.sleep(min(seconds, 1.0))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    # ---- steps, evaluations and metrics ---------------------------------------------------------------------------

    def _use_step(self, step: int) -> None:
        if step == self._step:
            return
        before, self._step = self._step, step
        self._log_metrics()
        source = self._plan.source
        if source is not None:
            self._tasks.create_task(source.use_step(before, step))
        can_evaluate = source is not None or self._plan.eval_tasks
        if not has_crossed(before, step, self._plan.settings.eval_every) or not can_evaluate:
            return
        if self._evaluating:
            self._tell(f"step {step}: no evaluation, because the last one still runs")
        else:
            self._journal.begin_eval(step)
            self._begin_eval(step)

    def _log_metrics(self) -> None:
        self._logged = max(self._logged, self._step)  # it falls when the server was restarted
        self._trackers.log(self._metrics.take(self._row_tokens), self._logged)

    def _begin_eval(self, step: int) -> None:
        self._evaluating = True
        source = self._plan.source
        work = self._evaluate(step) if source is None else self._evaluate_source(source, step)
        self._tasks.create_task(work)

    async def _evaluate_source(self, source: WorkerSource, step: int) -> None:
        try:
            values = await source.evaluate(step)
        except (BudgetExhausted, ModelUnusable) as error:
            self._failure = self._failure or error
        else:
            self._journal.end_eval(step, values)
            self._trackers.log(values, max(step, self._logged))
        finally:
            self._evaluating = False
            self._wake.set()

    async def _evaluate(self, step: int) -> None:
        batch, settings, runner = self._plan.batch, self._plan.settings, self._plan.runner
        seed = derive_seed(batch.seed, f"evaluation {step}", -1)
        jobs = plan_jobs(replace(batch, tasks=self._plan.eval_tasks, group_size=settings.eval_size, seed=seed))
        found: dict[str, Rollout] = {}
        keyed = address_jobs(jobs, runner.env)
        try:
            await run_stored(keyed, runner, on_outcome=found.__setitem__)
        except (BudgetExhausted, ModelUnusable) as error:
            self._failure = self._failure or error
        finally:
            self._evaluating = False
            self._wake.set()
        if len(found) < len(keyed):
            return
        groups: dict[str, list[Rollout]] = {}
        for rollout in found.values():
            groups.setdefault(rollout.task.id, []).append(rollout)
        summary = summarize(make_group(each[0].task, each, settings.eval_size) for each in groups.values())
        values = _list_eval_values(summary)
        self._journal.end_eval(step, values)
        self._trackers.log(values, max(step, self._logged))


def _list_eval_values(summary: RunSummary) -> dict[str, float]:
    """The values of an evaluation. Without any score there is no mean."""
    overall = summary.overall
    values = {"eval/rollouts": float(overall.rollouts), "eval/failed": float(overall.rollouts - overall.scored)}
    if overall.mean is not None:
        values["eval/reward"] = overall.mean
    return values | {f"eval/pass_at_{each.k}": each.value for each in overall.pass_at}
