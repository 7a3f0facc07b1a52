"""`ludus train`: train the skill of a frozen agent.

Settings and data are checked before the run directory is made and before a model is called. With `--dry-run` the
command prints what the run would take and stops. The trainer yields records; this module writes them
(`ludus.reflact.report.run_files`), shows the progress and prints the result.

The recorded settings have a section `content`: hashes of the skill, the prompts and the tasks that the settings refer
to. A resumed run in which one of these has changed is refused, like one with other settings.
"""

import asyncio
import dataclasses
import json
import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from ludus.arguments import RunArguments, make_argument
from ludus.command import ENGINE, ROLLOUTS, RUN_TAKES, Command
from ludus.command.run_command import DryRun, RunResult, RunWork, run_command
from ludus.command.settings import refuse_batch_settings
from ludus.command.terminal import format_count, format_money, print_notice
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.build_models import build_claim_model, build_models
from ludus.config.build_training import build_proposer, build_rule, build_train_settings, has_optimizer
from ludus.config.tree import TRAINING, WEIGHTS, NoModelSettings, SameSettings
from ludus.errors import ConfigError, ModelError
from ludus.models import Model
from ludus.models.ledger import Ledger, LedgerReserve
from ludus.policy import Policy
from ludus.reflact.claim_arms import FEWEST_TASKS, plan_samples, sum_training
from ludus.reflact.estimate_command import print_dry_run, simulate_run
from ludus.reflact.gate import Gate
from ludus.reflact.journal import StageProgress, Watch
from ludus.reflact.ledger.rollout_plan import plan_rollouts
from ludus.reflact.measure import Outage
from ludus.reflact.plan import Plan, find_own_proposer, hash_content, make_skill_head
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.records import Record, Step, Summary, count_rollouts, count_useless_replies, list_record_values
from ludus.reflact.report import run_files as files
from ludus.reflact.report.run_files import RunRecorder, find_tested_skills
from ludus.reflact.split_hints import list_split_hints
from ludus.reflact.splits import load_splits
from ludus.reflact.train_settings import TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import ClaimPlan, Resources, check_fit, explain_strays, get_initial_skill
from ludus.reflact.training_tables import TrainingBar, print_training
from ludus.run import Run, RunKind
from ludus.run_info import REPORT
from ludus.suspects import SuspectPolicy

_SETTINGS = """\
settings (list them: ludus config; explained in docs/skill-training.md):
  --data.pool train,test --data.ratio 1:1:1                how tasks are divided: train, selection, test
  --model.base_url URL --model.name NAME                   the agent's model
  --optimizer.base_url URL --optimizer.name NAME           the model that proposes changes
  --recipe ledger --train.epochs 4 --agent.skill SKILL.md --budget.rollouts 800 --budget.dollars 2"""

TRAIN = RunKind(
    "train",
    sections=TRAINING | WEIGHTS,
    failures=(Outage, ModelError),
    files={
        "steps": files.STEPS,
        "summary": files.SUMMARY,
        "report": REPORT,
        "best": files.BEST,
        "best_on_selection": files.BEST_ON_SELECTION,
        "final": files.FINAL,
    },
)


class TrainArguments(RunArguments):
    dry_run: bool
    recipe: str
    claim: bool


def run(arguments: TrainArguments) -> int:
    if arguments.recipe:
        arguments.flags = [*arguments.flags, ("train.recipe", arguments.recipe)]
    if arguments.claim:
        arguments.flags = [*arguments.flags, ("claim.enabled", "true")]
    return run_command(arguments, begin, "ludus train gsm8k")


def begin(config: Config, arguments: TrainArguments) -> "TrainingWork | DryRun":
    plan = make_plan(config)
    if arguments.dry_run:
        _print_split_hints(config, plan)
        return DryRun(lambda: asyncio.run(print_dry_run(config, plan, as_json=arguments.json)))
    if not arguments.quiet:
        _print_hints(config, plan)
    return TrainingWork(config, plan, arguments)


def make_plan(config: Config) -> Plan:
    """Read the data and the prompts. Raises `ConfigError` if something is wrong with them, or with the settings."""
    _refuse_other_settings(config)
    env = build_env(config)
    settings = build_train_settings(config)
    splits = load_splits(env, config.data, config.claim.kinds, config.claim.split)
    prompts = Prompts.load(Path(config.train.prompts) if config.train.prompts else None, env.name)
    proposer = find_own_proposer(env) or build_proposer(config.train)
    check_fit(settings, splits, proposer, has_optimizer(config))
    claim = _plan_claim(config) if config.claim.enabled else None
    return Plan(env, splits, settings, proposer, prompts, build_rule(config.train), claim)


