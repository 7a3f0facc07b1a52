"""`ludus serve`: feed groups of scored rollouts to a trajectory server.

The command runs until the trainer is done, a budget is spent, or Ctrl-C (or SIGTERM). The first one drains: groups that
run are finished and sent. The second drops what runs. Everything that has ended is in the run directory, and
`--resume` goes on: finished groups that the server had not accepted are sent, and nothing is sent twice to a server
that honours idempotency keys.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ludus.batch import Batch, load_tasks
from ludus.cli.acting_envs import redirect_prints
from ludus.cli.batch_run import open_batch
from ludus.cli.command import FILE_TAKES, Command, RunArguments, make_argument
from ludus.cli.common import (
    RunReport,
    choose_exit_code,
    count_bugs,
    open_ledger,
    open_run,
    print_model_hint,
    print_notice,
    print_report,
    read_settings,
    require_env,
    run_to_end,
    set_out,
    write_spent,
)
from ludus.cli.file_envs import is_file_run, open_session, run_loaded
from ludus.cli.output.worker_tables import WorkerLine, print_worker_report
from ludus.cli.token_rows import make_vocabulary
from ludus.config import Config, to_record, to_yaml
from ludus.config.build_trackers import build_trackers
from ludus.config.secrets import read_secret
from ludus.config.token_mode import find_token_model
from ludus.config.tree import TRAINING, WEIGHTS
from ludus.errors import ConfigError, LudusError
from ludus.models.ledger import Ledger
from ludus.rl.atropos_client import AtroposClient, TrackerInfo
from ludus.rl.row_checks import Vocabulary
from ludus.rl.worker import NothingScored, Worker, WorkerPlan, WorkerProgress, WorkerReport
from ludus.rl.worker_settings import ServeSettings
from ludus.rollout import RunOptions
from ludus.sandbox.pool import Pool
from ludus.store import RunDir
from ludus.trackers import METRICS, TrackedRun, TrackerSet
from ludus.types import Task

if TYPE_CHECKING:
    from ludus.compat.atropos_env.file_host import LoadedFile

SERVE_SETTINGS = """\
settings (list them: ludus config):
  --env.group_size 8 --env.split train                     rollouts of one task in a group
  --model.base_url URL --model.name NAME --model.mode token --model.engine vllm
  --serve.max_batches_offpolicy 1 --serve.too_long cut --serve.eval_every 50
  --tracking.use wandb --run.concurrency 64"""


class ServeArguments(RunArguments):
    server: str


def run(arguments: ServeArguments) -> int:
    if arguments.server:
        arguments.flags = [*arguments.flags, ("serve.server", arguments.server)]
    if is_file_run(arguments):
        return _serve_file(arguments)
    config = read_settings(arguments)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    require_env(config, "ludus serve gsm8k --env.group_size 8 --server http://127.0.0.1:8000")
    _check_settings(config)
    config = set_out(config)
    if not arguments.quiet:
        print_model_hint(config)
    return asyncio.run(_run(config, arguments))


def _check_settings(config: Config) -> None:
    if config.env.group_size < 2 and config.serve.equal_scores == "drop":
        raise ConfigError(
            "env.group_size is 1: rollouts of a group are compared, so a group of one teaches nothing. Use for example "
            "--env.group_size 8 (or --serve.equal_scores send, for a trainer that does not compare)"
        )


async def _run(config: Config, arguments: ServeArguments) -> int:
    ledger = open_ledger(config)
    ended: list[WorkerReport] = []
    async with AsyncExitStack() as stack:
        batch, pool = await stack.enter_async_context(open_batch(config, ledger))
        client = AtroposClient(config.serve.server, token=read_secret(config.serve.token_var, "serve.token_var"))
        stack.push_async_callback(client.close)
        with (
            open_run(config, _make_record(config)) as directory,
            redirect_prints(config.env.name),
            _show_progress(arguments, batch.env.name) as show,
        ):

            async def work(stop: asyncio.Event) -> bool:
                trackers = await _open_trackers(config, directory, client)
                plan = _make_plan(config, batch, pool, directory, config.run.make_options(stop))
                worker = Worker(plan, client, trackers, tell=print_notice, show=note_spent(directory, ledger, show))
                try:
                    ended.append(await worker.run())
                finally:
                    trackers.close()
                    write_spent(directory, ledger)
                return ended[0].finished

            outcome = await run_to_end(work, (NothingScored,))
            bugs = count_bugs(directory)
    facts = {"report": msgspec.to_builtins(ended[0]) if ended else None}
    report = RunReport(outcome, Path(config.run.out), ledger, facts, {"metrics": METRICS}, bugs)
    print_report(report, arguments, lambda: _print_result(ended, report))
    return choose_exit_code(report)


def _serve_file(arguments: ServeArguments) -> int:
    """Serve the groups of a file of another system."""
    return run_loaded(arguments, lambda config, loaded: _run_file(config, loaded, arguments))


async def _run_file(config: Config, loaded: "LoadedFile", arguments: ServeArguments) -> int:
    from ludus.compat.atropos_env.file_source import FileSource

    ledger = open_ledger(config)
    ended: list[WorkerReport] = []
    async with AsyncExitStack() as stack:
        client = AtroposClient(config.serve.server, token=read_secret(config.serve.token_var, "serve.token_var"))
        stack.push_async_callback(client.close)
        opened = open_session(
            config, loaded, ledger, frozenset({"serve"}), lambda run: _open_trackers(config, run, client)
        )
        session, parts = await stack.enter_async_context(opened)
        show = stack.enter_context(_show_progress(arguments, parts.env.name or session.env.name))
        batch = Batch(session.env, (), session.policy, parts.rules.group_size, config.run.seed)

        async def work(stop: asyncio.Event) -> bool:
            options, source = config.run.make_options(stop), FileSource(parts)
            plan = WorkerPlan(batch, None, session.run, config.serve, options, source=source)
            noted = note_spent(session.run, ledger, show)
            worker = Worker(plan, client, session.trackers, tell=print_notice, show=noted)
            try:
                ended.append(await worker.run())
            finally:
                write_spent(session.run, ledger)
            return ended[0].finished

        outcome = await run_to_end(work, (NothingScored,))
        bugs = count_bugs(session.run)
    facts = {"report": msgspec.to_builtins(ended[0]) if ended else None}
    report = RunReport(outcome, Path(config.run.out), ledger, facts, {"metrics": METRICS}, bugs)
    print_report(report, arguments, lambda: _print_result(ended, report))
    return choose_exit_code(report)


def note_spent(
    directory: RunDir, ledger: Ledger, show: Callable[[WorkerProgress], None]
) -> Callable[[WorkerProgress], None]:
    """Write what was spent after each group, then show the progress."""

    def note(progress: WorkerProgress) -> None:
        write_spent(directory, ledger)
        show(progress)

    return note


def _make_record(config: Config) -> dict[str, Any]:
    """The settings that the worker's groups depend on, and its own section, by which the run is known."""
    left_out = (TRAINING | WEIGHTS) - {"serve"}
    return {name: value for name, value in to_record(config).items() if name not in left_out}


