"""`ludus validate`: check without a model that an environment scores correctly."""

import asyncio
import itertools
import shlex
from pathlib import Path

import msgspec

from ludus import env_checks
from ludus.arguments import Arguments
from ludus.audit.audit_record import find_record
from ludus.batch import read_tasks
from ludus.command import CONFIG, ENV, JSON, JUDGING, Command
from ludus.command.terminal import LiveLine, print_notice
from ludus.config import Config, load
from ludus.config.build_agent import build_env
from ludus.config.secrets import find_audits_folder
from ludus.encoding import to_json
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.run import open_judging
from ludus.sources import name_env
from ludus.types import Task


class ValidateArguments(Arguments):
    env: str | None


def run(arguments: ValidateArguments) -> int:
    flags = [*arguments.flags, *(name_env(arguments.env) if arguments.env else ())]
    config = load([Path(path) for path in arguments.config], flags)
    if not config.env.name:
        raise ConfigError("which environment? For example: ludus validate terminal-test (see: ludus envs)")
    return asyncio.run(_validate(config, as_json=arguments.json))


async def _validate(config: Config, *, as_json: bool) -> int:
    env = build_env(config)
    tasks = _list_tasks(env, config)
    numbers = itertools.count(1)
    async with open_judging(config, env, print_notice) as runner:
        with LiveLine(env.name) as line:
            report = await env_checks.validate(
                runner,
                config.env.split,
                tasks,
                limits=config.limits,
                concurrency=min(8, config.run.concurrency),
                on_task=lambda task: line.draw(next(numbers), len(tasks), task.id),
            )
    audit = find_record(env, find_audits_folder())
    if as_json:
        print(to_json({"ok": report.ok, **msgspec.structs.asdict(report), "audit": audit}).decode())
    else:
        missing = f"not audited: {make_audit_command(config)}   can its tasks be passed unsolved?"
        print(f"{env_checks.format_report(report)}\n{missing if audit is None else audit.words}")
    return 0 if report.ok else 1


def make_audit_command(config: Config) -> str:
    """The command that audits the environment."""
    return shlex.join(["ludus", "audit", config.env.name])


def _list_tasks(env: Env, config: Config) -> list[Task]:
    """The chosen tasks. Their ids are not checked here: the report says what is wrong with them."""
    wanted = config.env.ids
    tasks = (task for task in read_tasks(env, config.env.split) if wanted is None or task.id in wanted)
    return list(itertools.islice(tasks, config.env.limit))


COMMAND = Command(
    run,
    "ludus validate terminal-test\nludus validate my_env.py --env.split test --env.limit 50",
    (ENV, CONFIG, JSON),
    ValidateArguments,
    """\
settings (list them: ludus config):
  --env.split test --env.limit 20                          which tasks
  --sandbox.backend docker --limits.verify_seconds 60      where, and for how long""",
    JUDGING,
)