def _plan_claim(config: Config) -> ClaimPlan:
    """The arms of the claim that the settings ask for."""
    claim = config.claim
    if not config.train.test:
        raise ConfigError("claim.enabled: the arms are compared on the test tasks, so train.test must be true")
    if not isinstance(config.claim_model, NoModelSettings) and config.engine.type != "local":
        raise ConfigError(f"claim_model: engine.type {config.engine.type} runs one model: use --engine.type local")
    names = [f"kind {', '.join(claim.kinds)}" if claim.kinds else "", f"split {claim.split}" if claim.split else ""]
    return ClaimPlan(claim.best_of, claim.rollouts, " and ".join(filter(None, names)))


INSTEAD = {
    "run.seed": "train.seed and data.seed",
    "env.split": "data.pool, or data.mode 'splits' with data.train, data.selection and data.test",
    "env.limit": "data.limit",
    "env.ids": "data.mode 'folder'",
    "env.group_size": "train.selection_replicates and train.test_replicates",
}
"""What to set in place of settings of other commands."""


def _refuse_other_settings(config: Config) -> None:
    """Raise `ConfigError` for settings that other commands use."""
    refuse_batch_settings(config, "to train", INSTEAD)
    if not config.claim.enabled and not isinstance(config.claim_model, NoModelSettings):
        raise ConfigError("claim_model: it is used to compare the claim of a run: add --claim")
    if config.agent.library:
        raise ConfigError("agent.library: one skill is trained at a time: name it with agent.skill")
    if config.tools.distribution:
        raise ConfigError(
            "tools.distribution samples toolsets at random, which training cannot: name them (tools.enabled)"
        )


def _print_hints(config: Config, plan: Plan) -> None:
    _print_split_hints(config, plan)
    if isinstance(config.optimizer, SameSettings) and has_optimizer(config):
        print_notice("optimizer: the agent's own model. Another one: --optimizer.base_url URL --optimizer.name NAME")
    elif not has_optimizer(config) and _writes_lessons(config.train):
        print_notice("no optimizer's model: slow update and optimizer memory, which need one, are off")


def _writes_lessons(settings: TrainSettings) -> bool:
    """Whether the optimizer is asked at the end of an epoch."""
    return settings.recipe == "reflact" and (settings.slow.enabled or settings.memory)


def _print_split_hints(config: Config, plan: Plan) -> None:
    """Say what the splits are, whether they can show that a skill is better, and whether the claim can be compared."""
    for hint in list_split_hints(config.data, plan.settings, plan.split_sizes, len(plan.selection)):
        print_notice(hint)
    if warning := explain_claim_limit(config.budget.rollouts, plan):
        print_notice(warning)


def explain_claim_limit(limit: int | None, plan: Plan) -> str:
    """What to tell a user whose limit of rollouts leaves too few for the arm of equal budget; else nothing. `limit`:
    that of training, shipping and test."""
    claim, settings, tests = plan.claim, plan.settings, plan.sizes.test
    if claim is None or claim.rollouts is None:
        return ""
    rollouts = 2 * tests * settings.test_replicates
    is_ledger = settings.recipe == "ledger"
    trained = plan_rollouts(settings, plan.sizes.train, rollouts, limit).training if is_ledger else 0
    left = max(0, claim.rollouts - claim.count_transfers(plan.splits, settings))
    if plan_samples(trained, tests, claim.best_of, left) is not None:
        return ""
    samples = plan_samples(trained, tests, claim.best_of, None)
    least = (
        "" if samples is None else f" of at least {min(FEWEST_TASKS, tests)} tasks with {samples.samples} tries each"
    )
    return (
        f"claim.rollouts is {claim.rollouts}, which leaves too few for the arm of equal budget{least}: the difference "
        "will not be compared. Raise it, or set fewer tries (claim.best_of)"
    )


# ---- running ------------------------------------------------------------------------------------------------------


