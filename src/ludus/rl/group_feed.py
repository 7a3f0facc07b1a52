"""Runs groups of rollouts ahead of the trainer, by no more than the staleness allows.

    allowed groups = (finished steps + 1 + staleness) × groups of a step

With a staleness of 0 these are exactly the groups of the next step, all sampled from the newest policy: on-policy. With
more, the next groups are sampled while the trainer is busy, and none of them is older than the staleness when it is
taken. A group that took so long that it is older is dropped and counted, and another one is begun.

Rollouts go through `run_stored`: what the store has is not run again. The name of the model contains the version of the
policy, and so does the content address of a rollout. After a kill, whole groups of the last versions that are in the
store and were not trained on yet are taken from there.
"""

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from ludus.agent import Policy
from ludus.env import Env
from ludus.errors import ModelError
from ludus.models import Model
from ludus.rollout import Job, RunOptions, derive_seed, make_group, make_group_jobs
from ludus.runner import address_jobs, run_stored
from ludus.sandbox.pool import Pool
from ludus.store import Store
from ludus.types import Completion, Group, Message, Rollout, Sampling, Task, ToolSpec


@dataclass(frozen=True)
class FeedPlan:
    """Which groups are run, and how far ahead."""

    tasks: tuple[Task, ...]
    groups: int
    """Of one step."""
    group_size: int
    staleness: int
    seed: int

    def choose_task(self, number: int) -> Task:
        """The task of a group. Every task comes once before any comes again, in an order that is drawn anew."""
        passes, place = divmod(number, len(self.tasks))
        order = list(range(len(self.tasks)))
        Random(f"{self.seed}/order/{passes}").shuffle(order)
        return self.tasks[order[place]]

    def make_jobs(self, number: int, policy: Policy) -> list[Job]:
        """The rollouts of a group. Their seeds differ from group to group, also for the same task."""
        seed = derive_seed(self.seed, f"group-{number}", 0)
        return make_group_jobs(self.choose_task(number), policy, self.group_size, seed)

    def count_allowed(self, steps: int) -> int:
        """How many groups may have been begun after so many steps."""
        return (steps + 1 + self.staleness) * self.groups


@dataclass(frozen=True)
class SampledGroup:
    """A finished group and the version of the policy that began it."""

    number: int
    version: int
    group: Group


@dataclass(frozen=True)
class RunParts:
    """What rollouts are run with."""

    env: Env
    pool: Pool | None
    store: Store
    options: RunOptions = RunOptions()
    on_rollout: Callable[[Rollout], None] = lambda _: None


