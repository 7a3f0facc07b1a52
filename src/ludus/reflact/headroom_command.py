"""`ludus headroom`: measure before training whether it is worth it, and which of the two is: words or weights.

The initial skill runs twice on the selection split, and some train tasks run with their reference as a hint. The run
directory keeps the rollouts, so a run that was stopped is resumed. The test split stays sealed.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import combinations
from typing import Any

import msgspec

from ludus.arguments import RunArguments, make_argument
from ludus.command import ENGINE, ROLLOUTS, RUN_TAKES, Command
from ludus.command.run_command import RunResult, RunWork, run_command
from ludus.command.settings import recall_number
from ludus.command.terminal import format_count
from ludus.config import Config
from ludus.config.tree import TRAINING, WEIGHTS
from ludus.encoding import to_json
from ludus.errors import ConfigError, LudusError
from ludus.policy import Policy
from ludus.reflact.command import make_plan
from ludus.reflact.earlier_runs import EarlierRun
from ludus.reflact.estimate import Estimate
from ludus.reflact.estimate_command import estimate_run
from ludus.reflact.gate import Gate, ScoreTally, resolve_metric
from ludus.reflact.headroom import Headroom, add_hint, advise, assess, explain_words, judge_outlook, list_hinted
from ludus.reflact.headroom_table import REPORT, print_headroom
from ludus.reflact.journal import Journal, StageProgress
from ludus.reflact.ledger.rollout_plan import plan_rollouts
from ludus.reflact.measure import (
    Outage,
    SkillRunner,
    Stopped,
    Trial,
    choose_success_at,
    is_success,
    make_measure,
    tally_scores,
)
from ludus.reflact.plan import Plan, hash_content
from ludus.reflact.training_run import get_initial_skill
from ludus.reflact.training_tables import TrainingBar
from ludus.reflact.weights_outlook import (
    RlPlanSizes,
    TaskTally,
    WeightsOutlook,
    advise_weights,
    choose_advice,
    foresee_weights,
)
from ludus.run import Run, RunKind
from ludus.run_info import note_planned
from ludus.types import Rollout


class NothingMeasured(LudusError):
    """No task has a score in both runs."""


HEADROOM = RunKind(
    "headroom", sections=TRAINING | WEIGHTS, failures=(Outage, NothingMeasured), files={"report": REPORT}
)


HINTS = 16


class HeadroomArguments(RunArguments):
    hints: int | None


def run(arguments: HeadroomArguments) -> int:
    return run_command(arguments, HeadroomWork, "ludus headroom gsm8k")


class HeadroomWork(RunWork):
    """Measures the initial skill."""

    kind = HEADROOM

    def __init__(self, config: Config, arguments: HeadroomArguments) -> None:
        self.config, self.hints = config, recall_number(config, "hints", arguments.hints, HINTS)
        if self.hints < 0:
            raise ConfigError(f"--hints is {self.hints}: use 0 for none")
        self.plan = make_plan(config)
        self.env = self.plan.env
        self.passes = count_ship_passes(self.plan, config.budget.rollouts)
        self.quiet = arguments.quiet or arguments.json
        self.result: dict[str, Any] | None = None

    def prepare(self, policy: Policy) -> Mapping[str, str]:
        return {**hash_content(self.plan, policy), "command": HEADROOM.name, "hints": str(self.hints)}

    async def work(self, run: Run) -> bool:
        note_planned(run.directory, self._count_rollouts())
        bar = None if self.quiet else TrainingBar(self.plan.settings.gate, 0, self._count_rollouts())

        def show(progress: StageProgress) -> None:
            run.write_spent()
            if bar is not None:
                bar(progress, f"{format_count(run.ledger.total.usage.tokens)} tokens")

        journal = Journal(show)
        runner = SkillRunner(run.runner, run.policy, journal)
        with bar or nullcontext():
            try:
                found, rollouts, gate = await measure_headroom(runner, self.plan, self.hints, self.passes)
            except Stopped:
                return False
        if found is None:
            raise NothingMeasured("no selection task has a score in both runs: look at the failed rollouts")
        before = EarlierRun(str(run.directory.path), journal.sum_costs(), 1.0 - found.score)
        weights = self._foresee_weights(rollouts, gate)
        self.result = describe_headroom(found, await estimate_run(self.config, self.plan, run.policy, before), weights)
        run.directory.write(REPORT, msgspec.json.format(to_json(self.result), indent=2) + b"\n")
        return True

    def _foresee_weights(self, rollouts: Sequence[Rollout], gate: Gate) -> WeightsOutlook | None:
        """What RL with the settings of `rl` would need, from the rollouts of the initial skill."""
        rl = self.config.rl
        tokens = sum(rollout.usage.tokens for rollout in rollouts) / max(1, len(rollouts))
        bar = choose_success_at(self.plan.settings.success_at, gate, tally_scores(ScoreTally(), rollouts))
        sizes = RlPlanSizes(rl.steps, rl.groups, rl.group_size)
        return foresee_weights(tally_tasks(rollouts, bar), sizes, tokens, bar)

    def _count_rollouts(self) -> int:
        plan = self.plan
        hinted = len(list_hinted(plan.splits.train, self.hints))
        return 2 * plan.sizes.selection * plan.settings.selection_replicates + 2 * hinted

    def conclude(self, run: Run) -> RunResult:
        result = self.result
        return RunResult({"headroom": result}, lambda out: print_headroom(result, out))


def tally_tasks(rollouts: Sequence[Rollout], success_at: float | None = None) -> list[TaskTally]:
    """How many rollouts of each task have a score, how many passed, and how many pairs of them differ in score.
    `success_at`: the score from which one counts as passed; None: if it passed."""
    by_task: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.score is not None:
            by_task.setdefault(rollout.task.id, []).append(rollout)
    return [_tally_task(scored, success_at) for scored in by_task.values()]


def _tally_task(scored: Sequence[Rollout], success_at: float | None) -> TaskTally:
    values = [rollout.score.value for rollout in scored if rollout.score is not None]
    unequal = sum(one != other for one, other in combinations(values, 2))
    return TaskTally(len(scored), sum(is_success(rollout, success_at) for rollout in scored), unequal)


def count_ship_passes(plan: Plan, limit: int | None) -> int:
    """How often shipping can run a candidate and the initial skill on the selection split. 0: the recipe has a gate,
    for which one comparison counts."""
    settings, tasks = plan.settings, len(plan.selection)
    if settings.recipe != "ledger":
        return 0
    if settings.shipping.passes or limit is None:
        return settings.shipping.count_passes(tasks)
    tested = min(plan.sizes.test, settings.test_size or plan.sizes.test) if settings.test else 0
    tests = 2 * settings.test_replicates * tested
    rollouts = plan_rollouts(settings, len(plan.splits.train), tests, limit)
    return max(1, (limit - tests - rollouts.training) // (2 * tasks))


async def measure_headroom(
    runner: SkillRunner, plan: Plan, hints: int, passes: int
) -> tuple[Headroom | None, Sequence[Rollout], Gate]:
    """Run the initial skill twice on the selection split, and train tasks without and with a hint, side by side.
    Returns the rollouts of the selection split and the gate with the metric of their scores too."""
    skill, settings = get_initial_skill(runner.policy), plan.settings
    size = settings.selection_replicates
    tasks = plan.selection
    arms = [
        [Trial(skill, task, settings.seed, r) for task in tasks for r in range(start, start + size)]
        for start in (0, size)
    ]
    hinted = list_hinted(plan.splits.train, hints)
    plain = [Trial(skill, task, settings.seed) for task in hinted]
    hinting = [Trial(add_hint(skill, task), task, settings.seed) for task in hinted]
    rollouts = iter(await runner.run_trials([*arms[0], *arms[1], *plain, *hinting], "headroom"))
    first, second, unhinted, with_hint = ([next(rollouts) for _ in part] for part in (*arms, plain, hinting))
    gate = resolve_metric(plan.settings.gate, tally_scores(ScoreTally(), [*first, *second, *unhinted]))
    shipping = settings.shipping if passes else None
    found = assess(make_measure(skill, first), make_measure(skill, second), with_hint, unhinted, gate, shipping, passes)
    return found, [*first, *second], gate


def describe_headroom(found: Headroom, guess: Estimate, weights: WeightsOutlook | None) -> dict[str, Any]:
    """The report as plain values: the numbers, the outlook, the sentences, and what a training run of the skill and one
    of the weights would take."""
    cost = {
        role: {"calls": guess.count_calls(role).likely, "tokens": guess.count_tokens(role).likely}
        for role in ("agent", "optimizer")
    }
    numbers = json.loads(to_json(found))
    outlook = judge_outlook(found)
    words = outlook == "promising"
    return {
        **numbers,
        "room": found.room,
        "outlook": outlook,
        "advice": advise(found),
        "training": cost,
        "weights": json.loads(to_json(weights)),
        "choice": choose_advice(words, weights),
        "choice_advice": advise_weights(words, explain_words(found), weights),
    }


COMMAND = Command(
    run,
    "ludus headroom gsm8k --data.pool train,test --data.ratio 1:1:1 --model.base_url URL --model.name NAME\n"
    "ludus headroom gsm8k --hints 0        # without the upper bound: no train task is run",
    (
        *RUN_TAKES,
        ENGINE,
        make_argument(
            "--hints",
            type=int,
            default=None,
            metavar="N",
            help="how many train tasks are run with the reference answer as a hint, for the upper bound; "
            f"default: {HINTS}",
        ),
    ),
    HeadroomArguments,
    "settings: those of ludus train (list them: ludus config; explained in docs/skill-training.md), and the size of an "
    "RL run to compare with: --rl.steps 60 --rl.groups 12 --rl.group_size 16",
    ROLLOUTS | TRAINING | {"engine", "budget.rollouts", "rl.steps", "rl.groups", "rl.group_size"},
)