class TrainingWork(RunWork):
    """Trains the skill of the policy."""

    kind = TRAIN
    optimizer: Model | None = None
    claim_model: Model | None = None

    def __init__(self, config: Config, plan: Plan, arguments: TrainArguments) -> None:
        self.config, self.plan, self.env = config, plan, plan.env
        self.quiet = arguments.quiet or arguments.json
        self.records: Sequence[Record] = ()

    async def open_model(self, config: Config, ledger: Ledger, stack: AsyncExitStack) -> Model:
        model, self.optimizer = build_models(config, ledger, print_notice)
        if self.optimizer is not None and not isinstance(config.optimizer, SameSettings):
            stack.push_async_callback(self.optimizer.close)
        self.claim_model = build_claim_model(config, ledger, print_notice)
        if self.claim_model is not None:
            stack.push_async_callback(self.claim_model.close)
        return model

    def prepare(self, policy: Policy) -> Mapping[str, str]:
        if words := explain_strays(get_initial_skill(policy)):
            print_notice(words)
        return hash_content(self.plan, policy)

    async def work(self, run: Run) -> bool:
        """Train until the run is complete, interrupted, out of budget or broken. What was finished is in the files."""
        recorder = RunRecorder(run.directory, self.plan.settings, make_skill_head(self.plan.env))
        self.records = recorder.records
        async with self._show_progress(run) as bar:

            def on_progress(progress: StageProgress) -> None:
                if progress.total:
                    run.write_spent()
                bar(progress, _describe_spending(self.config, run.ledger))

            async with aclosing(self._start_training(run, on_progress)) as records:
                async for record in records:
                    recorder.add(record)
                    is_known = recorder.taken <= recorder.known
                    bar.record(record, quiet=is_known)
                    if not is_known:
                        run.trackers.log(list_record_values(record), record.state.step)
        return bool(recorder.records) and _is_complete(recorder.records[-1], self.plan.claim)

    def _start_training(self, run: Run, on_progress: Watch) -> AsyncGenerator[Record, None]:
        config, plan = self.config, self.plan
        return train(
            run.runner,
            run.policy,
            plan.splits,
            plan.settings,
            optimizer=self.optimizer,
            proposer=plan.proposer,
            prompts=plan.prompts,
            rule=plan.rule,
            resources=Resources(
                optimizer_concurrency=config.run.concurrency,
                watch=on_progress,
                rollouts=config.budget.rollouts,
                reserve=LedgerReserve(run.ledger),
                tested_before=find_tested_skills(run.directory.path, plan.splits.test.digest),
                claim=plan.claim and dataclasses.replace(plan.claim, model=self.claim_model),
            ),
        )

    @asynccontextmanager
    async def _show_progress(self, run: Run) -> "AsyncGenerator[TrainingBar | _NoBar, None]":
        if self.quiet:
            yield _NoBar()
            return
        likely = await simulate_run(self.config, self.plan, run.policy)
        gate, rollouts = self.plan.settings.gate, count_rollouts(likely.spent)
        with TrainingBar(gate, likely.steps, rollouts, control=run.control) as bar:
            yield bar

    def conclude(self, run: Run) -> RunResult:
        records, gate, suspects = tuple(self.records), self.plan.settings.gate, run.runner.suspects
        useless = run.outcome is not None and run.outcome.status == "completed" and _report_useless_replies(records)
        return RunResult(
            _describe_records(records), lambda out: _print_result(records, gate, out, suspects), failed=bool(useless)
        )


def _is_complete(last: Record, claim: ClaimPlan | None) -> bool:
    """Whether a run whose last record this is has nothing left to do."""
    return isinstance(last, Summary) and (claim is None or last.arms is not None)


class _NoBar:
    """In place of a `TrainingBar` where nothing is shown."""

    def __call__(self, stage: StageProgress, spent: str) -> None: ...

    def record(self, record: Record, *, quiet: bool = False) -> None: ...


def _describe_spending(config: Config, ledger: Ledger) -> str:
    """What is spent, and the limits of the budget."""
    total, budget = ledger.total, config.budget
    words = [f"{format_count(total.usage.tokens)}{_format_limit(budget.tokens and format_count(budget.tokens))} tokens"]
    if total.usage.dollars or budget.dollars:
        words.append(
            f"{format_money(total.usage.dollars)}{_format_limit(budget.dollars and format_money(budget.dollars))}"
        )
    if budget.calls:
        words.append(f"{total.calls} of {budget.calls} calls")
    for role, limits in (("agent", budget.agent), ("optimizer", budget.optimizer)):
        spent = ledger.roles.get(role)
        if spent is not None and limits.dollars:
            words.append(f"{role} {format_money(spent.usage.dollars)} of {format_money(limits.dollars)}")
    return ", ".join(words)


