"""`ludus plan`: how fast a run would be on N nodes, what would limit it, and what it would cost, before it is begun.

A calibration runs some rollouts with the settings of the run, on this machine. It is an ordinary run directory: the run
itself goes on from it with `ludus evaluate --resume`. With `--from`, a run that exists is the calibration. `--check`
forecasts a finished run from some of its own rollouts and compares.
"""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from ludus.arguments import RunArguments, make_argument
from ludus.batch import BatchProgress, OnRollout, evaluate
from ludus.batch.command import FILES, BatchWork
from ludus.command import ENGINE, ROLLOUTS, RUN_SETTINGS, RUN_TAKES, Command
from ludus.command.run_command import RunResult, run_command
from ludus.command.settings import read_recorded_settings
from ludus.command.terminal import print_notice
from ludus.config import Config
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.planning.calibration import Meter, choose_first, choose_tasks
from ludus.planning.forecast import (
    ActualRun,
    Forecast,
    Machines,
    check_forecast,
    choose_server_limit,
    forecast,
    is_within,
    make_cluster,
)
from ludus.planning.plan_table import print_check, print_forecast
from ludus.planning.run_profile import (
    CALIBRATION,
    Calibration,
    RunProfile,
    RunTotals,
    measure_disk,
    read_profile,
)
from ludus.planning.throughput_plot import draw_forecast
from ludus.run import Run, RunKind
from ludus.run_info import read_info
from ludus.store import RunDir
from ludus.types import Rollout

PLAN, PLOT = "plan.json", "plan.svg"
LARGEST = 1000
"""The number of nodes that every plan also looks at."""
PLOTTED = (1, 4, 16, 64, 256, LARGEST)
PLAN_RUN = RunKind("plan", files={**FILES, "calibration": CALIBRATION, "plan": PLAN, "plot": PLOT})


class PlanArguments(RunArguments):
    nodes: str
    source: str
    check: str


def run(arguments: PlanArguments) -> int:
    if not arguments.source and not arguments.check:
        return run_command(arguments, PlanWork, "ludus plan gsm8k --nodes 1,8,64")
    for name in ("env", "out", "resume", "print_config", "quiet"):
        if getattr(arguments, name):
            flag = "the environment" if name == "env" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} has no effect with --{'check' if arguments.check else 'from'}: leave it out")
    return _check(arguments) if arguments.check else _plan_from(arguments)


# ---- a calibration ------------------------------------------------------------------------------------------------


class PlanWork(BatchWork):
    """Runs a calibration: some rollouts of the run that is planned."""

    kind = PLAN_RUN

    def __init__(self, config: Config, arguments: PlanArguments) -> None:
        super().__init__(config, arguments)
        self.nodes = read_nodes(arguments.nodes)
        self.total = config.plan.total or len(self.tasks) * config.env.group_size
        self.tasks, size = choose_tasks(self.tasks, config.plan.rollouts, config.env.group_size)
        self.config = msgspec.structs.replace(config, env=msgspec.structs.replace(config.env, group_size=size))

    async def run_batch(self, run: Run, on_rollout: OnRollout) -> None:
        at_once = run.config.run.concurrency
        first, few = choose_first(self.tasks, at_once)
        low, high, meter = RunTotals(), RunTotals(), Meter()
        async with meter.watch(run.runner.activity):
            if first:
                run.control.set_concurrency(few)
                await evaluate(replace(self.batch, tasks=first), run.runner, on_rollout=_count(low, on_rollout))
                run.control.set_concurrency(at_once)
            meter.reset_cores()
            await evaluate(self.batch, run.runner, on_rollout=_count(high, on_rollout))
        if high.rollouts:
            measured = _make_calibration(low, high, meter, is_here=run.config.engine.type == "local")
            run.directory.write(CALIBRATION, msgspec.json.format(to_json(measured), indent=2) + b"\n")

    def conclude(self, run: Run) -> RunResult:
        if not run.directory.read_scores():
            return RunResult({"plan": None}, lambda out: None, failed=True)
        profile = read_profile(run.directory, seed=run.config.run.seed)
        found = make_forecast(profile, run.config, self.nodes, self.total)
        run.directory.write(PLAN, msgspec.json.format(to_json(found), indent=2) + b"\n")
        run.directory.write(PLOT, draw_forecast(found, run.env.name).encode())

        def show(out: Path) -> None:
            print_forecast(found, self.nodes)
            where = shlex.quote(str(out))
            print(f"\n{(out / PLOT).resolve().as_uri()}   the plot")
            print(f"  ludus evaluate --resume --out {where}   the run itself: it goes on from the calibration")

        return RunResult({"plan": json.loads(to_json(found))}, show)


def _count(totals: RunTotals, on_rollout: OnRollout) -> OnRollout:
    def count(rollout: Rollout, progress: BatchProgress) -> None:
        totals.add(rollout)
        on_rollout(rollout, progress)

    return count


def _make_calibration(low: RunTotals, high: RunTotals, meter: Meter, *, is_here: bool) -> Calibration:
    """`is_here`: rollouts ran on this machine, so that what they took of it is known."""
    return Calibration(
        low=low.read_server(),
        high=high.read_server(),
        first=low.rollouts,
        core_seconds=meter.core_seconds / high.rollouts if is_here else None,
        slot_mb=meter.slot_mb if is_here else None,
        base_mb=meter.base_mb,
    )


# ---- a run that exists --------------------------------------------------------------------------------------------


