"""What `ludus process`, `evaluate` and `serve` do with a file, and `python FILE.py …`.

The commands read the settings, open the run and report as for any other environment; here is the work in between.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import msgspec

from ludus.arguments import RunArguments
from ludus.batch import GROUPS, SUMMARY, Batch, BatchProgress
from ludus.batch.run_tables import ProgressBar, print_summary
from ludus.command.run_command import RunResult, RunWork
from ludus.compat.atropos_env.file_env import AtroposFileEnv
from ludus.compat.atropos_env.file_runs import (
    ATROPOS_GROUPS,
    FileProgress,
    GroupCounts,
    NothingKept,
    evaluate_file,
    process_file,
    read_eval,
    summarize_run,
    write_summary,
)
from ludus.compat.atropos_env.file_session import find_eval_folder, open_run_file
from ludus.compat.atropos_env.file_source import FileSource
from ludus.compat.atropos_env.group_filter import refuse_serve_settings
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.encoding import to_json
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.policy import Agent
from ludus.rl.serve_command import SERVE, FeedWork
from ludus.rl.worker import WorkerPlan
from ludus.run import Run, RunKind
from ludus.run_info import REPORT
from ludus.trackers import METRICS

FILES = {"groups": GROUPS, "atropos_groups": ATROPOS_GROUPS, "summary": SUMMARY, "metrics": METRICS, "report": REPORT}
MAY_CHANGE = frozenset({"env.settings.total_steps", "env.servers"})
_FILTERS = frozenset({"serve"})
"""The section with what becomes of partial groups, in `process` too."""
PROCESS = RunKind("process", sections=_FILTERS, may_change=MAY_CHANGE, failures=(NothingKept,), files=FILES)
EVALUATE = RunKind("evaluate", may_change=MAY_CHANGE, files=FILES)
SERVE_FILE = dataclasses.replace(SERVE, may_change=MAY_CHANGE, files={**SERVE.files, "summary": SUMMARY})

COMMANDS = ("process", "serve", "evaluate", "train")
"""What `python FILE.py` can do."""


def run_class(kind: type, argv: Sequence[str], scheme: str) -> int:
    """`python FILE.py process …`: run the class of a file as `ludus process` would."""
    from ludus.cli import main

    file = getattr(sys.modules.get(kind.__module__), "__file__", "") or argv[0]
    words = list(argv[1:])
    if not words or words[0] not in COMMANDS:
        print(f"usage: python {Path(argv[0]).name} {'|'.join(COMMANDS)} [--env.FIELD VALUE]…", file=sys.stderr)
        return 2
    return main([words[0], f"{scheme}:{file}:{kind.__name__}", *words[1:]])


class FileWork(RunWork):
    """Runs a file. It acts itself, so that the policy has no other agent."""

    def __init__(self, config: Config, arguments: RunArguments) -> None:
        env = build_env(config)
        assert isinstance(env, AtroposFileEnv)
        refuse_serve_settings(config.serve)
        self.env: Env = env
        self.settings = env.settings
        self.quiet = arguments.quiet or arguments.json

    async def open_agent(
        self, config: Config, env: Env, model: Model, ledger: Ledger, stack: AsyncExitStack
    ) -> Agent | None:
        return None


class ProcessFileWork(FileWork):
    """Makes the groups of a file."""

    kind = PROCESS

    def __init__(self, config: Config, arguments: RunArguments) -> None:
        super().__init__(config, arguments)
        self.total = int(self.settings["total_steps"])
        if self.total < 1:
            raise ConfigError(f"env.total_steps is {self.total}: how many groups? For example --env.total_steps 20")

    async def work(self, run: Run) -> bool:
        options, width = run.runner.options, run.config.env.group_size
        async with open_run_file(run) as parts:
            with self._show_progress(run) as show:
                return await process_file(parts, self.total, options, width, show)

    @contextmanager
    def _show_progress(self, run: Run) -> Generator[Callable[[FileProgress], None]]:
        if self.quiet:
            yield lambda progress: run.write_spent()
            return
        with ProgressBar(run.env.title, control=run.control) as bar:

            def show(progress: FileProgress) -> None:
                run.write_spent()
                done, usage = progress.done + progress.failed, run.ledger.total.usage
                bar.update(BatchProgress(progress.total, done, progress.done, progress.mean, usage))

            yield show

    def conclude(self, run: Run) -> RunResult:
        summary, counts = summarize_run(run.directory, run.config.env.group_size)
        usage = run.ledger.total.usage

        def show(out: Path) -> None:
            print_summary(summary, spent=usage)
            print(describe_counts(counts))
            print(f"\n{out}\n  {out / ATROPOS_GROUPS}   the groups, as the file made them")

        facts = {"summary": json.loads(to_json(summary)), "groups": msgspec.to_builtins(counts)}
        return RunResult(facts, show, failed=summary.overall.scored == 0)


def describe_counts(counts: GroupCounts) -> str:
    """What became of the groups, in lines."""
    names = {"no_group": "the file made none"}
    dropped = [f"{count} ({names.get(reason, reason.replace('_', ' '))})" for reason, count in counts.dropped.items()]
    lines = [f"groups: {counts.kept} kept"]
    if dropped:
        lines.append(f"groups dropped: {', '.join(dropped)}")
    if counts.failed:
        lines.append(f"groups failed: {counts.failed}")
    if counts.one_at_a_time:
        lines.append(f"groups were made one at a time: {', '.join(f'self.{name}' for name in counts.one_at_a_time)}")
    return "\n".join(lines)


class EvaluateFileWork(FileWork):
    """Lets a file evaluate."""

    kind = EVALUATE

    async def work(self, run: Run) -> bool:
        async with open_run_file(run) as parts:
            await evaluate_file(parts)
        return True

    def conclude(self, run: Run) -> RunResult:
        folder = find_eval_folder(self.settings, run.directory.path)
        metrics = read_eval(folder)

        def show(out: Path) -> None:
            for name, value in metrics.items():
                print(f"{name}  {value}")
            print(f"\n{folder}")

        return RunResult({"metrics": metrics}, show)


class ServeFileWork(FeedWork, FileWork):
    """Sends the groups of a file."""

    kind = SERVE_FILE

    async def work(self, run: Run) -> bool:
        async with open_run_file(run) as parts:
            self.source = FileSource(parts)
            return await super().work(run)

    def conclude(self, run: Run) -> RunResult:
        result = super().conclude(run)
        summary, counts = summarize_run(run.directory, run.config.env.group_size)
        write_summary(run.directory, summary, counts)

        def show(out: Path) -> None:
            result.show(out)
            print(describe_counts(counts))

        return dataclasses.replace(result, facts={**result.facts, "groups": msgspec.to_builtins(counts)}, show=show)

    def make_plan(self, run: Run) -> WorkerPlan:
        config = run.config
        batch = Batch((), run.policy, config.env.group_size, config.run.seed)
        return WorkerPlan(batch, run.runner, config.serve, source=self.source)
