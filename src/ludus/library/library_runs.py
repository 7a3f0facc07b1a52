"""Runs tasks with libraries: the whole one, and the same without some of its skills.

Each library is a policy of its own, and equal tasks and replicates have equal seeds. Every rollout is found again by
its content address, so a measurement that was stopped goes on where it was. `budget.rollouts` limits all of them
together: where it does not reach, fewer pairs are run, of all tasks alike.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ludus.engine import list_addresses, run_stored
from ludus.library.readings import LibraryReading, TrialKey, read_rollout
from ludus.policy import Policy
from ludus.reflact.measure import Stopped, check_outage, make_job
from ludus.runner import Runner
from ludus.skill_library import SkillLibrary
from ludus.types import Failure, Rollout, Task

MOST_FAILED = 0.5
"""A stage of which more rollouts fail says nothing."""

OnDone = Callable[[str, int, int], None]
"""Called with the stage, and how many of its rollouts have ended."""


@dataclass(frozen=True)
class LibraryTrial:
    """A rollout with a library."""

    library: SkillLibrary
    key: TrialKey


@dataclass
class LibraryRuns:
    """Runs rollouts with libraries."""

    runner: Runner
    policy: Policy
    tasks: Mapping[str, Task]
    seed: int
    most: int | None
    """The maximum number of rollouts; None: no limit."""
    on_done: OnDone
    used: int = 0
    """How many rollouts were asked for so far."""

    @property
    def left(self) -> int | None:
        return None if self.most is None else max(0, self.most - self.used)

    async def run(self, trials: Sequence[LibraryTrial], stage: str) -> list[LibraryReading]:
        """What the rollouts say, in the order of the trials.

        Raises:
            Stopped: the run was asked to stop. What has ended is kept.
            Outage: most of them have failed.
        """
        agent = self.policy.agent and self.policy.agent.use_stage(stage)
        libraries = {id(trial.library): trial.library for trial in trials}
        policies = {at: dataclasses.replace(self.policy, library=each, agent=agent) for at, each in libraries.items()}
        jobs = [make_job(self.tasks[t.key.task], policies[id(t.library)], self.seed, t.key.replicate) for t in trials]
        addresses = list_addresses(jobs, self.runner.env)
        by_address = dict(zip(addresses, trials, strict=True))
        done: dict[str, LibraryReading] = {}
        failures: dict[str, Failure] = {}

        def on_outcome(address: str, rollout: Rollout) -> None:
            done[address] = read_rollout(rollout, by_address[address].library)
            failures.pop(address, None)
            if rollout.failure is not None:
                failures[address] = rollout.failure
            self.on_done(stage, len(done), len(by_address))

        await run_stored(dict(zip(addresses, jobs, strict=True)), self.runner, on_outcome=on_outcome)
        if len(done) < len(by_address):
            raise Stopped("the run was asked to stop")
        check_outage(list(failures.values()), len(by_address), stage, MOST_FAILED)
        self.used += len(by_address)
        return [done[address] for address in addresses]

    async def run_arms(
        self, arms: Mapping[str, tuple[SkillLibrary, Sequence[TrialKey]]], stage: str
    ) -> dict[str, dict[TrialKey, LibraryReading]]:
        """Several libraries, each on its own rollouts, side by side. They share what is left of the budget."""
        shares = share_budget({name: len(keys) for name, (_, keys) in arms.items()}, self.left)
        trials = [
            (name, LibraryTrial(library, key))
            for name, (library, keys) in arms.items()
            for key in thin_out(keys, shares[name])
        ]
        readings = await self.run([trial for _, trial in trials], stage)
        found: dict[str, dict[TrialKey, LibraryReading]] = {name: {} for name in arms}
        for (name, trial), reading in zip(trials, readings, strict=True):
            found[name][trial.key] = reading
        return found


def thin_out(keys: Iterable[TrialKey], most: int) -> list[TrialKey]:
    """At most so many: the first rollout of every task, then the second, and so on."""
    return sorted(keys, key=lambda key: (key.replicate, key.task))[:most]


def share_budget(wanted: Mapping[str, int], left: int | None) -> dict[str, int]:
    """How many rollouts each arm gets: all it needs, or an equal share of what is left."""
    if left is None or sum(wanted.values()) <= left:
        return dict(wanted)
    given: dict[str, int] = {}
    for place, name in enumerate(sorted(wanted, key=lambda name: wanted[name])):
        given[name] = min(wanted[name], left // (len(wanted) - place))
        left -= given[name]
    return given
