"""Run jobs and store their outcomes. What the store has already is not run again.

    jobs ──> content addresses ──> what is missing ──> run_many ──> store ──> on_outcome

`evaluate`, `process` and `train` all run rollouts through `run_stored`. The content address of a job
(`compute_outcome_key`) covers everything that decides its outcome, so resuming is running the same jobs again. An
outcome without a score is a failure, not a result: the job is run again. A rollout is in the store before `on_outcome`
is called with it, so a process that is killed loses only the rollouts that had not ended.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from ludus.env import Env
from ludus.errors import ConfigError, LudusError, describe_bug, raise_first
from ludus.rollout import Job, RunOptions, run_many
from ludus.sandbox.file_tree import CollectedFiles
from ludus.sandbox.pool import Pool
from ludus.store import Store
from ludus.types import Rollout, StopReason, Task, canonical

OnOutcome = Callable[[str, Rollout], None]
"""Called with the content address of an outcome and the rollout."""


def compute_outcome_key(job: Job, env: Env) -> str:
    """The content address of a job's outcome: equal exactly when the same rollout would be run again."""
    return _hash_outcome(env, job.task, job.replicate, job.seed, job.policy.fingerprint)


def compute_rollout_key(rollout: Rollout, env: Env) -> str:
    """The content address of a stored rollout as an outcome of `env`: that of the job that would run it again."""
    origin = rollout.provenance
    return _hash_outcome(env, rollout.task, origin.replicate, origin.seed, origin.policy)


def _hash_outcome(env: Env, task: Task, replicate: int, seed: int, policy: str) -> str:
    try:
        data = canonical((env.name, env.version, env, task, replicate, seed, policy))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"env {env.name}, task '{task.id}': options and tasks must be plain JSON values so that outcomes "
            f"can be found again ({error})"
        ) from error
    return hashlib.sha256(data).hexdigest()[:32]


def address_jobs(jobs: Iterable[Job], env: Env) -> dict[str, Job]:
    """The jobs by content address, in their order. Jobs with one address are one job."""
    return {compute_outcome_key(job, env): job for job in jobs}


def find_missing(jobs: Mapping[str, Job], store: Store) -> dict[str, Job]:
    """The jobs that have no score in the store. Reads no rollout."""
    scores = store.read_scores()
    return {key: job for key, job in jobs.items() if scores.get(key) is None}


async def run_stored(
    jobs: Mapping[str, Job],
    env: Env,
    pool: Pool | None,
    store: Store,
    options: RunOptions = RunOptions(),
    *,
    on_outcome: OnOutcome,
    read_back: bool = True,
) -> None:
    """Run the jobs that have no score in the store, and put each outcome there when it ends.

    `jobs` are by content address, as `address_jobs` returns them. With `read_back`, `on_outcome` is called with every
    outcome as the store has it: first with those that are found, then with each new one, masked and decoded, so that
    a caller sees the same values now and after a resume. Without it, found outcomes are not read and new ones are
    passed as they were made. This is faster, and no outcome has to stay in memory.

    Setting `options.stop` drains and returns.

    Raises:
        BudgetExhausted: a budget is spent. What was under way is finished and stored.
        ModelUnusable: no request to the model can succeed. What was under way is finished as far as it can be.
        Exception: an unusable store, wrong settings or a bug in `on_outcome`, as itself and not in a group. What was
            under way is cancelled.
    """
    missing = _read_found(jobs, store, on_outcome) if read_back else find_missing(jobs, store)
    keys = {id(job): key for key, job in missing.items()}

    def record(job: Job, rollout: Rollout) -> None:
        key = keys[id(job)]
        try:
            stored = store_outcome(key, rollout)
        except LudusError:
            raise
        except Exception as error:  # it cannot be written as JSON: its conversation is dropped, the run goes on
            stored = store_outcome(key, _drop_content(rollout, error))
        on_outcome(key, stored)

    def store_outcome(key: str, rollout: Rollout) -> Rollout:
        if read_back:
            return store.keep(key, rollout)
        store.put(key, rollout)
        return rollout

    def keep_files(files: CollectedFiles) -> str:
        return store.keep_files(files, options.keep_files)

    def draw_jobs() -> Iterator[Job]:
        for job in missing.values():
            if options.is_stopping:
                return
            yield job

    workers = min(options.concurrency, len(missing))
    with raise_first():
        options = replace(options, concurrency=workers)
        await run_many(draw_jobs(), env, pool, options, record=record, keep_files=keep_files)


def _drop_content(rollout: Rollout, error: Exception) -> Rollout:
    """A failed rollout without what the agent and the verifier wrote."""
    return Rollout(
        task=rollout.task,
        provenance=rollout.provenance,
        stop=StopReason.FAILED,
        failure=describe_bug(error),
        seconds=rollout.seconds,
    )


def _read_found(jobs: Mapping[str, Job], store: Store, on_outcome: OnOutcome) -> dict[str, Job]:
    """Call `on_outcome` with each scored outcome in the store. Returns the jobs that have none."""
    missing: dict[str, Job] = {}
    for key, job in jobs.items():
        found = store.get(key)
        if found is not None and found.score is not None:
            on_outcome(key, found)
        else:
            missing[key] = job
    return missing
