"""`ludus replay`: run a rollout again with its recorded replies, and compare every tool result with the record.

The run is not changed. Tools, users and verdicts are those of now: a difference says that the environment, a tool or
the machine has changed, or that a result depends on the time, on a number of a process, or on chance. `--ignore` masks
such parts of a text. With `--out`, the replayed rollout becomes a run of its own.
"""

import asyncio
import re
import shlex
import sys
from contextlib import AsyncExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path

import msgspec
from msgspec import Struct

from ludus.arguments import Arguments, make_argument
from ludus.command import CONFIG, JSON, JUDGE_SETTINGS, JUDGING, RUN, Command
from ludus.command.recorded_rollout import RecordedRollout, read_rollout, refuse_changes
from ludus.command.rollout_text import print_failure
from ludus.command.settings import read_recorded_settings
from ludus.command.terminal import make_console, make_text, print_notice
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.secrets import list_secrets
from ludus.encoding import to_json
from ludus.engine import compute_outcome_key
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.policy import Together
from ludus.replay import Difference, RecordedModel, find_differences, restore_policy
from ludus.rollout import run_retrying
from ludus.run import RunKind, RunParts, Tell, open_parts
from ludus.run_info import make_run
from ludus.runner import Job, Runner
from ludus.sources import open_agent
from ludus.store import MemoryStore, RunDir
from ludus.types import Failure, Rollout

REPLAY = RunKind("replay")


class ReplayArguments(Arguments):
    run: str
    rollout: str
    ignore: list[str]
    no_judge: bool
    out: str | None


class ReplayReport(Struct, frozen=True, kw_only=True):
    """How a replayed rollout compares with its record."""

    run: str
    task: str
    replicate: int
    outcome: str
    """The key of the record."""
    turns: int
    results: int
    """How many tool results were compared."""
    judged: bool
    """Whether the verdicts were compared, too."""
    score: float | None
    score_now: float | None
    failure: Failure | None
    """Why the replay is no rollout: something outside the agent broke."""
    differences: tuple[Difference, ...]
    equal: bool
    out: str


def run(arguments: ReplayArguments) -> int:
    ignore = [_read_pattern(words) for words in arguments.ignore]
    recorded = read_rollout(Path(arguments.run), arguments.rollout)
    config = _read_settings(recorded, arguments)
    with redirect_stdout(sys.stderr):
        env = build_env(config)
        judged = not arguments.no_judge and not env.judges_groups
        now = asyncio.run(_replay(recorded, config, env, arguments, judged))
    report = make_report(recorded, now, ignore, judged=judged, out=arguments.out or "")
    if arguments.json:
        print(to_json(report).decode())
    else:
        print_replayed(report)
    if env.judges_groups and not arguments.no_judge:
        print_notice(f"{env.name} judges the rollouts of a task together: the score was not compared")
    return 0 if report.equal else 1


def _read_pattern(words: str) -> re.Pattern[str]:
    try:
        return re.compile(words)
    except re.error as error:
        raise ConfigError(f"--ignore: '{words}' is not a regular expression: {error}") from None


def _read_settings(recorded: RecordedRollout, arguments: ReplayArguments) -> Config:
    config = read_recorded_settings(arguments, recorded.settings, "")
    refuse_changes(recorded, config)
    return msgspec.structs.replace(
        config,
        env=msgspec.structs.replace(config.env, group_size=1),
        run=msgspec.structs.replace(config.run, out=arguments.out or ""),
    )


async def _replay(
    recorded: RecordedRollout, config: Config, env: Env, arguments: ReplayArguments, judged: bool
) -> Rollout:
    record = recorded.rollout

    async def open_model(config: Config, ledger: Ledger, stack: AsyncExitStack, tell: Tell) -> Model:
        return RecordedModel((), record.provenance.model)

    opened = open_parts(config, env, open_model=open_model, open_agent=open_agent, judged=judged, tell=print_notice)
    async with opened as parts:
        job = _make_job(recorded, parts, judged)
        if not arguments.out:
            return await run_retrying(job, replace(parts.runner, store=MemoryStore()))
        settings, typed = REPLAY.make_record(config), shlex.join(["ludus", *arguments.typed])
        with make_run(Path(arguments.out), REPLAY.name, settings, list_secrets(config), recorded.run, typed) as new:
            return await _run_stored(job, parts.runner, new)


