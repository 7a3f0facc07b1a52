"""`ludus rl`: train the weights of a policy by reinforcement learning.

The loop (`ludus.rl.loop`) yields records; this module writes them, shows the progress and prints the result.
"""

import json
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ludus.arguments import RunArguments, make_argument
from ludus.batch import load_tasks
from ludus.command import AGENT, ENGINE, RUN_TAKES, Command
from ludus.command.run_command import DryRun, RunResult, RunWork, run_command
from ludus.command.settings import choose_out, refuse_batch_settings
from ludus.command.terminal import format_duration, print_notice
from ludus.config import Config, to_record
from ludus.config.build_agent import build_env
from ludus.config.build_trainer import build_trainer
from ludus.config.secrets import read_secret
from ludus.control import RunControl
from ludus.encoding import to_json
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models import Model
from ludus.models.ledger import Ledger, MeteredModel
from ludus.models.token_estimate import estimate_prompt
from ludus.policy import Policy
from ludus.rl.atropos_client import AtroposClient
from ludus.rl.loop import RlRun, check_settings, run_rl
from ludus.rl.recorder import CHECKPOINTS, STEPS, SUMMARY, RlRecorder, summarize_steps
from ludus.rl.records import RlStep, list_step_values
from ludus.rl.rl_estimate import RolloutCost, estimate_cost, find_rollout_cost
from ludus.rl.rl_tables import RlBar, describe_cost, describe_step, plot_rewards
from ludus.rl.run_health import find_troubles
from ludus.rl.server_exchange import ServerExchange
from ludus.rl.settings import RlSettings
from ludus.rl.tinker_settings import TinkerSettings
from ludus.rl.trainers import Trainer, TrainingDiverged
from ludus.run import Run, RunKind
from ludus.run_info import REPORT
from ludus.suspects import SuspectPolicy, describe_suspects
from ludus.types import Rollout, Task

OWN = frozenset({"rl", "trainer"})
"""The sections that decide an RL run: they may not change when it is resumed, except where the settings say so."""
RL = RunKind(
    "rl",
    sections=OWN,
    fixed=OWN,
    left_out=frozenset({"model"}),
    failures=(TrainingDiverged,),
    files={"steps": STEPS, "summary": SUMMARY, "report": REPORT, "checkpoints": CHECKPOINTS},
)

_SETTINGS = """\
settings (list them: ludus config; explained in docs/rl.md):
  --rl.steps 60 --rl.groups 12 --rl.group_size 16          updates, and the rollouts of each
  --rl.staleness 1                                         sample while the trainer is busy; 0 is on-policy
  --rl.eval_every 10 --rl.eval_split validation            measure on tasks that are not trained on
  --trainer.weights FOLDER --trainer.lora_rank 16          the policy, and what of it is trained
  --trainer.type tinker --trainer.base_model NAME          train on Tinker, or on SkyRL
  --run.concurrency 192 --sampling.max_tokens 64 --agent.skill SKILL.md"""


class RlArguments(RunArguments):
    dry_run: bool
    server: str


@dataclass(frozen=True)
class RlData:
    """The environment and the tasks of a run."""

    env: Env
    tasks: tuple[Task, ...]
    held_out: tuple[Task, ...]


def run(arguments: RlArguments) -> int:
    if arguments.server:
        arguments.flags = [*arguments.flags, ("rl.server", arguments.server)]
    return run_command(arguments, begin, "ludus rl parcels")


def begin(config: Config, arguments: RlArguments) -> "RlWork | DryRun":
    _refuse_other_settings(config)
    check_settings(config.rl, config.sampling)
    data = _load_data(config)
    if arguments.dry_run:
        return DryRun(lambda: _print_dry_run(config, data, as_json=arguments.json))
    return RlWork(config, data, arguments)


INSTEAD = {
    "env.split": "rl.split",
    "env.limit": "rl.limit",
    "env.group_size": "rl.group_size",
    "env.ids": "rl.limit",
    "run.seed": "rl.seed",
}
"""What to set in place of settings of other commands."""


