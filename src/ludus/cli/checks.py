"""`ludus validate` and `ludus doctor`: proof and diagnosis."""

import asyncio
import itertools
from pathlib import Path

import msgspec

from ludus import env_checks as validate
from ludus import host_checks as doctor
from ludus.batch import each_task
from ludus.cli import Arguments
from ludus.config import Config, load
from ludus.config.build_agent import build_env
from ludus.config.build_sandboxes import open_sandboxes
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.types import Task, to_json


def run(arguments: Arguments) -> int:
    flags = list(arguments.flags)
    if arguments.command == "doctor":
        return _doctor(load([Path(path) for path in arguments.config], flags), as_json=arguments.json)
    if arguments.env:
        flags.append(("env.name", arguments.env))
    config = load([Path(path) for path in arguments.config], flags)
    if not config.env.name:
        raise ConfigError("which environment? For example: ludus validate terminal-test (see: ludus envs)")
    return asyncio.run(_validate(config, as_json=arguments.json))


def _doctor(config: Config, *, as_json: bool) -> int:
    findings = asyncio.run(doctor.examine(config, Path.cwd()))
    print(to_json(findings).decode() if as_json else doctor.as_text(findings))
    return 0 if doctor.healthy(findings) else 1


async def _validate(config: Config, *, as_json: bool) -> int:
    env = build_env(config)
    tasks = list_tasks(env, config)
    async with open_sandboxes(config, env) as pool:
        report = await validate.validate(
            env, config.env.split, tasks, pool, limits=config.limits, concurrency=min(8, config.run.concurrency)
        )
    plain = {"ok": report.ok, **msgspec.structs.asdict(report)}
    print(to_json(plain).decode() if as_json else validate.as_text(report))
    return 0 if report.ok else 1


def list_tasks(env: Env, config: Config) -> list[Task]:
    """The tasks to try, unchecked: what is wrong with their ids is for the report to say."""
    wanted = config.env.ids
    tasks = (task for task in each_task(env, config.env.split) if wanted is None or task.id in wanted)
    return list(itertools.islice(tasks, config.env.limit))
