"""`ludus batch`: run an agent on every prompt of a file, and write its trajectories.

A batch is a run like any other, of the environment `prompts`: same engine, tools, slots, budget and resume. Its file is
read row by row, and rollouts are not held, so that memory does not grow with the file. The shards are written when the
run ends, also if it was interrupted; a resumed run that has nothing to run makes them again.
"""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from ludus.arguments import RunArguments, make_argument
from ludus.batch import Batch
from ludus.command import CONFIG, ENGINE, JSON, OUT, PRINT_CONFIG, QUIET, RESUME, ROLLOUTS, Command
from ludus.command.run_command import RunResult, RunWork, run_command
from ludus.command.settings import find_env_name, refuse_suspects
from ludus.command.terminal import LiveLine, print_notice
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.build_tools import build_distribution
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.policy import Policy
from ludus.rl.exporters.tool_list import ToolDefinitions, list_tools
from ludus.run import Run, RunKind
from ludus.run_info import BATCH, note_planned
from ludus.trajectories.prompt_batch import PromptBatch, write_output
from ludus.trajectories.prompt_env import PromptEnv
from ludus.trajectories.prompt_rows import PromptFile, has_images
from ludus.trajectories.shards import INDEX
from ludus.trajectories.statistics import STATISTICS
from ludus.types import Rollout

PROMPTS = RunKind(
    BATCH,
    sections=frozenset({"batch"}),
    files={"statistics": STATISTICS, "shards": INDEX},
    needs_scores=False,
)
SHORT = {"check": "env.check", "drop": "batch.drop"}
"""Arguments that stand for settings."""


class BatchArguments(RunArguments):
    env: str | None = None
    """Not an argument of this command: it is `prompts`, unless the settings name another."""
    prompts: str | None
    check: str
    drop: str
    skip_bad: bool


class PromptWork(RunWork):
    """Runs a file of prompts."""

    kind = PROMPTS
    batch: PromptBatch
    """Known when the policy is."""

    def __init__(self, config: Config, arguments: BatchArguments) -> None:
        refuse_suspects(config, "a batch writes what was scored")
        env = build_env(config)
        if not isinstance(env, PromptEnv):
            raise ConfigError(f"env.name: ludus batch runs a file of prompts; for {env.name}: ludus process {env.name}")
        self.env, self.config, self.quiet = env, config, arguments.quiet or arguments.json
        self.file = _read_file(env, config)

    def prepare(self, policy: Policy) -> None:
        config = self.config
        distribution = build_distribution(config, self.env, policy.registry)
        size, seed, disabled = config.env.group_size, config.run.seed, config.tools.disabled
        self.batch = PromptBatch(self.file, Batch((), policy, size, seed, distribution, disabled), config.env.split)

    async def work(self, run: Run) -> bool:
        note_planned(run.directory, len(self.batch))
        ended = len(run.directory.list_done())
        failed = 0
        with _show_progress(self.quiet) as line:

            def on_outcome(key: str, rollout: Rollout) -> None:
                nonlocal ended, failed
                ended, failed = ended + 1, failed + (rollout.failure is not None)
                run.write_spent()
                line(ended, len(self.batch), failed, run)

            await self.batch.run(run.runner, on_outcome)
        return not run.control.is_stopping or ended >= len(self.batch)

    def conclude(self, run: Run) -> RunResult:
        tools = ToolDefinitions(list_tools(run.registry), self.env)
        output = write_output(self.batch, self.env, run.directory, run.config.batch, tools.find)
        if words := tools.describe_unknown():
            print_notice(f"rows without them: {words}")
        numbers, spent = output.statistics, run.ledger.total.usage
        run.trackers.log({"rollouts": float(numbers.rollouts), "written": float(numbers.written)}, 0)

        def show(out: Path) -> None:
            from ludus.trajectories.batch_table import print_shards, print_statistics

            print_statistics(numbers, spent)
            print_shards(output.shards, out)

        facts = {"statistics": json.loads(to_json(numbers)), "shards": json.loads(to_json(output.shards))}
        return RunResult(facts, show, failed=not numbers.written)


