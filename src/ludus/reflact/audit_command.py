"""`ludus audit-skill`: which passages of a skill earn their tokens. No optimizer is needed.

Train and selection tasks are run with texts that lack random passages. The run directory keeps the rollouts, so an
audit that was stopped is resumed. The test split stays sealed.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import msgspec

from ludus.arguments import RunArguments, make_argument
from ludus.command import ENGINE, ROLLOUTS, RUN_TAKES, Command
from ludus.command.run_command import RunResult, RunWork, run_command
from ludus.command.settings import recall_number
from ludus.command.terminal import format_count, print_notice
from ludus.config import Config
from ludus.config.tree import TRAINING, WEIGHTS
from ludus.encoding import to_json
from ludus.errors import ConfigError, LudusError
from ludus.policy import Policy
from ludus.reflact.audit_table import REPORT, print_audit
from ludus.reflact.command import make_plan
from ludus.reflact.gate import ScoreTally, project, resolve_metric
from ludus.reflact.journal import Journal, StageProgress
from ludus.reflact.ledger.passages import list_passages
from ludus.reflact.measure import Outage, SkillRunner, Stopped, Trial, tally_scores
from ludus.reflact.plan import Plan, hash_content
from ludus.reflact.skill_audit import AuditReading, SkillAudit, audit_passages, sample_texts
from ludus.reflact.training_run import explain_strays, get_initial_skill
from ludus.reflact.training_tables import TrainingBar
from ludus.run import Run, RunKind
from ludus.run_info import note_planned


class NothingAudited(LudusError):
    """No rollout has a score."""


AUDIT = RunKind("audit-skill", sections=TRAINING | WEIGHTS, failures=(Outage, NothingAudited), files={"report": REPORT})


ROLLOUTS_OF_AUDIT = 800


class SkillAuditArguments(RunArguments):
    rollouts: int | None


def run(arguments: SkillAuditArguments) -> int:
    return run_command(arguments, SkillAuditWork, "ludus audit-skill gsm8k --agent.skill SKILL.md")


class SkillAuditWork(RunWork):
    """Runs the skill without random passages."""

    kind = AUDIT

    def __init__(self, config: Config, arguments: SkillAuditArguments) -> None:
        self.config = config
        self.count = recall_number(config, "rollouts", arguments.rollouts, ROLLOUTS_OF_AUDIT)
        self.plan = make_plan(config)
        self.env = self.plan.env
        self.quiet = arguments.quiet or arguments.json
        self.result: dict[str, Any] | None = None
        tasks = len(self.plan.splits.train) + len(self.plan.selection)
        if tasks < 2:
            raise ConfigError(f"data: an audit needs at least two train and selection tasks, and there is {tasks}")
        if self.count < 2 * tasks:
            raise ConfigError(
                f"--rollouts is {self.count}, but passages are compared within tasks: give at least two for each of "
                f"the {tasks} train and selection tasks, or use fewer tasks (data.limit)"
            )

    def prepare(self, policy: Policy) -> Mapping[str, str]:
        if words := explain_strays(get_initial_skill(policy)):
            print_notice(words)
        if not list_passages(get_initial_skill(policy)):
            raise ConfigError("agent.skill: there is no passage to audit; give a skill that says something")
        return {**hash_content(self.plan, policy), "command": AUDIT.name, "rollouts": str(self.count)}

    async def work(self, run: Run) -> bool:
        note_planned(run.directory, self.count)
        bar = None if self.quiet else TrainingBar(self.plan.settings.gate, 0, self.count)

        def show(progress: StageProgress) -> None:
            run.write_spent()
            if bar is not None:
                bar(progress, f"{format_count(run.ledger.total.usage.tokens)} tokens")

        runner = SkillRunner(run.runner, run.policy, Journal(show), self.plan.settings.max_failed)
        with bar or nullcontext():
            try:
                found = await measure_passages(runner, self.plan, self.count)
            except Stopped:
                return False
        if found.rollouts == found.failed:
            raise NothingAudited("no rollout has a score: look at the failed rollouts")
        self.result = msgspec.to_builtins(found)
        run.directory.write(REPORT, msgspec.json.format(to_json(found), indent=2) + b"\n")
        return True

    def conclude(self, run: Run) -> RunResult:
        result = self.result
        return RunResult({"audit": result}, lambda out: print_audit(result, out))


async def measure_passages(runner: SkillRunner, plan: Plan, count: int) -> SkillAudit:
    """Run the tasks in turn, each time with a text of its own, and judge each passage."""
    skill, seed = get_initial_skill(runner.policy), plan.settings.seed
    passages, tasks = list_passages(skill), [*plan.splits.train, *plan.selection]
    texts = sample_texts(skill, passages, count, seed)
    trials = [
        Trial(text, tasks[place % len(tasks)], seed, place // len(tasks)) for place, (text, _) in enumerate(texts)
    ]
    rollouts = await runner.run_trials(trials, "audit")
    gate = resolve_metric(plan.settings.gate, tally_scores(ScoreTally(), rollouts))
    scored = [
        AuditReading(rollout.task.id, present, project(gate, float(rollout.score.passed), rollout.score.soft))
        for rollout, (_, present) in zip(rollouts, texts, strict=True)
        if rollout.score is not None
    ]
    return audit_passages(passages, scored, len(rollouts) - len(scored), gate.metric)


COMMAND = Command(
    run,
    "ludus audit-skill gsm8k --agent.skill SKILL.md --model.base_url URL --model.name NAME\n"
    "ludus audit-skill gsm8k --agent.skill SKILL.md --rollouts 1600   # narrower intervals",
    (
        *RUN_TAKES,
        ENGINE,
        make_argument(
            "--rollouts",
            type=int,
            default=None,
            metavar="N",
            help=f"how many rollouts are run, each without some passages; default: {ROLLOUTS_OF_AUDIT}",
        ),
    ),
    SkillAuditArguments,
    "settings: those of ludus train (list them: ludus config; explained in docs/skill-training.md)",
    ROLLOUTS | TRAINING | {"engine", "budget.rollouts"},
)