def _make_job(recorded: RecordedRollout, parts: RunParts, judged: bool) -> Job:
    record, origin = recorded.rollout, recorded.rollout.provenance
    policy = restore_policy(parts.policy, parts.runner.env, recorded.make_origin(len(record.turns)), record)
    together = None if judged else Together(1)  # one that is judged with others is not judged by itself
    return Job(record.task, policy, origin.replicate, origin.seed, together)


async def _run_stored(job: Job, runner: Runner, new: RunDir) -> Rollout:
    rollout = await run_retrying(job, replace(runner, store=new))
    new.put(compute_outcome_key(job, runner.env), rollout)
    return rollout


# ---- the report ---------------------------------------------------------------------------------------------------


def make_report(
    recorded: RecordedRollout, now: Rollout, ignore: list[re.Pattern[str]], *, judged: bool = True, out: str = ""
) -> ReplayReport:
    record = recorded.rollout
    differences = find_differences(record, now, ignore, judged=judged)
    return ReplayReport(
        run=str(recorded.run),
        task=record.task.id,
        replicate=record.provenance.replicate,
        outcome=recorded.key,
        turns=len(record.turns),
        results=sum(len(turn.results) for turn in record.turns),
        judged=judged,
        score=record.score.value if record.score else None,
        score_now=now.score.value if now.score else None,
        failure=now.failure,
        differences=tuple(differences),
        equal=not differences,
        out=out,
    )


_WORDS = {
    "opening": "other words before the first turn",
    "user": "other words of the user",
    "turns": "another number of turns",
    "stop": "another end",
    "score": "another score",
}


def print_replayed(report: ReplayReport) -> None:
    console = make_console()
    what = f"task {report.task}, rollout {report.replicate + 1} ({report.outcome[:12]})"
    compared = f"{report.turns} turns, {report.results} tool results"
    if report.judged:
        compared += ", score"
    count = len(report.differences)
    verdict = "as recorded" if report.equal else f"{count} difference{'s' if count > 1 else ''}"
    console.print(make_text(f"{what}: {compared}: ") + make_text(verdict, "green" if report.equal else "yellow"))
    if report.failure is not None:
        print_failure(report.failure, console)
    for each in report.differences:
        words = _WORDS.get(each.part) or f"{each.tool} returned something else"
        console.print(make_text(f"\nturn {each.turn}: {words}" if each.turn else f"\n{words}", "bold"))
        for line in each.diff.splitlines():
            console.print(
                make_text(line, "red" if line.startswith("-") else "green" if line.startswith("+") else "dim")
            )
    if report.out:
        console.print(make_text(f"\nthe replayed rollout: {report.out}", "dim"))


COMMAND = Command(
    run,
    "ludus replay runs/first greeting.txt\n"
    "ludus replay runs/first greeting.txt#2 --ignore '\\d+\\.\\d+ ?s' --ignore 'pid \\d+'    # volatile parts\n"
    "ludus replay runs/judged essay-3 --no-judge --json",
    (
        RUN,
        make_argument(
            "rollout", metavar="ROLLOUT", help="a task id, with #N for its Nth rollout, or the beginning of its key"
        ),
        make_argument(
            "--ignore",
            metavar="REGEX",
            action="append",
            default=[],
            help="parts of texts that may differ, such as times; can be given several times",
        ),
        make_argument(
            "--no-judge", action="store_true", help="compare tool results alone: verify nothing, ask no judge"
        ),
        make_argument("--out", metavar="DIR", help="keep the replayed rollout as a run of its own"),
        CONFIG,
        JSON,
    ),
    ReplayArguments,
    JUDGE_SETTINGS,
    JUDGING - {"run"} | {"agent", "tools", "vision", "run.retries", "run.keep_files_mb"},
)
