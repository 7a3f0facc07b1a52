"""`ludus rescore`: judge the rollouts of a run again with a new or corrected verifier, without the model.

The run is not changed. With `--out`, the rollouts and their new scores become a run of their own, under the addresses
that the environment now gives them: `show`, `compare` and `export` read it, and `--resume` runs only what it lacks. It
is there when all rollouts are judged, and not before.
"""

import asyncio
import shlex
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import msgspec

from ludus.arguments import Arguments, make_argument
from ludus.batch.rescore_table import RescoreBar, print_rescored
from ludus.command import CONFIG, ENGINE, JSON, JUDGE_ENV, JUDGE_SETTINGS, JUDGING, RUN, Command
from ludus.command.settings import read_recorded_settings
from ludus.command.terminal import print_notice
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.secrets import list_secrets
from ludus.config.tree import SHARDS
from ludus.encoding import to_json
from ludus.engine import compute_rollout_key
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.rescoring import Rescored, RescoreReport, RescoreTally, read_tasks_of, rescore
from ludus.run import RunKind, open_judging
from ludus.run_info import BATCH, BATCHES, find_kind, make_run
from ludus.store import RunDir
from ludus.watchdog import describe_wait, watch_for_stall


class RescoreArguments(Arguments):
    run: str
    env: str
    out: str | None
    engine: str


def run(arguments: RescoreArguments) -> int:
    path = Path(arguments.run)
    with RunDir.read(path) as directory:
        _check_kind(directory, arguments)
        if arguments.engine:
            arguments.flags = [*arguments.flags, ("engine.type", arguments.engine)]
        config = read_recorded_settings(arguments, directory.config, arguments.env)
        if arguments.out:
            run_settings = msgspec.structs.replace(config.run, out=arguments.out, resume=False)
            config = msgspec.structs.replace(config, run=run_settings)
        report = asyncio.run(_rescore(directory, config, arguments))
    if arguments.json:
        print(to_json({"run": str(path), "out": arguments.out or "", **msgspec.structs.asdict(report)}).decode())
    else:
        print_rescored(report)
    if arguments.out:
        print_notice(f"the run with the new scores: {arguments.out}")
    elif report.changes and not arguments.json:
        again = shlex.join(["ludus", "rescore", arguments.run, *(["--env", arguments.env] if arguments.env else [])])
        print(f"\nThe run is as it was. To get a run with the new scores: {again} --out DIR")
    return 0 if report.judged else 1


def _check_kind(directory: RunDir, arguments: RescoreArguments) -> None:
    kind = find_kind(directory)
    if kind == "gateway":
        raise ConfigError(f"{directory.path} holds sessions of the gateway: ludus score {arguments.run} --again")
    if arguments.out and kind not in (*BATCHES, BATCH):
        raise ConfigError(
            "--out: only a run of evaluate, process or batch can become a run with new scores; leave it out"
        )


async def _rescore(directory: RunDir, config: Config, arguments: RescoreArguments) -> RescoreReport:
    env = build_env(config)
    if not env.scores_rollouts:
        raise ConfigError(f"{env.name} has nothing that scores rollouts: name a check with --env.check")
    tally, total = RescoreTally(), len(directory.read_scores())
    if not total:
        raise ConfigError(f"{directory.path}: no rollout has ended there yet")
    with ExitStack() as stack:
        bar = stack.enter_context(RescoreBar(env.name, total))
        async with open_judging(config, env, print_notice) as runner:
            new = stack.enter_context(_make_new(config, directory)) if arguments.out else None

            def record(rescored: Rescored) -> None:
                tally.add(rescored)
                bar(tally)
                if new is not None:
                    _store(new, rescored, env, config)

            tasks = read_tasks_of((rollout for _, rollout in directory.read_outcomes()), env, config.env.split)
            read, stall_seconds = runner.activity.report, config.limits.stall_seconds
            async with watch_for_stall(read, stall_seconds, lambda report: print_notice(describe_wait(report))):
                await rescore(directory, tasks, runner, config.limits, record=record)
    return tally.make_report()


def _make_new(config: Config, parent: RunDir) -> AbstractContextManager[RunDir]:
    name = find_kind(parent)
    kind = RunKind(name, sections=SHARDS if name == BATCH else frozenset())
    return make_run(Path(config.run.out), name, kind.make_record(config), list_secrets(config), parent.path)


def _store(new: RunDir, rescored: Rescored, env: Env, config: Config) -> None:
    """Store what was judged, with its files. A rollout that keeps its score because its agent broke its slot too."""
    rollout = rescored.after or (rescored.before if rescored.stays else None)
    if rollout is None:
        return
    if rescored.files is not None:
        kept = new.keep_files(rescored.files, config.run.make_options().keep_files)
        rollout = msgspec.structs.replace(rollout, files=kept)
    versions = {**rollout.provenance.versions, "env": f"{env.name}@{env.version}"}
    provenance = msgspec.structs.replace(rollout.provenance, versions=versions)
    rollout = msgspec.structs.replace(rollout, provenance=provenance)
    new.put(compute_rollout_key(rollout, env), rollout)


COMMAND = Command(
    run,
    "ludus rescore runs/first                                  # after a correction of its environment\n"
    "ludus rescore runs/first --env strict_env.py --out runs/first-strict",
    (
        RUN,
        JUDGE_ENV,
        make_argument("--out", metavar="DIR", help="write the rollouts with their new scores as a run of its own"),
        ENGINE,
        CONFIG,
        JSON,
    ),
    RescoreArguments,
    JUDGE_SETTINGS,
    JUDGING | {"engine"},
)