def _refuse_other_settings(config: Config) -> None:
    """Raise `ConfigError` for settings that other commands use."""
    refuse_batch_settings(config, "for rl", INSTEAD)
    if config.tools.distribution:
        raise ConfigError("tools.distribution samples toolsets at random, which rl does not: name them (tools.enabled)")
    limit = config.budget.find_dollars("agent")
    if limit and isinstance(config.trainer, TinkerSettings):
        raise ConfigError(
            f"{limit}: what Tinker takes is not counted in dollars, so the limit would have no effect. Limit tokens "
            f"instead: --{limit.replace('dollars', 'tokens')}"
        )


def _load_data(config: Config) -> RlData:
    env, settings = build_env(config), config.rl
    tasks = load_tasks(env, settings.split, settings.limit)
    if not settings.eval_every:
        return RlData(env, tasks, ())
    try:
        return RlData(env, tasks, load_tasks(env, settings.eval_split, settings.eval_limit))
    except ConfigError as error:
        raise ConfigError(f"rl.eval_split: {error}; rl.eval_every 0 turns evaluation off") from error


# ---- a dry run ------------------------------------------------------------------------------------------------------


def estimate_rollouts(settings: RlSettings, held_out: int) -> dict[str, int]:
    """The rollouts of a run: those that are trained on, and those of evaluations."""
    evaluations = 0
    if settings.eval_every and held_out:
        evaluations = 1 + settings.steps // settings.eval_every + bool(settings.steps % settings.eval_every)
    return {
        "train": settings.steps * settings.groups * settings.group_size,
        "evaluate": evaluations * held_out * settings.eval_size,
    }


def _print_dry_run(config: Config, data: RlData, *, as_json: bool) -> None:
    settings = config.rl
    rollouts = estimate_rollouts(settings, len(data.held_out))
    passes = settings.steps * settings.groups / len(data.tasks)
    each = find_rollout_cost(choose_out(config).parent, to_record(config)) or _assume_cost(config, data)
    per_update = settings.groups * settings.group_size
    cost = estimate_cost(rollouts, per_update, each, settings.dollars_per_hour, settings.dollars_per_million)
    if as_json:
        sizes = {"train": len(data.tasks), "held_out": len(data.held_out)}
        facts = {"steps": settings.steps, "tasks": sizes, "rollouts": rollouts, "passes": passes}
        print(json.dumps({**facts, "cost": json.loads(to_json(cost))}))
        return
    mode = f"asynchronous, at most {settings.staleness} updates behind" if settings.staleness else "on-policy"
    print(f"{len(data.tasks)} tasks to train on, {len(data.held_out)} held out; {settings.steps} steps, {mode}")
    print(
        f"rollouts: {rollouts['train']} to train on ({passes:.1f} passes over the tasks), "
        f"{rollouts['evaluate']} in evaluations"
    )
    for line in describe_cost(cost):
        print(line)
    print("Nothing was started.")


def _assume_cost(config: Config, data: RlData) -> RolloutCost:
    """What a rollout takes as far as it is known without one: the first prompt, and replies as long as they may be."""
    openings = [estimate_prompt(tuple(data.env.opening(task)), ()) for task in data.tasks[:20]]
    reply = config.sampling.max_tokens or _REPLY_TOKENS
    turns = min(config.limits.turns, _TURNS) if data.env.toolsets or type(data.env).tools is not Env.tools else 1
    first = sum(openings) / max(1, len(openings))
    return RolloutCost(turns * first + reply * turns * (turns - 1) / 2, turns * reply)


_REPLY_TOKENS, _TURNS = 300, 6
"""The tokens of a reply, where nothing limits them, and the turns of a rollout with tools, at most."""


# ---- running --------------------------------------------------------------------------------------------------------