def _make_plan(config: Config, batch: Batch, pool: Pool | None, directory: RunDir, options: RunOptions) -> WorkerPlan:
    exact = find_token_model(batch.policy.model)
    vocabulary = make_vocabulary(exact.codec.tokenizer) if exact is not None else Vocabulary()
    return WorkerPlan(batch, pool, directory, config.serve, options, _load_eval_tasks(batch, config.serve), vocabulary)


def _load_eval_tasks(batch: Batch, settings: ServeSettings) -> tuple[Task, ...]:
    if not settings.eval_every:
        return ()
    try:
        return load_tasks(batch.env, settings.eval_split, settings.eval_limit)
    except ConfigError as error:
        raise ConfigError(f"serve.eval_split: {error}") from error


async def _open_trackers(config: Config, directory: RunDir, client: AtroposClient) -> TrackerSet:
    """The trackers, started. Project and group are the settings', or else the trainer's."""
    trackers = build_trackers(config.tracking, lambda line: directory.append(METRICS, line), print_notice)
    if config.tracking.use:
        try:
            chosen = await client.read_tracker_info()
        except LudusError:  # the worker waits for the server, and says so
            chosen = TrackerInfo()
        trackers.start(
            TrackedRun(
                name=config.tracking.name or directory.path.resolve().name,
                project=config.tracking.project or chosen.project or "ludus",
                group=config.tracking.group or chosen.group or "",
                folder=directory.path,
                config=to_record(config),
            )
        )
    return trackers


@contextmanager
def _show_progress(arguments: ServeArguments, title: str) -> Generator[Callable[[WorkerProgress], None]]:
    if arguments.quiet or arguments.json:
        yield lambda progress: None
        return
    with WorkerLine(title) as line:
        yield line


def _print_result(ended: list[WorkerReport], report: RunReport) -> None:
    if ended:
        print_worker_report(ended[0])
    print(f"\n{report.out}")


COMMAND = Command(
    run,
    "ludus serve gsm8k --server http://127.0.0.1:8000 --env.group_size 8 --model.mode token --out runs/worker\n"
    "ludus serve --resume --out runs/worker   # after a stop, a crash or a kill: nothing that has ended is lost",
    (
        *FILE_TAKES,
        make_argument(
            "--server", metavar="URL", default="", help="the trajectory server; default: that of the settings"
        ),
    ),
    ServeArguments,
    SERVE_SETTINGS,
)