def _format_limit(limit: str | float | None) -> str:
    return f" of {limit}" if limit else ""


# ---- the result ---------------------------------------------------------------------------------------------------


def _describe_records(records: Sequence[Record]) -> dict[str, Any]:
    """The part of the JSON report that is about training."""
    last = records[-1] if records else None
    summary = json.loads(files.encode_summary(last, records)) if isinstance(last, Summary) else None
    return {"steps": last.state.step if last else 0, "summary": summary}


def _report_useless_replies(records: Sequence[Record]) -> int:
    """Say so if the run is complete although the optimizer gave no usable reply. Returns 1 in this case, else 0."""
    useless = count_useless_replies(records) if records and isinstance(records[-1], Summary) else 0
    if not useless:
        return 0
    problem = next(event.problem for record in records if isinstance(record, Step) for event in record.events)
    last = records[-1]
    trimmed = isinstance(last, Summary) and last.best.skill != last.initial.skill
    learned = "nothing was learned" + (" but that passages of your skill cost something" if trimmed else "")
    print_notice(
        f"0 of {useless} replies of the optimizer were usable, so {learned}. The first problem: {problem}. "
        "Use another model (--optimizer.base_url URL --optimizer.name NAME), or give it more room (train.reply_tokens)"
    )
    return 1


def _print_result(records: Sequence[Record], gate: Gate, out: Path, suspects: SuspectPolicy) -> None:
    print_training(records, gate, suspects=suspects)
    last = records[-1] if records else None
    if isinstance(last, Summary) and last.ended_early:
        print_notice(f"training ended early, so that shipping and test fit into the budget: {last.ended_early}")
    if isinstance(last, Summary) and (words := suggest_claim(last, out)):
        print_notice(words)
    print(f"\n{out}\n  ludus show {shlex.quote(str(out))}   the steps again; add a task id for a transcript")
    if isinstance(last, Summary) and last.best.skill != last.initial.skill:
        print(f"  ludus review {shlex.quote(str(out))}   decide about each change, with its evidence")
    packages = [f"{files.PACKAGE}/{path.name}" for path in sorted((out / files.PACKAGE).glob("*"))]
    shown = {
        files.BEST: "the skill that is shipped",
        **dict.fromkeys(packages, "its package, for agents"),
        files.BEST_ON_SELECTION: "the best one on the selection split",
        REPORT: "the whole run in a browser",
    }
    for name, words in shown.items():
        if (out / name).exists():
            print(f"  {(out / name).resolve().as_uri() if name.endswith('.html') else out / name}   {words}")


def suggest_claim(summary: Summary, out: Path) -> str:
    """How to find out whether a better skill is worth its rollouts, if that was not measured; else nothing."""
    if summary.arms is not None or summary.claim is None or not summary.claim.is_better:
        return ""
    rollouts, _ = sum_training(summary.spent)
    return (
        f"not compared yet: what the same {rollouts} rollouts bring as samples of the initial skill. It takes as many "
        f"again: ludus train --resume --claim --out {shlex.quote(str(out))}"
    )


COMMAND = Command(
    run,
    "ludus train gsm8k --dry-run        # estimate the cost\n"
    "ludus train gsm8k --data.pool train,test --data.ratio 1:1:1 --out runs/skill\n"
    "ludus train --resume --out runs/skill\n"
    "ludus train --resume --claim --out runs/skill        # is it worth more than sampling the initial skill again?",
    (
        *RUN_TAKES,
        ENGINE,
        make_argument(
            "--recipe",
            metavar="NAME",
            default="",
            help="how to learn: ledger (evidence for each line) or reflact (a gate for each candidate)",
        ),
        make_argument(
            "--claim",
            action="store_true",
            help="also measure what the same rollouts bring as samples of the initial skill, and where it was not "
            "trained (claim.kinds, claim.split, claim_model); also for a finished run, with --resume",
        ),
        make_argument("--dry-run", action="store_true", help="estimate calls, tokens and cost, and stop"),
    ),
    TrainArguments,
    _SETTINGS,
    ROLLOUTS | TRAINING | {"engine", "budget", "tracking"},
)
