"""`ludus validate`: check without a model that an environment scores correctly."""

import asyncio
import itertools
from pathlib import Path

import msgspec

from ludus import env_checks
from ludus.batch import read_tasks
from ludus.cli.command import CONFIG, ENV, JSON, Arguments, Command
from ludus.cli.common import print_notice
from ludus.config import Config, load
from ludus.config.build_agent import build_env
from ludus.config.build_models import build_ledger, open_judges
from ludus.config.build_sandboxes import open_sandboxes
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.types import Task, to_json


class ValidateArguments(Arguments):
    env: str | None


def run(arguments: ValidateArguments) -> int:
    flags = list(arguments.flags)
    if arguments.env:
        flags.append(("env.name", arguments.env))
    config = load([Path(path) for path in arguments.config], flags)
    if not config.env.name:
        raise ConfigError("which environment? For example: ludus validate terminal-test (see: ludus envs)")
    return asyncio.run(_validate(config, as_json=arguments.json))


async def _validate(config: Config, *, as_json: bool) -> int:
    env = build_env(config)
    tasks = _list_tasks(env, config)
    async with open_sandboxes(config, env) as pool, open_judges(config, env, build_ledger(config), print_notice):
        report = await env_checks.validate(
            env, config.env.split, tasks, pool, limits=config.limits, concurrency=min(8, config.run.concurrency)
        )
    fields = {"ok": report.ok, **msgspec.structs.asdict(report)}
    print(to_json(fields).decode() if as_json else env_checks.format_report(report))
    return 0 if report.ok else 1


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
)
