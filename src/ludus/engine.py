"""Run many jobs, and store their outcomes. What the store has already is not run again.

    jobs ──> content addresses ──> what is missing ──> engine ──> store ──> on_outcome

Every command runs its rollouts through `run_stored`, or through `run_streamed` if its jobs are too many to hold. The
content address of a job (`compute_outcome_key`) covers everything that decides its outcome, so resuming is running the
same jobs again. A failure is not a result: the job is run again. A rollout is in the store before `on_outcome` is
called with it, so a process that is killed loses only the rollouts that had not ended.

The engine of the runner decides where jobs run. `fan_out` is the only place in this process that runs rollouts side by
side: as many as the run's control says at the moment. The pool limits slots, the model client limits requests, and the
ledger limits money.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ludus.activity import enter_phase
from ludus.encoding import canonical, to_json
from ludus.env import Env
from ludus.errors import BudgetExhausted, ConfigError, LudusError, ModelUnusable, describe_bug, raise_first
from ludus.judging import Judge
from ludus.policy import Policy, Together
from ludus.rollout import judge_again, run_retrying
from ludus.runner import Job, NodeFacts, Record, RunEngine, Runner, RunOptions
from ludus.stats import explain_failed_share
from ludus.store import Store
from ludus.suspects import weigh_suspect
from ludus.types import Group, Rollout, StopReason, Task

OnOutcome = Callable[[str, Rollout], None]
"""Called with the content address of an outcome and the rollout."""


def compute_outcome_key(job: Job, env: Env) -> str:
    """The content address of a job's outcome: equal exactly when the same rollout would be run again."""
    return _Addresses(env).compute(job.task, job.replicate, job.seed, job.policy.fingerprint)


def compute_rollout_key(rollout: Rollout, env: Env) -> str:
    """The content address of a stored rollout as an outcome of `env`: that of the job that would run it again."""
    origin = rollout.provenance
    return _Addresses(env).compute(rollout.task, origin.replicate, origin.seed, origin.policy)


