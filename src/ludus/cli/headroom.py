"""`ludus headroom`: measure before training whether it is worth it.

The initial skill runs twice on the selection split, and some train tasks run with their reference as a hint. The run
directory keeps the rollouts, so a run that was stopped is resumed. The test split stays sealed.
"""

import asyncio
import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ludus.cli.acting_envs import make_actor, redirect_prints
from ludus.cli.command import RUN_TAKES, Command, RunArguments, make_argument
from ludus.cli.common import (
    AgentParts,
    RunOutcome,
    RunReport,
    choose_exit_code,
    count_bugs,
    open_agent,
    open_ledger,
    open_run,
    print_model_hint,
    print_report,
    read_settings,
    require_env,
    run_to_end,
    set_out,
    write_spent,
)
from ludus.cli.output.headroom_table import REPORT, print_headroom
from ludus.cli.output.terminal import format_count
from ludus.cli.output.training_tables import TrainingBar
from ludus.cli.run_kind import HEADROOM
from ludus.cli.train_estimate import estimate_run
from ludus.cli.train_plan import Plan, hash_content, make_plan
from ludus.config import Config, to_record, to_yaml
from ludus.config.build_models import build_model
from ludus.config.tree import CONTENT
from ludus.errors import ConfigError
from ludus.models.ledger import Ledger
from ludus.reflact.cost_estimate import Estimate
from ludus.reflact.earlier_runs import EarlierRun
from ludus.reflact.headroom import Headroom, add_hint, advise, assess, judge_outlook, list_hinted
from ludus.reflact.journal import Journal, StageProgress
from ludus.reflact.measure import Outage, Runner, Stopped, Trial, make_measure
from ludus.reflact.training_run import get_initial_skill
from ludus.store import RunDir
from ludus.types import to_json


class HeadroomArguments(RunArguments):
    hints: int


def run(arguments: HeadroomArguments) -> int:
    config = read_settings(arguments)
    if arguments.print_config:
        print(to_yaml(config), end="")
        return 0
    require_env(config, "ludus headroom gsm8k")
    if arguments.hints < 0:
        raise ConfigError(f"--hints is {arguments.hints}: use 0 for none")
    with redirect_prints(config.env.name):
        plan = make_plan(config)
    config = set_out(config)
    if not arguments.quiet:
        print_model_hint(config)
    return asyncio.run(_run(config, plan, arguments))


async def _run(config: Config, plan: Plan, arguments: HeadroomArguments) -> int:
    ledger = open_ledger(config)
    model = build_model(config.model, ledger)
    async with open_agent(config, plan.env, model, ledger, make_actor(plan.env, model)) as agent:
        content = {**hash_content(plan, agent.policy), "command": HEADROOM, "hints": str(arguments.hints)}
        with open_run(config, {**to_record(config), CONTENT: content}) as directory, redirect_prints(config.env.name):
            bar = None if arguments.quiet or arguments.json else _open_bar(plan, arguments.hints)
            session = _Measurement(config, plan, agent, directory, ledger, arguments.hints, bar)
            with bar or nullcontext():
                outcome = await run_to_end(session.run, (Outage,))
            if session.result is not None:
                directory.write(REPORT, msgspec.json.format(to_json(session.result), indent=2) + b"\n")
            bugs = count_bugs(directory)
    if outcome.status == "completed" and session.result is None:
        outcome = RunOutcome("broken", "no selection task has a score in both runs: look at the failed rollouts")
    facts = {"headroom": session.result}
    report = RunReport(outcome, Path(config.run.out), ledger, facts, {"report": REPORT}, bugs)
    print_report(report, arguments, lambda: print_headroom(session.result, report.out))
    return choose_exit_code(report)


def _open_bar(plan: Plan, hints: int) -> TrainingBar:
    hinted = len(list_hinted(plan.splits.train, hints))
    rollouts = 2 * plan.sizes.selection * plan.settings.selection_replicates + 2 * hinted
    return TrainingBar(plan.settings.gate, 0, rollouts)


@dataclass
class _Measurement:
    """The rollouts of a headroom run, and its result."""

    config: Config
    plan: Plan
    agent: AgentParts
    directory: RunDir
    ledger: Ledger
    hints: int
    bar: TrainingBar | None
    result: dict[str, Any] | None = None

    async def run(self, stop: asyncio.Event) -> bool:
        journal = Journal(self._show)
        options = self.config.run.make_options(stop)
        runner = Runner(self.plan.env, self.agent.policy, self.agent.pool, self.directory, journal, options)
        try:
            found = await measure_headroom(runner, self.plan, self.hints)
        except Stopped:
            return False
        finally:
            write_spent(self.directory, self.ledger)
        if found is not None:
            before = EarlierRun(str(self.directory.path), journal.sum_costs(), 1.0 - found.score)
            guess = estimate_run(self.config, self.plan, self.agent.policy, before)
            self.result = describe_headroom(found, guess)
        return True

    def _show(self, progress: StageProgress) -> None:
        write_spent(self.directory, self.ledger)
        if self.bar is not None:
            self.bar(progress, f"{format_count(self.ledger.total.usage.tokens)} tokens")


async def measure_headroom(runner: Runner, plan: Plan, hints: int) -> Headroom | None:
    """Run the initial skill twice on the selection split, and train tasks without and with a hint, side by side."""
    skill, settings = get_initial_skill(runner.policy), plan.settings
    size = settings.selection_replicates
    tasks = plan.selection
    arms = [
        [Trial(skill, task, settings.seed, r) for task in tasks for r in range(start, start + size)]
        for start in (0, size)
    ]
    hinted = list_hinted(plan.splits.train, hints)
    plain = [Trial(skill, task, settings.seed) for task in hinted]
    told = [Trial(add_hint(skill, task), task, settings.seed) for task in hinted]
    rollouts = iter(await runner.roll([*arms[0], *arms[1], *plain, *told], "headroom"))
    first, second, unhinted, with_hint = ([next(rollouts) for _ in part] for part in (*arms, plain, told))
    return assess(make_measure(skill, first), make_measure(skill, second), with_hint, unhinted)


def describe_headroom(found: Headroom, guess: Estimate) -> dict[str, Any]:
    """The report as plain values: the numbers, the outlook, the sentence, and what a training run would take."""
    cost = {
        role: {"calls": guess.count_calls(role).likely, "tokens": guess.count_tokens(role).likely}
        for role in ("agent", "optimizer")
    }
    numbers = json.loads(to_json(found))
    return {**numbers, "room": found.room, "outlook": judge_outlook(found), "advice": advise(found), "training": cost}


COMMAND = Command(
    run,
    "ludus headroom gsm8k --data.pool train,test --data.ratio 1:1:1 --model.base_url URL --model.name NAME\n"
    "ludus headroom gsm8k --hints 0        # without the upper bound: no train task is run",
    (
        *RUN_TAKES,
        make_argument(
            "--hints",
            type=int,
            default=16,
            metavar="N",
            help="how many train tasks are run with the reference answer as a hint, for the upper bound; default: 16",
        ),
    ),
    HeadroomArguments,
    "settings: those of ludus train (list them: ludus config; explained in docs/skill-training.md)",
)