def _read_file(env: PromptEnv, config: Config) -> PromptFile:
    """The rows to run. Says which are left out, and refuses what the settings cannot do."""
    settings = config.batch
    if not env.path:
        raise ConfigError("which prompts? For example: ludus batch prompts.jsonl --out runs/batch")
    if "failed-check" in settings.drop and not env.check:
        raise ConfigError("batch.drop failed-check: nothing is checked; name a check with --check")
    file = PromptFile.scan(Path(env.path), skip_bad=settings.skip_bad, ids=config.env.ids, limit=config.env.limit)
    if file.bad.count:
        print_notice(f"{file.path}: rows that cannot be used are left out ({file.bad.count}): {file.bad}")
    if file.repeated.count:
        print_notice(
            f"{file.path}: rows that repeat an earlier one are run once ({file.repeated.count}): {file.repeated}; for "
            "several rollouts of each prompt: --env.group_size N"
        )
    if file.with_image.count and env.slots != "images":
        raise ConfigError(f"{file.path}, {file.with_image.first[0]}: image: the run has none: set --env.slots images")
    if file.with_cwd.count and (config.agent.harness or env.slots == "none"):
        who = config.agent.harness or "an agent without a slot"
        raise ConfigError(f"{file.path}, {file.with_cwd.first[0]}: cwd: {who} has no shell that could begin there")
    return file


@contextmanager
def _show_progress(quiet: bool) -> Generator[Callable[[int, int, int, Run], None]]:
    if quiet:
        yield lambda done, total, failed, run: None
        return
    from ludus.trajectories.batch_table import draw_progress

    with LiveLine("prompts") as line:
        yield lambda done, total, failed, run: draw_progress(line, done, total, failed, run.ledger.total.usage)


def run(arguments: BatchArguments) -> int:
    is_new = not find_env_name(arguments)
    flags = {"env.name": PromptEnv.name} if is_new else {}
    flags |= {name: getattr(arguments, short) for short, name in SHORT.items() if getattr(arguments, short)}
    if arguments.skip_bad:
        flags["batch.skip_bad"] = "true"
    if arguments.prompts:
        flags["env.path"] = arguments.prompts
        if is_new and has_images(Path(arguments.prompts)):
            flags["env.slots"] = "images"
    arguments.flags = [*flags.items(), *arguments.flags]
    return run_command(arguments, PromptWork, "ludus batch prompts.jsonl")


COMMAND = Command(
    run,
    "ludus batch prompts.jsonl --out runs/batch --model.name gpt-5-mini \\\n"
    "    --model.base_url https://api.openai.com/v1 --model.api_key_var OPENAI_API_KEY\n"
    "ludus batch prompts.jsonl --check checks.py:is_right --drop failed-check,no-reasoning,duplicates\n"
    "ludus batch prompts.jsonl --tools.distribution development --batch.format parquet\n"
    "ludus batch --resume --out runs/batch          # run what is missing, and write the shards again",
    (
        make_argument("prompts", metavar="PROMPTS", nargs="?", help="a JSONL file: rows with a prompt or messages"),
        make_argument(
            "--check",
            metavar="CHECK",
            default="",
            help="what scores a trajectory: file.py:function, module:function, or an environment; default: nothing",
        ),
        make_argument(
            "--drop",
            metavar="NAMES",
            default="",
            help="leave trajectories out of the shards: no-reasoning, invalid-calls, unfinished, short, failed-check, "
            "duplicates; separated by commas",
        ),
        make_argument("--skip-bad", action="store_true", help="leave out rows that cannot be used, and count them"),
        CONFIG,
        OUT,
        RESUME,
        PRINT_CONFIG,
        QUIET,
        JSON,
        ENGINE,
    ),
    BatchArguments,
    """\
settings (list them: ludus config):
  --env.group_size 4 --env.limit 100                       rollouts of each prompt; only the first prompts
  --tools.enabled terminal,file --tools.distribution NAME  which tools; or drawn for each prompt
  --batch.format parquet --batch.shard_rows 10000          what is written
  --run.concurrency 64 --budget.dollars 20 --limits.turns 20""",
    ROLLOUTS | {"engine", "tracking", "batch"},
)
