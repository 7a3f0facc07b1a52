"""The one shell of commands that run rollouts: read the settings, open the run, do the work, report, exit code.

    def run(arguments):
        return run_command(arguments, Evaluation, "ludus evaluate gsm8k")

A command brings a `RunWork`: it is made from the settings, which it checks, and then works in the open run. What an
environment prints while the run is open goes to stderr: stdout is for the result.
"""

import asyncio
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ludus.arguments import RunArguments
from ludus.command.settings import print_model_hint, read_settings, require_env, set_out
from ludus.command.terminal import print_notice
from ludus.config import Config, to_yaml
from ludus.config.references import load_object
from ludus.encoding import to_json
from ludus.env import Env
from ludus.errors import BUG, OPEN_FILES, ConfigError, LudusError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.policy import Agent, Policy
from ludus.run import (
    Outcome,
    Run,
    RunKind,
    RunOutcome,
    open_agent_model,
    open_run,
    run_to_end,
)
from ludus.run_info import REPORT, read_failure_ledger
from ludus.sources import find_source, open_agent
from ludus.stats import FailureLedger, describe_failures
from ludus.store import RunDir
from ludus.verify.grading import JUDGE, SECOND

_EXIT_CODES: Mapping[Outcome, int] = {
    "completed": 0,
    "interrupted": 130,
    "budget": 3,
    "stalled": 4,
    "failing": 5,
    "broken": 1,
}

A = TypeVar("A", bound=RunArguments)


@dataclass(frozen=True)
class RunResult:
    """What a command says about its run in the end."""

    facts: Mapping[str, Any]
    """What the JSON has beside the facts of every run."""
    show: Callable[[Path], None]
    """Prints the result for people. Takes the run directory."""
    failed: bool = False
    """Whether a run that is complete has nothing to show for it: the exit code is 1."""
    failures: FailureLedger | None = None
    """What was lost, if `show` prints that. None: over all rollouts of the store, and printed after it."""


class RunWork:
    """What a command does in a run. It is made of the settings and the arguments; it checks them and reads the data, so
    that what is wrong there is found before anything is opened."""

    kind: RunKind
    env: Env
    parent: str = ""
    """The run that it continues, if it is made of one."""

    async def open_model(self, config: Config, ledger: Ledger, stack: AsyncExitStack) -> Model:
        """The model of the policy. What else is opened goes to the stack."""
        return await open_agent_model(config, ledger, stack, print_notice)

    async def open_agent(
        self, config: Config, env: Env, model: Model, ledger: Ledger, stack: AsyncExitStack
    ) -> Agent | None:
        """The agent that acts in place of the policy's own, if there is one."""
        return await open_agent(config, env, model, ledger, stack, print_notice)

    def prepare(self, policy: Policy) -> Mapping[str, str] | None:
        """Called before the run directory is made. Returns hashes of what the settings only name, if there are any."""
        return None

    async def work(self, run: Run) -> bool:
        """Do the work. Returns whether it is complete; ends early when `run.control` is stopping."""
        raise NotImplementedError

    def conclude(self, run: Run) -> RunResult:
        """What there is to say, also after an error or a spent budget. The run is still open."""
        raise NotImplementedError


@dataclass(frozen=True)
class DryRun:
    """In place of a work: say what it would take, and stop."""

    show: Callable[[], None]


def run_command(arguments: A, begin: Callable[[Config, A], RunWork | DryRun], example: str) -> int:
    """Run a command and report. Returns its exit code."""
    config = read_settings(arguments)
    if not arguments.print_config:
        require_env(config, example)
    return run_with_settings(config, arguments, begin)


def run_with_settings(config: Config, arguments: A, begin: Callable[[Config, A], RunWork | DryRun]) -> int:
    """Run a command whose settings are known, and report. Returns its exit code."""
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    with redirect_stdout(sys.stderr):
        work = _begin_for_source(config, arguments) or begin(config, arguments)
    if isinstance(work, DryRun):
        work.show()
        return 0
    _refuse_judges(arguments, work.env)
    config = set_out(config)
    if not arguments.quiet and "model" not in work.kind.left_out:
        print_model_hint(config)
    return asyncio.run(_run(config, arguments, work))


def _begin_for_source(config: Config, arguments: RunArguments) -> RunWork | None:
    """The work that the source of the environment does in place of the command's own, if it does."""
    source = find_source(config.env.name)
    place = source.works.get(arguments.command) if source is not None else None
    if source is None or not place:
        return None
    if config.engine.type != "local":
        raise ConfigError(
            f"engine.type {config.engine.type}: {source.title} run their groups in the process of their own code, "
            "which cannot be on other machines: leave --engine out"
        )
    return load_object(place, "env.name")(config, arguments)


def _refuse_judges(arguments: RunArguments, env: Env) -> None:
    """Raise `ConfigError` for flags of judges that the environment does not ask."""
    given = [path for path, _ in arguments.flags if path.partition(".")[0] in (JUDGE, SECOND)]
    if given and not env.graded:
        raise ConfigError(f"--{given[0]} has no effect: no model judges the rollouts of {env.name}")


