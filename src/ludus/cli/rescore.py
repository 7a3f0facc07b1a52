"""`ludus rescore`: judge the rollouts of a run again with a new or corrected verifier, without the model.

The run is not changed. With `--out`, the rollouts and their new scores become a run of their own, under the addresses
that the environment now gives them: `show`, `compare` and `export` read it, and `--resume` runs only what it lacks. It
is there when all rollouts are judged, and not before.
"""

import asyncio
import shlex
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from ludus.cli.batch_run import make_batch_record
from ludus.cli.command import CONFIG, JSON, JUDGE_ENV, JUDGE_SETTINGS, RUN, Arguments, Command, make_argument
from ludus.cli.common import print_notice, read_recorded_settings
from ludus.cli.output.rescore_table import RescoreBar, print_rescored
from ludus.cli.run_kind import find_kind
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.build_models import build_ledger, open_judges
from ludus.config.build_sandboxes import open_sandboxes
from ludus.config.secrets import list_secrets
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.rescoring import Rescored, RescoreReport, RescoreTally, Rescoring, read_tasks_of
from ludus.runner import compute_rollout_key
from ludus.store import RunDir
from ludus.types import to_json


class RescoreArguments(Arguments):
    run: str
    env: str
    out: str | None


def run(arguments: RescoreArguments) -> int:
    path = Path(arguments.run)
    with RunDir.read(path) as directory:
        _check_kind(directory, arguments)
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
    kind = find_kind(directory.config)
    if kind == "gateway":
        raise ConfigError(f"{directory.path} holds sessions of the gateway: ludus score {arguments.run} --again")
    if arguments.out and kind != "batch":
        raise ConfigError("--out: only a run of evaluate or process can become a run with new scores; leave it out")


async def _rescore(directory: RunDir, config: Config, arguments: RescoreArguments) -> RescoreReport:
    env = build_env(config)
    tally, total = RescoreTally(), len(directory.read_scores())
    if not total:
        raise ConfigError(f"{directory.path}: no rollout has ended there yet")
    with ExitStack() as stack:
        bar = stack.enter_context(RescoreBar(env.name, total))
        async with open_sandboxes(config, env) as pool, open_judges(config, env, build_ledger(config), print_notice):
            new = stack.enter_context(_make_new(config)) if arguments.out else None

            def record(rescored: Rescored) -> None:
                tally.add(rescored)
                bar(tally)
                if new is not None:
                    _store(new, rescored, env, config)

            rescoring = Rescoring(env, pool, config.limits, config.run.retries, config.run.concurrency)
            tasks = read_tasks_of((rollout for _, rollout in directory.read_outcomes()), env, config.env.split)
            await rescoring.rescore(directory, tasks, record=record)
    return tally.make_report()


@contextmanager
def _make_new(config: Config) -> Generator[RunDir, None, None]:
    """The new run. It is made beside its place and moved there at the end: half of one would look like a whole one."""
    out = Path(config.run.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already holds a run or other files: name another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        making = Path(temporary, out.name)
        with RunDir.open(making, make_batch_record(config), secrets=list_secrets(config)) as new:
            yield new
        making.replace(out)


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
        CONFIG,
        JSON,
    ),
    RescoreArguments,
    JUDGE_SETTINGS,
)
