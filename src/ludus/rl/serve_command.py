"""`ludus serve`: feed groups of scored rollouts to a trajectory server.

The command runs until the trainer is done, a budget is spent, or Ctrl-C (or SIGTERM). The first one drains: groups that
run are finished and sent. The second drops what runs. Everything that has ended is in the run directory, and
`--resume` goes on: finished groups that the server had not accepted are sent, and nothing is sent twice to a server
that honours idempotency keys.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ludus.arguments import RunArguments, make_argument
from ludus.batch import load_tasks
from ludus.batch.command import BatchWork
from ludus.command import ENGINE, ROLLOUTS, RUN_TAKES, Command
from ludus.command.run_command import RunResult, RunWork, run_command
from ludus.command.terminal import print_notice
from ludus.config import Config
from ludus.config.secrets import read_secret
from ludus.control import RunControl
from ludus.env import Env
from ludus.errors import ConfigError, LudusError
from ludus.models.server import ServerSettings
from ludus.models.settings import EmbeddedSettings, OpenAISettings
from ludus.rl.atropos_client import AtroposClient, TrackerInfo
from ludus.rl.row_checks import Vocabulary
from ludus.rl.token_rows import make_vocabulary
from ludus.rl.worker import NothingScored, Worker, WorkerPlan, WorkerProgress, WorkerReport
from ludus.rl.worker_settings import ServeSettings
from ludus.rl.worker_tables import WorkerLine, print_worker_report
from ludus.run import Run, RunKind
from ludus.tokens import find_token_model
from ludus.trackers import METRICS
from ludus.types import Task

SERVE = RunKind(
    "serve",
    sections=frozenset({"serve"}),
    failures=(NothingScored,),
    files={"metrics": METRICS},
    starts_trackers=False,
)
EXAMPLE = "ludus serve gsm8k --env.group_size 8 --server http://127.0.0.1:8000"

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
    return run_command(arguments, ServeWork, EXAMPLE)


def _check_settings(config: Config) -> None:
    chats = isinstance(config.model, ServerSettings | EmbeddedSettings) and getattr(config.model, "mode", "") != "token"
    if chats:
        can = isinstance(config.model, OpenAISettings | EmbeddedSettings)
        how = (
            "use --model.mode token (docs/tokens.md)" if can else "use a server that samples token ids (docs/tokens.md)"
        )
        raise ConfigError(f"model.mode: a trainer needs the exact ids that were sampled, and chat mode has none: {how}")
    if config.env.group_size < 2 and config.serve.equal_scores == "drop":
        raise ConfigError(
            "env.group_size is 1: rollouts of a group are compared, so a group of one teaches nothing. Use for example "
            "--env.group_size 8 (or --serve.equal_scores send, for a trainer that does not compare)"
        )


class FeedWork(RunWork):
    """Sends groups to the server until the trainer is done."""

    kind = SERVE
    quiet: bool
    report: WorkerReport | None = None

    def make_plan(self, run: Run) -> WorkerPlan:
        """What the worker runs."""
        raise NotImplementedError

    async def work(self, run: Run) -> bool:
        serve = run.config.serve
        client = AtroposClient(serve.server, token=read_secret(serve.token_var, "serve.token_var"))
        try:
            await _start_trackers(run, client)
            with _show_progress(self.quiet, run.env.title, run.control) as show:

                def note(progress: WorkerProgress) -> None:
                    run.write_spent()
                    show(progress)

                worker = Worker(self.make_plan(run), client, run.trackers, tell=print_notice, show=note)
                self.report = await worker.run()
        finally:
            await client.close()
        return self.report.finished

    def conclude(self, run: Run) -> RunResult:
        report, suspects = self.report, run.runner.suspects

        def show(out: Path) -> None:
            if report is not None:
                print_worker_report(report, suspects)
            print(f"\n{out}")

        return RunResult({"report": msgspec.to_builtins(report)}, show)


class ServeWork(FeedWork, BatchWork):
    """Sends the groups of a batch."""

    def __init__(self, config: Config, arguments: RunArguments) -> None:
        _check_settings(config)
        super().__init__(config, arguments)
        self.eval_tasks = _load_eval_tasks(self.env, config.serve)

    def make_plan(self, run: Run) -> WorkerPlan:
        exact = find_token_model(run.policy.model)
        vocabulary = make_vocabulary(exact.codec.tokenizer) if exact is not None else Vocabulary()
        return WorkerPlan(self.batch, run.runner, run.config.serve, self.eval_tasks, vocabulary)


def _load_eval_tasks(env: Env, settings: ServeSettings) -> tuple[Task, ...]:
    if not settings.eval_every:
        return ()
    try:
        return load_tasks(env, settings.eval_split, settings.eval_limit)
    except ConfigError as error:
        raise ConfigError(f"serve.eval_split: {error}") from error


async def _start_trackers(run: Run, client: AtroposClient) -> None:
    """Start the trackers. Project and group are the settings', or else the trainer's."""
    chosen = TrackerInfo()
    if run.config.tracking.use:
        try:
            chosen = await client.read_tracker_info()
        except LudusError:  # the worker waits for the server, and says so
            chosen = TrackerInfo()
    run.start_trackers(chosen.project or "", chosen.group or "")


@contextmanager
def _show_progress(quiet: bool, title: str, control: RunControl) -> Generator[Callable[[WorkerProgress], None]]:
    if quiet:
        yield lambda progress: None
        return
    with WorkerLine(title, control=control) as line:
        yield line


COMMAND = Command(
    run,
    "ludus serve gsm8k --server http://127.0.0.1:8000 --env.group_size 8 --model.mode token --out runs/worker\n"
    "ludus serve --resume --out runs/worker   # after a stop, a crash or a kill: nothing that has ended is lost",
    (
        *RUN_TAKES,
        ENGINE,
        make_argument(
            "--server", metavar="URL", default="", help="the trajectory server; default: that of the settings"
        ),
    ),
    ServeArguments,
    SERVE_SETTINGS,
    ROLLOUTS | {"engine", "serve", "tracking"},
)
