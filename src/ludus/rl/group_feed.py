"""Runs groups of rollouts ahead of the trainer, by no more than the staleness allows.

    allowed groups = (finished steps + 1 + staleness) × groups of a step

With a staleness of 0 these are exactly the groups of the next step, all sampled from the newest policy: on-policy. With
more, the next groups are sampled while the trainer is busy, and none of them is older than the staleness when it is
taken. No group is dropped for its age, because then slow tasks would hardly ever be learned from: a step waits for the
groups that later steps could not take in time, and takes the oldest first. The limit above makes sure that all fit in.

Rollouts go through `run_stored`: what the store has is not run again. The name of the model contains the version of the
policy, and so does the content address of a rollout. After a kill, whole groups of the last versions that are in the
store and were not trained on yet are taken from there.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from random import Random

from ludus.engine import address_jobs, derive_seed, make_group, make_group_jobs, run_stored
from ludus.models import Model
from ludus.models.no_model import NoModel
from ludus.policy import Policy
from ludus.runner import Job, Runner
from ludus.suspects import weigh_suspects
from ludus.types import Group, Rollout, Task


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
        """The task of a group. Every task comes once before any comes again, in an order that is sampled anew."""
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


def fits_later_steps(ages: Iterable[int], staleness: int, groups: int) -> bool:
    """Whether groups of these ages can wait for the steps after the next one, each of which takes `groups`, so that
    none is older than the staleness when it is taken."""
    waiting = Counter(staleness - age for age in ages)
    """How many must be taken within so many later steps."""
    due = 0
    for steps in range(min(waiting, default=0), max(waiting, default=0) + 1):
        due += waiting[steps]
        if due > max(0, steps) * groups:
            return False
    return True


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
        self,
        plan: FeedPlan,
        policy: Policy,
        runner: Runner,
        name_version: NameVersion,
        consumed: Collection[int] = (),
        on_rollout: Callable[[Rollout], None] = lambda _: None,
    ) -> None:
        self._plan = plan
        self._policy = policy
        self._runner = runner
        self._on_rollout = on_rollout
        self._name_version = name_version
        self._numbers = (number for number in itertools.count() if number not in consumed)
        self._begun = len(consumed)
        self._steps = 0
        self._current: _Version | None = None
        self._ready: list[SampledGroup] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._error: BaseException | None = None
        self._running: dict[asyncio.Task[None], _Version] = {}
        self._background: list[asyncio.Task[None]] = []
        self._watching = ExitStack()

    async def __aenter__(self) -> "GroupFeed":
        self._watching.enter_context(self._runner.options.control.watch(self._notify))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watching.close()
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

    async def take(self, count: int | None = None) -> list[SampledGroup] | None:
        """Wait for the groups of one step, or for `count` groups. Returns the oldest ones in order. None: the run is
        stopping, and there will be no more."""
        wanted = self._plan.groups if count is None else count
        while True:
            ordered = sorted(self._ready, key=lambda group: (group.version, group.number))
            taken, left = ordered[:wanted], ordered[wanted:]
            if len(taken) == wanted and (not self._running or self._fits_later(left)):
                self._ready = left
                return sorted(taken, key=lambda group: group.number)
            if self._error is not None:
                raise self._error
            if self._runner.options.is_stopping and not self._running:
                return None
            await self._wait()

    def _fits_later(self, left: Sequence[SampledGroup]) -> bool:
        """Whether later steps can take the groups that run and those that are left over, before they are too old."""
        assert self._current is not None
        versions = [*(version.number for version in self._running.values()), *(group.version for group in left)]
        ages = [self._current.number - version for version in versions]
        return fits_later_steps(ages, self._plan.staleness, self._plan.groups)

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

    # ---- producing ------------------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        """Begin groups as far as the staleness and the concurrency allow."""
        while self._error is None and not self._runner.options.is_stopping:
            assert self._current is not None
            if self._begun < self._plan.count_allowed(self._steps) and self._has_room:
                self._begun += 1
                task = asyncio.create_task(self._run_group(next(self._numbers), self._current))
                self._running[task] = self._current
                task.add_done_callback(self._end_group)
            else:
                await self._wait()

    @property
    def _has_room(self) -> bool:
        options = self._runner.options
        return not options.control.paused and len(self._running) < max(1, options.at_once // self._plan.group_size)

    def _end_group(self, task: "asyncio.Task[None]") -> None:
        self._running.pop(task, None)
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
        rollouts: dict[str, Rollout] = {}

        def on_outcome(key: str, rollout: Rollout) -> None:
            rollouts[key] = rollout
            self._on_rollout(rollout)

        await run_stored(address_jobs(jobs, self._runner.env), self._runner, on_outcome=on_outcome)
        return make_group(jobs[0].task, rollouts.values(), len(jobs))

    def _find_earlier(self, number: int, version: int) -> SampledGroup | None:
        """A whole group in the store that an earlier process sampled from one of the last versions."""
        for age in range(1, min(self._plan.staleness, version) + 1):
            name = self._name_version(version - age)
            past = self._policy.use_model(NoModel(name, f"the weights of {name} are gone"))
            jobs = self._plan.make_jobs(number, past)
            found = (self._runner.store.get(key) for key in address_jobs(jobs, self._runner.env))
            scored = [rollout for rollout in found if rollout is not None and rollout.score is not None]
            if len(scored) == len(jobs):
                group = weigh_suspects(make_group(jobs[0].task, scored, len(jobs)), self._runner.suspects)
                return SampledGroup(number, version - age, group)
        return None