class RlWork(RunWork):
    """Trains the policy of the trainer."""

    kind = RL
    trainer: Trainer
    ledger: Ledger
    exchange: ServerExchange | None

    def __init__(self, config: Config, data: RlData, arguments: RlArguments) -> None:
        self.config, self.data, self.env = config, data, data.env
        self.quiet = arguments.quiet or arguments.json
        self.records: Sequence[RlStep] = ()

    async def open_model(self, config: Config, ledger: Ledger, stack: AsyncExitStack) -> Model:
        """The first version of the trainer's policy."""
        self.ledger, self.trainer = ledger, build_trainer(config, print_notice)
        stack.push_async_callback(self.trainer.close)
        self.exchange = _open_exchange(config)
        if self.exchange is not None:
            stack.push_async_callback(self.exchange.close)
        return self.wrap(await self.trainer.get_model(self.trainer.name))

    def wrap(self, model: Model) -> Model:
        return MeteredModel(model, self.ledger, "agent")

    def prepare(self, policy: Policy) -> None:
        check_settings(self.config.rl, policy.sampling)

    async def work(self, run: Run) -> bool:
        settings = self.config.rl
        recorder = RlRecorder(run.directory)
        self.records = recorder.records
        with _show_progress(settings, self.quiet, run.control) as bar:

            def on_rollout(rollout: Rollout) -> None:
                run.write_spent()
                bar(rollout)

            try:
                async with aclosing(run_rl(self._make_run(run, on_rollout))) as records:
                    async for record in records:
                        is_known = record.step <= recorder.known
                        bar.record(record, quiet=is_known)
                        recorder.add(record)
                        if not is_known:
                            run.trackers.log(list_step_values(record), record.step)
            finally:
                recorder.finish()
        return bool(recorder.records) and recorder.records[-1].step >= settings.steps

    def _make_run(self, run: Run, on_rollout: Callable[[Rollout], None]) -> RlRun:
        return RlRun(
            policy=run.policy,
            trainer=self.trainer,
            settings=self.config.rl,
            tasks=self.data.tasks,
            held_out=self.data.held_out,
            runner=run.runner,
            checkpoints=run.directory.path / CHECKPOINTS,
            wrap=self.wrap,
            exchange=self.exchange,
            on_rollout=on_rollout,
        )

    def conclude(self, run: Run) -> RunResult:
        records, steps, suspects = tuple(self.records), self.config.rl.steps, run.runner.suspects
        troubles = find_troubles(records)
        facts = {"steps": records[-1].step if records else 0, "summary": summarize_steps(records), "troubles": troubles}
        for trouble in troubles:
            print_notice(trouble)
        return RunResult(facts, lambda out: _print_result(records, steps, out, suspects), failed=bool(troubles))


def _open_exchange(config: Config) -> ServerExchange | None:
    settings = config.rl
    if not settings.server:
        return None
    client = AtroposClient(settings.server, token=read_secret(settings.token_var, "rl.token_var"))
    return ServerExchange(
        client,
        Path(config.run.out).resolve().name,
        groups=settings.groups,
        group_size=settings.group_size,
        steps=settings.steps,
        scale=settings.scale,
        tell=print_notice,
    )


@contextmanager
def _show_progress(settings: RlSettings, quiet: bool, control: RunControl) -> "Generator[RlBar | _NoBar]":
    if quiet:
        yield _NoBar()
        return
    with RlBar(settings.steps, settings.groups * settings.group_size, control=control) as bar:
        yield bar


class _NoBar:
    """In place of an `RlBar` where nothing is shown."""

    def __call__(self, rollout: Rollout) -> None: ...

    def record(self, record: RlStep, *, quiet: bool = False) -> None: ...


def _print_result(records: Sequence[RlStep], steps: int, out: Path, suspects: SuspectPolicy) -> None:
    if plot := plot_rewards(records):
        print(f"\n{plot}")
    if records:
        print(f"\n{describe_step(records[-1], steps)}")
        if words := describe_suspects(sum(record.suspects for record in records), suspects):
            print(words)
        print(f"took {format_duration(sum(record.seconds.get('whole', 0.0) for record in records))}")
    print(f"\n{out}\n  ludus show {shlex.quote(str(out))}   the steps again; add a task id for a transcript")
    if (out / REPORT).exists():
        print(f"  {(out / REPORT).resolve().as_uri()}   the whole run in a browser")
    sys.stdout.flush()


COMMAND = Command(
    run,
    "ludus rl parcels --dry-run        # what it will take: rollouts, tokens, time, money\n"
    "ludus rl parcels --rl.steps 60 --run.concurrency 192 --sampling.max_tokens 16 --out runs/rl\n"
    "ludus rl --resume --out runs/rl   # after a stop, a crash or a kill",
    (
        *RUN_TAKES,
        ENGINE,
        make_argument(
            "--dry-run", action="store_true", help="say what the run takes (rollouts, tokens, time, money), and stop"
        ),
        make_argument(
            "--server", metavar="URL", default="", help="a trajectory server through which groups go to the trainer"
        ),
    ),
    RlArguments,
    _SETTINGS,
    AGENT | OWN | {"engine", "tracking"},
)
