"""Run a file of prompts, and derive what comes out of it: in the order of the file, one rollout at a time.

PromptBatch.list_jobs ──> engine ──> store ──> read_rollouts ──> filter ──> shards
                                                             └──> statistics
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from ludus.batch import Batch, plan_jobs
from ludus.batch_settings import BatchSettings
from ludus.encoding import to_json
from ludus.engine import OnOutcome, compute_outcome_key, run_streamed
from ludus.env import Env
from ludus.runner import Job, Runner
from ludus.store import RunDir
from ludus.trajectories.filters import TrajectoryFilter
from ludus.trajectories.prompt_rows import PromptFile
from ludus.trajectories.shards import Shard, make_row, write_shards
from ludus.trajectories.statistics import STATISTICS, BatchStatistics, StatisticsCounter
from ludus.types import JsonObject, Rollout, ToolSpec

FindTools = Callable[[Rollout], Sequence[ToolSpec]]
"""Finds the definitions of the tools that a rollout was offered."""


@dataclass(frozen=True)
class PromptBatch:
    """A file of prompts, and how each of them is run."""

    file: PromptFile
    batch: Batch
    """Policy, seed, rollouts of each prompt and distribution. Its tasks are those of the file."""
    split: str = "train"

    def __len__(self) -> int:
        """The number of rollouts."""
        return len(self.file) * self.batch.group_size

    def list_jobs(self) -> Iterator[Job]:
        """The jobs of all rows. The toolsets of a row are drawn by its id: they do not depend on its place."""
        for task in self.file.read_tasks():
            yield from plan_jobs(replace(self.batch, tasks=(msgspec.structs.replace(task, split=self.split),)))

    async def run(self, runner: Runner, on_outcome: OnOutcome) -> None:
        """Run what the store does not have: see `run_streamed`."""
        await run_streamed(self.list_jobs, runner, on_outcome=on_outcome)

    def read_rollouts(self, env: Env, directory: RunDir) -> Iterator[Rollout]:
        """What has ended, as the store has it, in the order of the file."""
        for job in self.list_jobs():
            rollout = directory.get(compute_outcome_key(job, env))
            if rollout is not None:
                yield rollout


@dataclass(frozen=True)
class BatchOutput:
    """What was made of the store of a batch."""

    statistics: BatchStatistics
    shards: Sequence[Shard]


def write_output(
    batch: PromptBatch, env: Env, directory: RunDir, settings: BatchSettings, find_tools: FindTools
) -> BatchOutput:
    """Write the shards and the statistics of a run, in place of those that it has."""
    counter, chosen = StatisticsCounter(), TrajectoryFilter(settings)

    def list_rows() -> Iterator[JsonObject]:
        for rollout in batch.read_rollouts(env, directory):
            counter.add(rollout)
            if chosen.admit(rollout):
                yield make_row(rollout, find_tools(rollout))

    shards = write_shards(directory, list_rows(), settings)
    file = batch.file
    statistics = BatchStatistics(
        rows=len(batch),
        bad_rows=file.bad.count,
        repeated_rows=file.repeated.count,
        rollouts=counter.rollouts,
        written=sum(shard.rows for shard in shards),
        dropped=dict(chosen.dropped.most_common()),
        failures=dict(counter.failures.most_common()),
        checked=counter.checked,
        passed=counter.passed,
        mean=counter.total / counter.checked if counter.checked else None,
        tools=counter.list_tools(),
        reasoning=counter.reasoning,
        toolsets=dict(counter.toolsets.most_common()),
        stops=dict(counter.stops.most_common()),
        usage=counter.usage,
        left_over=directory.measure_scores()[0] - counter.rollouts,
    )
    directory.write(STATISTICS, msgspec.json.format(to_json(statistics), indent=2) + b"\n")
    return BatchOutput(statistics, shards)
