"""`ludus score`: judge the sessions of a gateway run with an environment's `verify`.

A session is judged as an attempt at the task that its client named. The agent acted outside of Ludus, so only what it
said can be judged: environments that look into a slot are refused. Each score is stored when it is made. A session
that failed keeps its failure. If `verify` breaks, the session stays without a score and can be judged again.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ludus.arguments import Arguments, make_argument
from ludus.batch import read_tasks
from ludus.batch.run_tables import print_summary
from ludus.command import CONFIG, JSON, JUDGE_ENV, JUDGE_SETTINGS, JUDGING, RUN, Command
from ludus.command.settings import read_recorded_settings
from ludus.command.terminal import LiveLine, print_notice
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.secrets import list_secrets
from ludus.encoding import to_json
from ludus.env import Env
from ludus.errors import ConfigError, ModelUnusable, RolloutError, raise_first, suggest
from ludus.judging import Judge
from ludus.run import open_judging
from ludus.session_runs import group_sessions, import_sessions, read_sessions, require_gateway_run
from ludus.stats import summarize
from ludus.store import RunDir
from ludus.types import Rollout, Task


class ScoreArguments(Arguments):
    run: str
    env: str
    again: bool


@dataclass
class ScoringReport:
    """What was judged."""

    scored: int = 0
    kept: int = 0
    """Sessions that had a score already."""
    failed: int = 0
    """Sessions that have a failure in place of a score."""
    unknown: Counter[str] = field(default_factory=Counter[str])
    """Sessions whose task the environment does not have, by task."""
    broken: list[str] = field(default_factory=list[str])
    """What `verify` raised."""


def run(arguments: ScoreArguments) -> int:
    path = Path(arguments.run)
    with RunDir.read(path) as directory:
        require_gateway_run(directory)
        recorded = directory.config
    config = read_recorded_settings(arguments, recorded, arguments.env)
    if not config.env.name:
        raise ConfigError("which environment judges the sessions? For example: --env gsm8k (see: ludus envs)")
    env = build_env(config)
    if env.sandbox is not None:
        raise ConfigError(
            f"{env.name} judges what an agent left in a slot, and an agent at the gateway has none: name an "
            "environment without a sandbox, or send rewards to POST /sessions/NAME/score"
        )
    tasks = {task.id: task for task in read_tasks(env, config.env.split)}
    with RunDir.open(path, recorded, resume=True, secrets=list_secrets(config)) as directory:
        import_sessions(directory)
        report = asyncio.run(_score_sessions(directory, env, tasks, config, again=arguments.again))
        groups = group_sessions(directory)
    summary = summarize(groups)
    if arguments.json:
        facts = {"run": str(path), "summary": summary, **vars(report)}
        print(to_json(facts).decode())
    else:
        print_summary(summary)
        _print_report(report, env, config.env.split, tasks)
    return 1 if report.unknown or report.broken else 0


async def _score_sessions(
    directory: RunDir, env: Env, tasks: Mapping[str, Task], config: Config, *, again: bool
) -> ScoringReport:
    report, numbers, total = ScoringReport(), itertools.count(1), len(directory.read_scores())
    places = asyncio.Semaphore(config.run.concurrency)

    async def score(judge: Judge, key: str, session: Rollout) -> None:
        async with places:
            try:
                judged = await judge.judge(session, None)
            except ModelUnusable:
                raise
            except RolloutError as error:
                report.broken.append(f"task '{session.task.id}': {error}")
                return
            finally:
                line.draw(next(numbers), total, session.task.id)
        (directory.replace if again else directory.put)(key, judged)
        report.scored += 1

    with raise_first(), LiveLine("sessions") as line:
        async with open_judging(config, env, print_notice) as runner, asyncio.TaskGroup() as group:
            judge = Judge(runner, config.limits)
            for key, rollout in read_sessions(directory):
                if rollout.failure is not None:
                    report.failed += 1
                elif rollout.score is not None and not again:
                    report.kept += 1
                elif (task := tasks.get(rollout.task.id)) is None:
                    report.unknown[rollout.task.id] += 1
                else:
                    group.create_task(score(judge, key, msgspec.structs.replace(rollout, task=task, score=None)))
    return report


def _print_report(report: ScoringReport, env: Env, split: str, tasks: Mapping[str, Task]) -> None:
    kept = f", {report.kept} had a score already (--again judges them too)" if report.kept else ""
    failed = f", {report.failed} failed and have none" if report.failed else ""
    print(f"\n{report.scored} sessions judged by {env.name}{kept}{failed}")
    for id, count in report.unknown.items():
        print_notice(
            f"{count} sessions of '{id}' have no score: {env.name} has no such task in split '{split}'; "
            f"{suggest(id, list(tasks))}"
        )
    for problem in report.broken:
        print_notice(f"no score: {problem}")


COMMAND = Command(
    run,
    "ludus score runs/agents --env gsm8k --env.split test\nludus score runs/agents --env my_env.py --again",
    (
        RUN,
        JUDGE_ENV,
        make_argument("--again", action="store_true", help="also judge sessions that have a score already"),
        CONFIG,
        JSON,
    ),
    ScoreArguments,
    JUDGE_SETTINGS,
    JUDGING,
)
