"""`ludus audit`: find out which tasks of an environment can be passed without doing them."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from ludus import env_checks
from ludus.arguments import RunArguments, make_argument
from ludus.audit.arms import Arm, list_arms
from ludus.audit.audit_page import render_page
from ludus.audit.audit_record import keep_record, make_record
from ludus.audit.audit_run import OpenAgent, run_arms, sort_outcomes
from ludus.audit.audit_table import format_report
from ludus.audit.findings import AuditReport, Outcome, find_best_guess, judge_task
from ludus.batch import BatchProgress, load_tasks
from ludus.batch.command import show_progress
from ludus.command import JUDGING, RUN_TAKES, Command
from ludus.command.run_command import RunResult, RunWork, run_command
from ludus.command.settings import refuse_suspects
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.secrets import find_audits_folder
from ludus.encoding import to_json
from ludus.env import Env, can_solve
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.policy import Agent
from ludus.run import Run, RunKind
from ludus.types import Rollout

REPORT, REPORT_PAGE = "audit.json", "audit.html"
AUDIT = RunKind(
    "audit",
    left_out=frozenset({"model", "sampling", "agent"}),
    files={"report": REPORT, "page": REPORT_PAGE},
)


class AuditArguments(RunArguments):
    attacks: str
    repeats: int


def run(arguments: AuditArguments) -> int:
    return run_command(arguments, AuditWork, "ludus audit terminal-test")


class AuditWork(RunWork):
    """Runs attacks, and judges what they earned."""

    kind = AUDIT

    def __init__(self, config: Config, arguments: AuditArguments) -> None:
        if arguments.repeats < 1:
            raise ConfigError(f"--repeats is {arguments.repeats}: use 1 or more")
        refuse_suspects(config, "an audit shows what was paid and what was noticed")
        self.config = config
        self.env = build_env(config)
        self.tasks = load_tasks(self.env, config.env.split, config.env.limit, config.env.ids)
        self.quiet = arguments.quiet or arguments.json
        self.only = [name.strip() for name in arguments.attacks.split(",") if name.strip()]
        slots = self.env.sandbox is not None or getattr(self.env, "leased", None) is not None
        self.arms = list_arms(self.env, slots=slots, repeats=arguments.repeats, only=self.only)
        self.count = len(self.tasks) * sum(arm.repeats for arm in self.arms)
        self.report: AuditReport | None = None

    async def open_model(self, config: Config, ledger: Ledger, stack: AsyncExitStack) -> Model:
        return self.arms[0].model

    async def open_agent(
        self, config: Config, env: Env, model: Model, ledger: Ledger, stack: AsyncExitStack
    ) -> Agent | None:
        """None: each arm has an agent of its own."""
        return None

    async def work(self, run: Run) -> bool:
        outcomes: list[Outcome] = []
        with show_progress(f"audit of {run.env.name}", self.quiet, run.control) as show:

            def note(rollout: Rollout, outcome: Outcome) -> None:
                outcomes.append(outcome)
                show(rollout, self._count(outcomes, run))

            await run_arms(self.arms, self.tasks, run.runner, run.policy, self._make_opener(run), note)
        if run.control.is_stopping:
            return False
        self.report = await self._judge(run, outcomes)
        run.directory.write(REPORT, msgspec.json.format(to_json(self.report), indent=2) + b"\n")
        run.directory.write(REPORT_PAGE, render_page(self.report).encode())
        if not self.only:
            keep_record(run.env, make_record(self.report), find_audits_folder())
        return True

    def _count(self, outcomes: list[Outcome], run: Run) -> BatchProgress:
        scored = [each.value for each in outcomes if each.value is not None]
        mean = sum(scored) / len(scored) if scored else None
        return BatchProgress(self.count, len(outcomes), len(scored), mean, run.ledger.total.usage)

    def _make_opener(self, run: Run) -> OpenAgent:
        """Opens the agent that the environment, or its source, brings for an arm."""

        async def open_agent(arm: Arm, stack: AsyncExitStack) -> Agent | None:
            agent = await super(AuditWork, self).open_agent(run.config, run.env, arm.model, run.ledger, stack)
            if agent is not None:
                stack.push_async_callback(agent.close)
            return agent

        return open_agent

    async def _judge(self, run: Run, outcomes: list[Outcome]) -> AuditReport:
        env, config = run.env, run.config
        leaks: dict[str, str] = {}
        checks: list[str] = []
        notes = [] if can_solve(env) else [f"{env.name} has no reference (Env.solve), so none was tried"]
        if can_solve(env):
            found = await env_checks.validate(
                run.runner, config.env.split, self.tasks, limits=config.limits, concurrency=config.run.concurrency
            )
            leaks = found.list_problems(env_checks.LEAKS)
            checks = [f"{check.name}: {_name_problem(check)}" for check in found.checks if check.verdict == "fail"]
        counts_on = {arm.name: arm.counts_on for arm in self.arms}
        by_task = sort_outcomes(outcomes)
        return AuditReport(
            env=env.name,
            version=env.version,
            split=config.env.split,
            attacks=tuple(dict.fromkeys(each.arm for each in outcomes if each.kind == "attack")),
            tasks=tuple(judge_task(id, each, counts_on, leaks.get(id, "")) for id, each in by_task.items()),
            guess=find_best_guess(outcomes),
            checks=tuple(checks),
            notes=tuple(notes),
        )

    def conclude(self, run: Run) -> RunResult:
        report = self.report

        def show(out: Path) -> None:
            if report is not None:
                print(format_report(report, out / REPORT))
                print(f"\n{out}\n  {(out / REPORT_PAGE).resolve().as_uri()}   the same in a browser")

        facts = {"audit": None if report is None else {"ok": report.ok, **json.loads(to_json(report))}}
        return RunResult(facts, show, failed=report is not None and not report.ok)


def _name_problem(check: env_checks.EnvCheck) -> str:
    if not check.problems:
        return check.note
    first, *others = check.problems
    return f"{first.task}: {first.message}{f' and {len(others)} more' if others else ''}"


COMMAND = Command(
    run,
    "ludus audit terminal-test\nludus audit harbor --env.path my-tasks --json\nludus audit my_env.py --env.limit 10",
    (
        *RUN_TAKES,
        make_argument("--attacks", default="", metavar="A,B", help="try only these attacks; default: all that apply"),
        make_argument(
            "--repeats", type=int, default=3, metavar="N", help="how often the reference, and doing nothing, are tried"
        ),
    ),
    AuditArguments,
    """\
settings (list them: ludus config):
  --env.split test --env.limit 20                          which tasks
  --sandbox.backend docker --run.concurrency 8             where, and how many at once""",
    JUDGING | {"tools"},
)
