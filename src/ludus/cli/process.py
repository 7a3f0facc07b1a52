"""`ludus process`: run a batch and write groups of scored rollouts, with training rows where tokens are exact."""

from ludus.batch import Batch, OnRollout, ProcessReport, process
from ludus.cli.batch_run import run_command
from ludus.cli.command import FILE_TAKES, RUN_SETTINGS, Command, RunArguments
from ludus.cli.common import print_notice
from ludus.cli.file_envs import is_file_run, run_file
from ludus.cli.token_rows import make_row_fields
from ludus.rollout import RunOptions
from ludus.sandbox.pool import Pool
from ludus.store import RunDir


def run(arguments: RunArguments) -> int:
    if is_file_run(arguments):
        return run_file(arguments)
    return run_command(arguments, _process)


async def _process(
    batch: Batch, pool: Pool | None, run: RunDir, options: RunOptions, *, on_rollout: OnRollout
) -> ProcessReport:
    make_fields = make_row_fields(batch.policy.model, print_notice)
    return await process(batch, pool, run, options, on_rollout=on_rollout, more=make_fields)


COMMAND = Command(
    run,
    "ludus process terminal-test --env.group_size 4 --out runs/first\nludus process --resume --out runs/first",
    FILE_TAKES,
    RunArguments,
    RUN_SETTINGS,
)
