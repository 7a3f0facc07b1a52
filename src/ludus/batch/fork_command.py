"""`ludus fork`: go on from a turn of a stored rollout, in a slot with the same files, with the model of your choice.

The first turns are played from the record: the replies are those of the record, and every tool is called again. Then
the model goes on. Limits count from the first turn; what the first turns cost then is no part of the new run's budget.
The result is a run of its own, whose rollouts say which turns of which rollout they continue.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ludus.arguments import RunArguments, make_argument
from ludus.batch import Batch, read_groups
from ludus.batch.command import FILES, BatchWork
from ludus.command import CONFIG, JSON, OUT, PRINT_CONFIG, QUIET, RESUME, ROLLOUTS, Command
from ludus.command.recorded_rollout import RecordedRollout, read_rollout, refuse_changes
from ludus.command.run_command import RunResult, run_with_settings
from ludus.command.settings import read_own_settings
from ludus.command.terminal import print_notice
from ludus.config import Config
from ludus.config.build_agent import build_env
from ludus.config.reading import Layer, is_tree, make_flag_layer, read_file_layer
from ludus.config.tree import CONTENT
from ludus.engine import derive_seed
from ludus.errors import ConfigError
from ludus.policy import Policy
from ludus.replay import Difference, find_turn_differences, restore_policy
from ludus.run import Run, RunKind
from ludus.store import CONFIG as RECORD
from ludus.types import Replayed, Rollout, StopReason

FORK = RunKind("fork", files=FILES)
_GOES_ON = (StopReason.MAX_TURNS, StopReason.CONTEXT, StopReason.TIMEOUT)
"""Ends after which a model could have gone on."""


class ForkArguments(RunArguments):
    env = None
    run: str | None
    rollout: str | None
    turn: int | None
    n: int | None


def run(arguments: ForkArguments) -> int:
    recorded, turn = _read_origin(arguments)
    check_turn(recorded.rollout, turn)
    origin = recorded.make_origin(turn)
    config = _read_settings(arguments, recorded)
    return run_with_settings(config, arguments, lambda config, arguments: ForkWork(config, arguments, recorded, origin))


def _read_origin(arguments: ForkArguments) -> tuple[RecordedRollout, int]:
    """What is continued, and after which turn: as the user says, or for a resumed run as its record says."""
    if arguments.run and arguments.rollout and arguments.turn is not None:
        return read_rollout(Path(arguments.run), arguments.rollout), arguments.turn
    if not arguments.resume or not arguments.out:
        raise ConfigError(
            "which rollout, and after which turn? For example: ludus fork runs/first greeting.txt --turn 2"
        )
    content = read_file_layer(Path(arguments.out, RECORD)).tree.get(CONTENT)
    if not is_tree(content) or "outcome" not in content:
        raise ConfigError(f"{arguments.out}: there is no run of fork to resume")
    return read_rollout(Path(content["run"]), content["outcome"]), int(content["turns"])


def check_turn(record: Rollout, turn: int) -> None:
    """Raise `ConfigError` if nothing can follow the turn."""
    last = len(record.turns)
    if record.turns[-1].stop is not None and record.agent_stop not in _GOES_ON:
        last -= 1
    if not last:
        raise ConfigError(f"--turn: the rollout has one turn, which ended it ({record.stop}): there is nothing to fork")
    if not 1 <= turn <= last:
        more = f"; turn {last + 1} ended it ({record.stop})" if last < len(record.turns) else ""
        raise ConfigError(f"--turn is {turn}: the rollout can be continued after one of its turns 1 to {last}{more}")


def _read_settings(arguments: ForkArguments, recorded: RecordedRollout) -> Config:
    """The settings of the run, and over them those of the command."""
    if arguments.n is not None or not arguments.resume:
        size = 1 if arguments.n is None else arguments.n
        arguments.flags = [*arguments.flags, ("env.group_size", str(size))]
    if arguments.resume:
        return read_own_settings(arguments)
    given = _list_model_settings(arguments)
    if "model" not in recorded.settings and not given:
        raise ConfigError("model: that of this run was in training: name one with --model.base_url and --model.name")
    config = read_own_settings(arguments, (make_base(recorded, given),))
    refuse_changes(recorded, config)
    return config


def _list_model_settings(arguments: ForkArguments) -> dict[str, Any]:
    """The settings of a model that the command brings."""
    trees = [read_file_layer(Path(path)).tree for path in arguments.config]
    trees += [make_flag_layer(*flag).tree for flag in arguments.flags]
    models = (tree.get("model") for tree in trees)
    return {name: value for model in models if is_tree(model) for name, value in model.items()}


_SERVERLESS = ("embedded", "scripted")


def make_base(recorded: RecordedRollout, given: Mapping[str, Any]) -> Layer:
    """The settings of the run. Those of its model are left out if the command brings a model of another type."""
    layer = recorded.make_layer()
    model = layer.tree.get("model", {})
    kind = model.get("type") if is_tree(model) else None
    is_server = "base_url" in given and kind in _SERVERLESS
    if is_server or given.get("type", kind) != kind:
        return Layer(layer.source, {name: value for name, value in layer.tree.items() if name != "model"})
    return layer


class ForkWork(BatchWork):
    """Continues one rollout, as often as the settings say."""

    kind = FORK

    def __init__(self, config: Config, arguments: ForkArguments, recorded: RecordedRollout, origin: Replayed) -> None:
        self.config = config
        self.recorded = recorded
        self.origin = origin
        self.parent = origin.run
        self.env = build_env(config)
        self.tasks = (recorded.rollout.task,)
        self.quiet = arguments.quiet or arguments.json
        if config.limits.turns <= origin.turns:
            raise ConfigError(
                f"limits.turns is {config.limits.turns}, and {origin.turns} turns are played: raise it to go on"
            )

    def prepare(self, policy: Policy) -> Mapping[str, str]:
        origin, config = self.origin, self.config
        policy = restore_policy(policy, self.env, origin, self.recorded.rollout, goes_on=True)
        seed = derive_seed(config.run.seed, f"{origin.outcome}/{origin.turns}", 0)  # not those of the record
        self.batch = Batch(self.tasks, policy, config.env.group_size, seed)
        return {"run": origin.run, "outcome": origin.outcome, "turns": str(origin.turns)}

    def conclude(self, run: Run) -> RunResult:
        result = super().conclude(run)
        different = self._find_differences(run)
        for number, found in different.items():
            print_notice(describe_difference(number, found))
        facts = {
            "replayed": {"run": self.origin.run, "outcome": self.origin.outcome, "turns": self.origin.turns},
            "different": {str(number): [f"turn {each.turn}" for each in found] for number, found in different.items()},
        }
        return RunResult({**result.facts, **facts}, result.show, result.failed)

    def _find_differences(self, run: Run) -> dict[int, list[Difference]]:
        """What the played turns returned that the record does not say, by the number of the rollout."""
        played = self.recorded.rollout.turns[: self.origin.turns]
        rollouts = (rollout for group in read_groups(self.batch, run.runner) for rollout in group.rollouts)
        found = {r.provenance.replicate + 1: find_turn_differences(played, r.turns) for r in rollouts}
        return {number: differences for number, differences in found.items() if differences}


def describe_difference(number: int, found: list[Difference]) -> str:
    first = found[0]
    what = f"{first.tool} returned something else" if first.tool else "the user said something else"
    more = f", and {len(found) - 1} more differences" if len(found) > 1 else ""
    return f"rollout {number}: in turn {first.turn}, {what} than in the record{more}\n{first.diff}"


COMMAND = Command(
    run,
    "ludus fork runs/first greeting.txt --turn 2                    # the model of the run goes on\n"
    "ludus fork runs/first greeting.txt#2 --turn 5 -n 8 --model.name gpt-5 --out runs/from-5\n"
    "ludus compare runs/first runs/from-5",
    (
        make_argument("run", metavar="RUN", nargs="?", help="a run directory, finished or not"),
        make_argument(
            "rollout",
            metavar="ROLLOUT",
            nargs="?",
            help="a task id, with #N for its Nth rollout, or the beginning of its key",
        ),
        make_argument("--turn", metavar="N", type=int, help="play the turns 1 to N, then go on"),
        make_argument("-n", metavar="K", type=int, help="how many rollouts continue it; default: 1"),
        OUT,
        RESUME,
        CONFIG,
        PRINT_CONFIG,
        QUIET,
        JSON,
    ),
    ForkArguments,
    """\
settings (list them: ludus config); the rest are the run's own:
  --model.base_url URL --model.name NAME --model.api_key_var VARIABLE
  --sampling.temperature 0.7 --limits.turns 60 --budget.dollars 2 --run.concurrency 8""",
    ROLLOUTS - {"env"} | {"tracking"},
)