def _plan_from(arguments: PlanArguments) -> int:
    path = Path(arguments.source)
    with RunDir.read(path) as directory:
        config = read_recorded_settings(arguments, directory.config, "")
        profile = read_profile(directory, seed=config.run.seed)
    info = read_info(path)
    total = config.plan.total or (info.planned if info else 0) or len(profile.samples)
    nodes = read_nodes(arguments.nodes)
    found = make_forecast(profile, config, nodes, total)
    if arguments.json:
        print(to_json({"run": str(path), "plan": found}).decode())
    else:
        print_forecast(found, nodes)
    return 0


def _check(arguments: PlanArguments) -> int:
    path = Path(arguments.check)
    with RunDir.read(path) as directory:
        config = read_recorded_settings(arguments, directory.config, "")
        actual = _read_actual(directory)
        profile = read_profile(directory, config.plan.rollouts, config.run.seed)
    if arguments.source:
        profile = _read_other(Path(arguments.source), config)
    else:  # its size on disk is no forecast: it is known of the whole run
        profile, actual = msgspec.structs.replace(profile, disk=0.0), msgspec.structs.replace(actual, disk=0.0)
    nodes = read_nodes(arguments.nodes or "1")[0]
    cluster = make_cluster(profile, _make_checked(profile, config, nodes), nodes)
    lines = check_forecast(profile, cluster, actual, config.run.seed)
    good = is_within(lines, config.plan.tolerance)
    if arguments.json:
        print(to_json({"run": str(path), "check": lines, "tolerance": config.plan.tolerance, "within": good}).decode())
    else:
        print_check(lines, config.plan.tolerance)
    if not good:
        print_notice(f"a forecast is further off than plan.tolerance {config.plan.tolerance:g}")
    return 0 if good else 1


def _read_other(path: Path, config: Config) -> RunProfile:
    with RunDir.read(path) as directory:
        return read_profile(directory, seed=config.run.seed)


def _read_actual(directory: RunDir) -> ActualRun:
    """What a run did. One of an earlier version has no times of rollouts: its start and its end count."""
    totals = RunTotals()
    for _, rollout in directory.read_outcomes():
        totals.add(rollout)
    info = read_info(directory.path)
    seconds = totals.seconds or (info.ended - info.started if info and info.ended and not info.resumed else 0.0)
    if not totals.rollouts or seconds <= 0:
        raise ConfigError(f"{directory.path}: how long its rollouts took is not known; check a run of this version")
    usage = totals.usage
    return ActualRun(totals.rollouts, seconds, measure_disk(directory.path), usage.tokens, usage.dollars)


def _make_checked(profile: RunProfile, config: Config, nodes: int) -> Machines:
    """The machines of a finished run. In one process there is no engine to pay for; on a cluster, `run.concurrency` is
    divided among its nodes."""
    machines = make_machines(profile, config)
    if config.engine.type == "local":
        return msgspec.structs.replace(machines, engine_ms=0.0, network_mbit=float("inf"), starting=0)
    each = config.engine.per_node or max(1, config.run.concurrency // nodes)
    return msgspec.structs.replace(machines, per_node=config.plan.per_node or each)


# ---- the forecast -------------------------------------------------------------------------------------------------


def read_nodes(text: str) -> tuple[int, ...]:
    """Numbers of nodes, such as `1,8,64`, which is also the default."""
    try:
        found = tuple(dict.fromkeys(int(word) for word in (text or "1,8,64").split(",")))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise ConfigError(f"--nodes is '{text}': use whole numbers from 1 on, as in --nodes 1,8,64")
    return found


def make_machines(profile: RunProfile, config: Config) -> Machines:
    plan, engine = config.plan, config.engine
    return Machines(
        per_node=plan.per_node or engine.per_node or config.run.concurrency,
        starting=(config.sandbox.starting or 0) if plan.starting is None else plan.starting,
        cores=plan.cores or os.cpu_count() or 1,
        server=choose_server_limit(plan, config.model, profile),
        network_mbit=plan.network_mbit,
        engine_ms=plan.engine_ms,
        node_dollars=plan.node_dollars,
    )


def make_forecast(profile: RunProfile, config: Config, nodes: Sequence[int], total: int) -> Forecast:
    """The forecasts for these nodes and for those of the plot."""
    counts = sorted({*nodes, *PLOTTED})
    return forecast(profile, make_machines(profile, config), counts, total, config.run.seed)


COMMAND = Command(
    run,
    "ludus plan terminal-test --nodes 1,8,64 --model.base_url URL --model.name NAME --run.concurrency 32\n"
    "ludus plan --from runs/first --nodes 1,8,64 --plan.server_tokens_per_second 20000 --plan.node_dollars 1.2\n"
    "ludus plan --check runs/first",
    (
        *RUN_TAKES,
        ENGINE,
        make_argument("--nodes", metavar="N,N", default="", help="numbers of nodes; default: 1,8,64; with --check: 1"),
        make_argument(
            "--from", dest="source", metavar="RUN", default="", help="use the rollouts of a run: nothing is run"
        ),
        make_argument(
            "--check",
            metavar="RUN",
            default="",
            help="compare the forecast of a finished run with what it did; exit code 1 outside of plan.tolerance",
        ),
    ),
    PlanArguments,
    RUN_SETTINGS + "\n  --plan.total 100000 --plan.server_tokens_per_second 20000 --plan.node_dollars 1.2",
    ROLLOUTS | {"plan"},
)