class _Addresses:
    """Content addresses of the outcomes of one environment: hashes of the canonical JSON of `[name, version, env, task,
    replicate, seed, policy]`. What a job shares with the one before it is not written again: a run may have a million
    of them."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._opening: bytes = b""
        self._task: Task | None = None
        self._begun = hashlib.sha256()

    def compute(self, task: Task, replicate: int, seed: int, policy: str) -> str:
        try:
            if task is not self._task:
                self._begin(task)
            digest = self._begun.copy()
            digest.update(to_json((replicate, seed, policy))[1:])
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"env {self._env.name}, task '{task.id}': options and tasks must be plain JSON values so that outcomes "
                f"can be found again ({error})"
            ) from error
        return digest.hexdigest()[:32]

    def _begin(self, task: Task) -> None:
        env = self._env
        self._opening = self._opening or canonical((env.name, env.version, env))[:-1]
        self._begun = hashlib.sha256(b"%b,%b," % (self._opening, canonical(task)))
        self._task = task


def list_addresses(jobs: Iterable[Job], env: Env) -> list[str]:
    """The content addresses of jobs, in their order."""
    addresses = _Addresses(env)
    return [addresses.compute(job.task, job.replicate, job.seed, job.policy.fingerprint) for job in jobs]


def address_jobs(jobs: Iterable[Job], env: Env) -> dict[str, Job]:
    """The jobs by content address, in their order. Jobs with one address are one job."""
    jobs = list(jobs)
    return dict(zip(list_addresses(jobs, env), jobs, strict=True))


def find_missing(jobs: Mapping[str, Job], store: Store, *, groups: bool = False) -> dict[str, Job]:
    """The jobs that have no result in the store. Reads no rollout. With `groups`, a group is missing as a whole."""
    return select_missing(jobs, store.list_done(), groups=groups)


def select_missing(jobs: Mapping[str, Job], done: Collection[str], *, groups: bool = False) -> dict[str, Job]:
    """The jobs that are not among the results of a store. With `groups`, a group is missing as a whole."""
    missing = {key: job for key, job in jobs.items() if key not in done}
    if not groups:
        return missing
    unscored = {_name_group(job) for job in missing.values()}
    return {key: job for key, job in jobs.items() if _name_group(job) in unscored}


async def run_stored(jobs: Mapping[str, Job], runner: Runner, *, on_outcome: OnOutcome, read_back: bool = True) -> None:
    """Run the jobs that have no result in the store, and put each outcome there when it ends.

    `jobs` are by content address, as `address_jobs` returns them. With `read_back`, `on_outcome` is called with every
    outcome as the store has it: first with those that are found, then with each new one, masked and decoded, so that
    a caller sees the same values now and after a resume. Suspects are then weighed by `runner.suspects`: those who read
    outcomes back train on them. Without it, found outcomes are not read and new ones are
    passed as they were made. This is faster, and no outcome has to stay in memory.

    A stop of the run's control drains and returns. What the control asks for again (`RunControl.requeue`) is run again
    if it is among these jobs and has no score; `on_outcome` is then called with it once more.

    Raises:
        BudgetExhausted: a budget is spent. What was under way is finished and stored.
        ModelUnusable: no request to the model can succeed. What was under way is finished as far as it can be.
        Exception: an unusable store, wrong settings or a bug in `on_outcome`, as itself and not in a group. What was
            under way is cancelled.
    """
    store = runner.store
    missing: dict[str, Job] = {}
    if runner.env.judges_groups or not read_back:
        missing = find_missing(jobs, store, groups=runner.env.judges_groups)
    if read_back:
        rest = {key: job for key, job in jobs.items() if key not in missing}
        missing |= _read_found(rest, runner, on_outcome)
    await run_missing(missing, runner, on_outcome=on_outcome, read_back=read_back)


async def run_missing(
    missing: Mapping[str, Job], runner: Runner, *, on_outcome: OnOutcome, read_back: bool = False
) -> None:
    """Run jobs that are known to have no score in the store, as `run_stored` does."""
    store, options = runner.store, runner.options
    keys = {id(job): key for key, job in missing.items()}

    def record(job: Job, rollout: Rollout) -> None:
        key = keys[id(job)]
        stored = _store_outcome(store, key, rollout, read_back=read_back)
        _count_outcome(key, stored, runner)
        on_outcome(key, weigh_suspect(stored, runner.suspects) if read_back else stored)

    def list_jobs() -> Iterator[Job]:
        for job in missing.values():
            if options.is_stopping:
                return
            yield job

    with raise_first():
        await run_many(list_jobs(), runner, record)
        while (again := _take_requeued(missing, runner)) and not options.is_stopping:
            await run_many(again.values(), runner, record)


async def run_streamed(list_jobs: Callable[[], Iterable[Job]], runner: Runner, *, on_outcome: OnOutcome) -> None:
    """Run the jobs that have no result in the store, for jobs that are too many to hold: each is taken when a rollout
    can begin, and forgotten when it has ended. Otherwise as `run_stored` without `read_back`. No two jobs may have one
    address. `list_jobs` is called again if jobs are asked for again."""
    store, control = runner.store, runner.options.control
    done, keys = store.list_done(), dict[int, str]()

    def choose_jobs(is_wanted: Callable[[str], bool]) -> Iterator[Job]:
        for job in list_jobs():
            if control.is_stopping:
                return
            key = compute_outcome_key(job, runner.env)
            if is_wanted(key):
                keys[id(job)] = key
                yield job

    def record(job: Job, rollout: Rollout) -> None:
        key = keys.pop(id(job))
        stored = _store_outcome(store, key, rollout, read_back=False)
        _count_outcome(key, stored, runner)
        on_outcome(key, stored)

    with raise_first():
        await run_many(choose_jobs(lambda key: key not in done), runner, record)
        while (again := frozenset(control.take_requeued(control.requeued))) and not control.is_stopping:
            await run_many(choose_jobs(again.__contains__), runner, record)


def _store_outcome(store: Store, key: str, rollout: Rollout, *, read_back: bool) -> Rollout:
    """Put an outcome into the store. Returns it as it was made; with `read_back`, as the store has it."""

    def put(rollout: Rollout) -> Rollout:
        if read_back:
            return store.keep(key, rollout)
        store.put(key, rollout)
        return rollout

    try:
        return put(rollout)
    except LudusError:
        raise
    except Exception as error:  # it cannot be written as JSON: its conversation is dropped, the run goes on
        return put(drop_content(rollout, error))


def _count_outcome(key: str, rollout: Rollout, runner: Runner) -> None:
    """Count an outcome, tell who wants to know, and drain the run if too many have no score."""
    if runner.on_rollout is not None:
        runner.on_rollout(key, rollout)
    board, options = runner.activity, runner.options
    board.count_outcome(rollout.failure.boundary if rollout.failure else "")
    if rollout.failure is not None and (why := explain_failed_share(board.ended, board.lost, options.failed_share)):
        options.control.stop(why, failing=True)


def drop_content(rollout: Rollout, error: Exception) -> Rollout:
    """A failed rollout without what the agent and the verifier wrote."""
    return Rollout(
        task=rollout.task,
        provenance=rollout.provenance,
        stop=StopReason.FAILED,
        failure=describe_bug(error),
        seconds=rollout.seconds,
    )


def _read_found(jobs: Mapping[str, Job], runner: Runner, on_outcome: OnOutcome) -> dict[str, Job]:
    """Call `on_outcome` with each scored outcome in the store. Returns the jobs that have none."""
    missing: dict[str, Job] = {}
    for key, job in jobs.items():
        found = runner.store.get(key)
        if found is not None and found.score is not None:
            on_outcome(key, weigh_suspect(found, runner.suspects))
        else:
            missing[key] = job
    return missing


def _take_requeued(jobs: Mapping[str, Job], runner: Runner) -> dict[str, Job]:
    """The jobs that were asked for again. A group that is judged as a whole is run as a whole."""
    taken = runner.options.control.take_requeued(jobs)
    if not runner.env.judges_groups:
        return {key: jobs[key] for key in taken}
    groups = {_name_group(jobs[key]) for key in taken}
    return {key: job for key, job in jobs.items() if _name_group(job) in groups}


# ---- engines ------------------------------------------------------------------------------------------------------


class LocalEngine:
    """Runs jobs in this process."""

    def list_nodes(self) -> tuple[NodeFacts, ...]:
        return ()

    async def run(self, jobs: Iterable[Job], runner: Runner, record: Record) -> None:
        async def work(unit: Sequence[Job]) -> None:
            for job, rollout in zip(unit, await run_unit(unit, runner), strict=True):
                record(job, rollout)

        units: Iterable[Sequence[Job]] = ((job,) for job in jobs)
        width = 1
        if runner.env.judges_groups:
            units = groups = list_groups(jobs)
            width = max(map(len, groups), default=1)
        await fan_out(units, work, runner.options, width=width)


U = TypeVar("U")


async def fan_out(
    units: Iterable[U], work: Callable[[U], Awaitable[None]], options: RunOptions, *, width: int = 1
) -> None:
    """Do the work of all units, begun in their order, side by side as far as the options and their control allow at the
    moment. `width`: how many rollouts a unit is.

    Raises:
        BudgetExhausted: what was under way is finished. ModelUnusable: the same.
    """
    fan = _Fan(options, width)
    queue = iter(units)
    async with asyncio.TaskGroup() as group:
        with options.control.watch(fan.changed.set):
            while await fan.has_room():
                unit = next(queue, None)
                if unit is None:
                    break
                fan.running += 1
                group.create_task(fan.do(work, unit))
    if fan.stopped:
        raise fan.stopped[0]


class _Fan:
    """Work that is done side by side."""

    def __init__(self, options: RunOptions, width: int) -> None:
        self._options = options
        self._width = width
        self.running = 0
        self.stopped: list[LudusError] = []
        self.changed = asyncio.Event()

    @property
    def is_ending(self) -> bool:
        return bool(self.stopped) or self._options.is_stopping

    async def has_room(self) -> bool:
        """Wait until one more may start. False: none may any more."""
        options = self._options
        while not self.is_ending:
            if not options.control.paused and self.running < max(1, options.at_once // self._width):
                return True
            self.changed.clear()
            await self.changed.wait()
        return False

    async def do(self, work: Callable[[U], Awaitable[None]], unit: U) -> None:
        try:
            if not self.is_ending:  # one that was to begin at the same moment may have ended it
                await work(unit)
        except (BudgetExhausted, ModelUnusable) as error:
            self.stopped.append(error)
        finally:
            self.running -= 1
            self.changed.set()


def list_groups(jobs: Iterable[Job]) -> list[list[Job]]:
    """The jobs of each task and policy, in their order."""
    groups: dict[tuple[str, str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault(_name_group(job), []).append(job)
    return list(groups.values())


def _name_group(job: Job) -> tuple[str, str, str]:
    return job.task.split, job.task.id, job.policy.fingerprint


async def run_unit(jobs: Sequence[Job], runner: Runner) -> Sequence[Rollout]:
    """Run one rollout, or those that are judged together, all at once. An error that stops the run ends the group
    without an outcome: it is run again by a resumed run."""
    if jobs[0].acted is not None:
        return [await judge_again(job, runner) for job in jobs]
    if len(jobs) == 1:
        return [await run_retrying(jobs[0], runner)]
    together = Together(len(jobs))
    running = (run_retrying(replace(job, together=together), runner) for job in jobs)
    ended = await asyncio.gather(*running, return_exceptions=True)
    rollouts = [each for each in ended if isinstance(each, Rollout)]
    for each in ended:
        if isinstance(each, BaseException):
            raise each
    with runner.activity.follow(f"the group of {jobs[0].task.id}"), enter_phase("verify"):
        return await Judge(runner, jobs[0].policy.limits).judge_group(rollouts)


LOCAL: RunEngine = LocalEngine()


async def run_many(jobs: Iterable[Job], runner: Runner, record: Record) -> None:
    """Run jobs with the runner's engine. `record` is called with each job and its rollout: see `RunEngine.run`."""
    await (runner.engine or LOCAL).run(jobs, runner, record)


# ---- groups -------------------------------------------------------------------------------------------------------


async def run_group(task: Task, policy: Policy, runner: Runner, *, size: int, seed: int = 0) -> Group:
    """All rollouts of one task, side by side. Nothing is stored."""
    rollouts: list[Rollout] = []
    runner = replace(runner, options=replace(runner.options, concurrency=size))
    await run_many(make_group_jobs(task, policy, size, seed), runner, lambda _, rollout: rollouts.append(rollout))
    return make_group(task, rollouts, size)


def make_group_jobs(task: Task, policy: Policy, size: int, seed: int) -> list[Job]:
    return [Job(task, policy, r, derive_seed(seed, task.id, r)) for r in range(size)]


def make_group(task: Task, rollouts: Iterable[Rollout], size: int) -> Group:
    ordered = sorted(rollouts, key=lambda r: r.provenance.replicate)
    return Group(task=task, rollouts=tuple(ordered), size=size)


def derive_seed(seed: int, task_id: str, replicate: int) -> int:
    """The seed of one rollout. It differs between rollouts and is the same in every process."""
    digest = hashlib.sha256(f"{seed}/{task_id}/{replicate}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