async def _run(config: Config, arguments: RunArguments, work: RunWork) -> int:
    with redirect_stdout(sys.stderr):
        async with open_work(config, work, arguments) as run:
            outcome = await run_to_end(run, work.work)
            result, unscored = work.conclude(run), count_unscored(run.directory)
            failures = result.failures or read_failure_ledger(run.directory)
    if REPORT in run.kind.files.values():
        _write_report(run.directory.path)
    report = RunReport(outcome, run.directory.path, run.ledger, result.facts, run.kind.files, unscored, failures)

    def show() -> None:
        result.show(report.out)
        if result.failures is None and (words := describe_failures(failures)):
            print(words)

    print_report(report, arguments, show)
    if outcome.status == "completed" and result.failed:
        return 1
    return choose_exit_code(report)


def _write_report(out: Path) -> None:
    """Write the pages of a run that has ended as one file. What is wrong there is said, and changes no result."""
    from ludus.view.report import write_end_report  # it imports every page

    try:
        write_end_report(out)
    except (LudusError, OSError) as error:
        print_notice(f"{REPORT} was not written: {error}")


def open_work(config: Config, work: RunWork, arguments: RunArguments) -> AbstractAsyncContextManager[Run]:
    """The open run of a work."""
    source = find_source(config.env.name)
    return open_run(
        config,
        work.kind,
        env=work.env,
        open_model=lambda config, ledger, stack, tell: work.open_model(config, ledger, stack),
        open_agent=lambda config, env, model, ledger, stack, tell: work.open_agent(config, env, model, ledger, stack),
        prepare=work.prepare,
        secrets=() if source is None else source.list_secrets(config),
        command=write_command(arguments),
        parent=work.parent,
        tell=print_notice,
    )


def write_command(arguments: RunArguments) -> str:
    """The command line as it was typed, as far as it can be known: for the record."""
    return shlex.join(["ludus", *arguments.typed])


# ---- the report at the end ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unscored:
    """How many rollouts of a run have no score for a reason that the exit code tells."""

    bugs: int = 0
    """They met a bug."""
    open_files: int = 0
    """This process had no file descriptor left (EMFILE)."""


def count_unscored(directory: RunDir) -> Unscored:
    failures = list(directory.read_failures())
    open_files = sum(OPEN_FILES in failure.message for failure in failures)
    return Unscored(sum(failure.boundary == BUG for failure in failures), open_files)


def choose_exit_code(report: "RunReport") -> int:
    """The exit code of a run: that of its outcome, or 1 if it is complete but a rollout met a bug or found no file
    descriptor."""
    return _EXIT_CODES[report.outcome.status] or (1 if report.unscored.bugs or report.unscored.open_files else 0)


def make_resume_command(command: str, out: Path) -> str:
    return shlex.join(["ludus", command, "--resume", "--out", str(out)])


@dataclass(frozen=True)
class RunReport:
    """What a command says about its run in the end."""

    outcome: RunOutcome
    out: Path
    ledger: Ledger
    facts: Mapping[str, Any]
    """What the JSON has beside the facts of every run."""
    files: Mapping[str, str]
    """The names of the run's files, by their keys in the JSON. Those that do not exist are left out."""
    unscored: Unscored = Unscored()
    failures: FailureLedger | None = None


def print_report(report: RunReport, arguments: RunArguments, print_result: Callable[[], None]) -> None:
    """Print how a run ended, and how to resume it: as JSON, as a path, or with `print_result` for people."""
    outcome, out = report.outcome, report.out
    resume = make_resume_command(arguments.command, out)
    if outcome.message:
        more = " (with a larger budget: --budget.…)" if outcome.status == "budget" else ""
        print_notice(f"{outcome.message}\nresume with: {resume}{more}")
    _print_unscored(report.unscored, out, resume)
    if arguments.json:
        print(json.dumps(_to_json(report, arguments.command, resume), ensure_ascii=False))
    elif arguments.quiet:
        print(out)
    else:
        print_result()


def _print_unscored(unscored: Unscored, out: Path, resume: str) -> None:
    if unscored.bugs:
        which = "1 rollout met a bug and has" if unscored.bugs == 1 else f"{unscored.bugs} rollouts met a bug and have"
        print_notice(
            f"{which} no score. Please report the bug with its traceback: ludus show {shlex.quote(str(out))} TASK"
        )
    if unscored.open_files:
        which = "1 rollout has" if unscored.open_files == 1 else f"{unscored.open_files} rollouts have"
        print_notice(
            f"{which} no score because this process ran out of file descriptors ({OPEN_FILES}): raise the limit with "
            f"`ulimit -n`, or lower run.concurrency, and run them again: {resume}"
        )


def _to_json(report: RunReport, command: str, resume: str) -> dict[str, Any]:
    outcome, out = report.outcome, report.out
    return {
        "command": command,
        "run": str(out),
        "status": outcome.status,
        "message": outcome.message,
        "resume": "" if outcome.status == "completed" else resume,
        **report.facts,
        "failures": json.loads(to_json(report.failures)),
        "ledger": json.loads(to_json(report.ledger.roles)),
        "files": {key: str(out / name) for key, name in report.files.items() if (out / name).exists()},
    }