class _PastModel:
    """The name of an earlier version, to find its rollouts in the store. It cannot sample."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def complete(self, messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Completion:
        raise ModelError(f"the weights of {self.name} are gone", retryable=False)

    async def close(self) -> None: ...


@dataclass
class _Version:
    """A version of the policy with its model, and how many groups use it."""

    number: int
    policy: Policy
    users: int = 0


NameVersion = Callable[[int], str]
"""The name of the model of a version."""


class GroupFeed:
    """Runs groups in the background. Use it as an async context manager: leaving it ends what runs."""

    def __init__(
        self, plan: FeedPlan, policy: Policy, parts: RunParts, name_version: NameVersion, consumed: Collection[int] = ()
    ) -> None:
        self._plan = plan
        self._policy = policy
        self._parts = parts
        self._name_version = name_version
        self._numbers = (number for number in itertools.count() if number not in consumed)
        self._begun = len(consumed)
        self._steps = 0
        self._current: _Version | None = None
        self._ready: list[SampledGroup] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._error: BaseException | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._background: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "GroupFeed":
        if self._parts.options.stop is not None:
            self._background.append(asyncio.create_task(self._watch_stop(self._parts.options.stop)))
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._running, *self._background]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._current is not None:
            await self._current.policy.model.close()
            self._current = None

    async def set_model(self, model: Model, version: int, steps: int) -> None:
        """Sample new groups from this model. `steps` is the number of finished steps."""
        before, self._steps = self._current, steps
        self._current = _Version(version, self._policy.use_model(model))
        if before is None:
            self._background.append(asyncio.create_task(self._produce()))
        elif not before.users:
            await before.policy.model.close()
        self._notify()

    def finish_step(self, steps: int) -> None:
        """A step is finished without new weights: more groups of the same version may begin."""
        self._steps = steps
        self._notify()

    @property
    def policy(self) -> Policy:
        """The newest policy."""
        assert self._current is not None
        return self._current.policy

    def replace(self, count: int) -> None:
        """So many groups could not be used: as many more may begin."""
        self._begun -= count
        self._notify()

    async def take(self, count: int | None = None) -> tuple[list[SampledGroup], list[SampledGroup]] | None:
        """Wait for the groups of one step, or for `count` groups. Returns them in order, and those that have become too
        old. None: the run is stopping, and there will be no more."""
        wanted = self._plan.groups if count is None else count
        stale: list[SampledGroup] = []
        while True:
            assert self._current is not None
            old = [g for g in self._ready if self._current.number - g.version > self._plan.staleness]
            if old:
                stale += old
                self._ready = [group for group in self._ready if group not in old]
                self.replace(len(old))
            if len(self._ready) >= wanted:
                ordered = sorted(self._ready, key=lambda group: group.number)
                taken, self._ready = ordered[:wanted], ordered[wanted:]
                return taken, stale
            if self._error is not None:
                raise self._error
            if self._parts.options.is_stopping and not self._running:
                return None
            await self._wait()

    def _notify(self) -> None:
        """Wake the tasks that wait for a change."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _wait(self) -> None:
        """Wait until a group ends, a step is finished or the run is stopping."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def _watch_stop(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._notify()

    # ---- producing ------------------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        """Begin groups as far as the staleness and the concurrency allow."""
        wide = max(1, self._parts.options.concurrency // self._plan.group_size)
        while self._error is None and not self._parts.options.is_stopping:
            assert self._current is not None
            if self._begun < self._plan.count_allowed(self._steps) and len(self._running) < wide:
                self._begun += 1
                task = asyncio.create_task(self._run_group(next(self._numbers), self._current))
                self._running.add(task)
                task.add_done_callback(self._end_group)
            else:
                await self._wait()

    def _end_group(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._error is None:
            self._error = error
        self._notify()

    async def _run_group(self, number: int, version: _Version) -> None:
        found = self._find_earlier(number, version.number)
        if found is not None:
            self._ready.append(found)
            return
        version.users += 1
        try:
            group = await self._run_jobs(self._plan.make_jobs(number, version.policy))
        finally:
            version.users -= 1
            if version is not self._current and not version.users:
                with suppress(Exception):
                    await version.policy.model.close()
        if len(group.rollouts) == self._plan.group_size:  # fewer: the run is stopping
            self._ready.append(SampledGroup(number, version.number, group))

    async def _run_jobs(self, jobs: Sequence[Job]) -> Group:
        parts = self._parts
        rollouts: dict[str, Rollout] = {}

        def on_outcome(key: str, rollout: Rollout) -> None:
            rollouts[key] = rollout
            parts.on_rollout(rollout)

        await run_stored(
            address_jobs(jobs, parts.env), parts.env, parts.pool, parts.store, parts.options, on_outcome=on_outcome
        )
        return make_group(jobs[0].task, rollouts.values(), len(jobs))

    def _find_earlier(self, number: int, version: int) -> SampledGroup | None:
        """A whole group in the store that an earlier process sampled from one of the last versions."""
        for age in range(1, min(self._plan.staleness, version) + 1):
            past = self._policy.use_model(_PastModel(self._name_version(version - age)))
            jobs = self._plan.make_jobs(number, past)
            found = (self._parts.store.get(key) for key in address_jobs(jobs, self._parts.env))
            scored = [rollout for rollout in found if rollout is not None and rollout.score is not None]
            if len(scored) == len(jobs):
                return SampledGroup(number, version - age, make_group(jobs[0].task, scored, len(jobs)))
        return None
