"""`ludus library`: what each skill of a library is worth, and what is proposed for it.

The tasks are run with the whole library, then without one skill after the other, on the rollouts that loaded it. The
run directory keeps every rollout, so a measurement that was stopped is resumed. No file of the library is changed: a
person decides with `ludus curate`.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from ludus.arguments import RunArguments, make_argument
from ludus.batch import load_tasks
from ludus.batch.command import explain_skipped
from ludus.command import ENGINE, ROLLOUTS, RUN_TAKES, Command
from ludus.command.run_command import RunResult, RunWork, run_command
from ludus.command.terminal import LiveLine, format_count, print_notice
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.tree import PACKAGES
from ludus.encoding import to_json
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.library.earlier_evidence import read_evidence
from ludus.library.library_runs import LibraryRuns
from ludus.library.library_table import REPORT, print_library
from ludus.library.measurement import LibraryMeasurement, LibraryReport
from ludus.policy import Policy
from ludus.reflact.measure import Outage, Stopped
from ludus.run import Run, RunKind
from ludus.run_info import note_planned

LIBRARY = RunKind("library", sections=PACKAGES, failures=(Outage,), files={"library": REPORT})


class LibraryArguments(RunArguments):
    folder: str | None


def run(arguments: LibraryArguments) -> int:
    if arguments.folder:
        arguments.flags = [("agent.library", arguments.folder), *arguments.flags]
    return run_command(arguments, LibraryWork, "ludus library skills/ terminal-test")


class LibraryWork(RunWork):
    """Measures the skills of a library on the tasks that the settings choose."""

    kind = LIBRARY

    def __init__(self, config: Config, arguments: LibraryArguments) -> None:
        if not config.agent.library:
            raise ConfigError("agent.library: which library? ludus library skills/ ENV, with a folder of packages")
        self.config = config
        self.folder = str(Path(config.agent.library).expanduser().absolute())
        self.env: Env = build_env(config)
        if self.env.judges_groups:
            raise ConfigError(
                f"env.name: {self.env.name} judges the rollouts of a task together, so they cannot be paired one by one"
            )
        self.tasks = load_tasks(self.env, config.env.split, config.env.limit, config.env.ids)
        self.quiet = arguments.quiet or arguments.json
        self.report: LibraryReport | None = None
        self.evidence = {path: read_evidence(Path(path).expanduser()) for path in config.library.evidence}
        self._check_budget(config)
        if skipped := self.env.skipped(config.env.split):
            print_notice(explain_skipped(self.env, skipped))

    def _check_budget(self, config: Config) -> None:
        needed, most = len(self.tasks) * config.env.group_size, config.budget.rollouts
        if most is not None and most <= needed:
            raise ConfigError(
                f"budget.rollouts: the whole library alone takes {needed} rollouts ({len(self.tasks)} tasks × "
                f"env.group_size), and each skill some more: allow more than {most}, or use fewer tasks (env.limit)"
            )

    def prepare(self, policy: Policy) -> Mapping[str, str]:
        return {"command": LIBRARY.name, "library": policy.skill_hash}

    async def work(self, run: Run) -> bool:
        config, library = self.config, run.policy.library
        assert library is not None  # agent.library is set
        note_planned(run.directory, len(self.tasks) * config.env.group_size)
        with nullcontext() if self.quiet else LiveLine("library", control=run.control) as line:

            def show(stage: str, done: int, total: int) -> None:
                run.write_spent()
                if line is not None:
                    line.draw(done, total, f"{stage}, {format_count(run.ledger.total.usage.tokens)} tokens")

            measurement = LibraryMeasurement(
                LibraryRuns(
                    run.runner,
                    run.policy,
                    {task.id: task for task in self.tasks},
                    config.run.seed,
                    config.budget.rollouts,
                    show,
                ),
                library,
                self.tasks,
                config.env.group_size,
                config.library,
                self.evidence,
            )
            try:
                self.report = await measurement.measure(self.folder)
            except Stopped:
                return False
        run.directory.write(REPORT, to_json(self.report))
        return True

    def conclude(self, run: Run) -> RunResult:
        report = self.report
        facts = {"library": None if report is None else json.loads(to_json(report))}
        failed = report is not None and not any(skill.loads for skill in report.skills)
        return RunResult(facts, lambda out: print_library(report, out), failed)


COMMAND = Command(
    run,
    "ludus library skills/ terminal-test --env.group_size 4 --model.base_url URL --model.name NAME --out runs/library\n"
    "ludus library skills/ tasks/ --budget.rollouts 2000 --library.lines 400   # and which lines earn their tokens\n"
    "ludus show runs/library\n"
    "ludus curate runs/library                                                 # decide about the proposals",
    (
        make_argument("folder", metavar="DIR", nargs="?", help="a folder of skill packages"),
        *RUN_TAKES,
        ENGINE,
    ),
    LibraryArguments,
    """\
settings (list them: ludus config):
  --env.limit 100 --env.group_size 4 --env.split test      which tasks, and how often
  --library.least 0.05 --library.per_1000_tokens 0.01      what a skill must be worth
  --library.lines 400 --library.evidence RUN               evidence about single lines
  --budget.rollouts 2000                                   for all rollouts together""",
    ROLLOUTS | {"engine", "library", "budget.rollouts"},
)
