"""`ludus regate`: apply another gate to the decisions of a finished training run, without a rollout."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ludus.arguments import Arguments, make_argument
from ludus.command import CONFIG, JSON, RUN, Command
from ludus.config import Config, assemble
from ludus.config.build_training import build_rule
from ludus.config.reading import Layer, make_flag_layer, read_file_layer
from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.reflact.gate import judge
from ludus.reflact.outcome_index import OutcomeIndex
from ludus.reflact.regate import Redecision, regate
from ludus.reflact.regate_table import print_redecisions
from ludus.reflact.rollout_origins import read_origins
from ludus.reflact.training_run import read_records
from ludus.run_info import find_kind
from ludus.store import RunDir
from ludus.suspects import read_suspect_policy, weigh_suspect


class RegateArguments(Arguments):
    run: str
    gate: str


def run(arguments: RegateArguments) -> int:
    path = Path(arguments.run)
    with RunDir.read(path) as directory:
        if find_kind(directory) != "train":
            raise ConfigError(f"{path} is not a run of `ludus train`: it has no gate")
        config = _read_gate(directory, arguments)
        gate = config.train.gate
        rule = build_rule(config.train) or judge
        records = list(read_records(directory))
        policy = read_suspect_policy(directory.config)
        outcomes = ((key, weigh_suspect(rollout, policy)) for key, rollout in directory.read_outcomes())
        index = OutcomeIndex(outcomes, read_origins(directory))
        decisions = list(regate(records, gate, rule, index.get_measure, directory.config["train"]["seed"]))
    if arguments.json:
        print(json.dumps({"run": str(path), "gate": gate.rule or "mean", "decisions": _to_json(decisions)}))
    else:
        print_redecisions(decisions, gate.rule or "mean")
    return 0


def _read_gate(directory: RunDir, arguments: RegateArguments) -> Config:
    """The settings with the gate of the run, changed by files and flags. `--gate` names the rule."""
    own = Layer(str(directory.path), {"train": {"gate": directory.config["train"].get("gate") or {}}})
    flags = [*arguments.flags, *([("train.gate.rule", arguments.gate)] if arguments.gate else [])]
    files = map(read_file_layer, map(Path, arguments.config))
    config = assemble([own, *files, *(make_flag_layer(name, words) for name, words in flags)])
    gate = msgspec.structs.replace(config.train.gate, enabled=True)
    return msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, gate=gate))


def _to_json(decisions: Sequence[Redecision]) -> "list[dict[str, object]]":
    return [{**json.loads(to_json(each)), "differs": each.differs} for each in decisions]


COMMAND = Command(
    run,
    "ludus regate runs/skill --gate curtailed      # mean, curtailed, sequential, or a rule of your own\n"
    "ludus regate runs/skill --gate sequential --train.gate.accept_at 0.9",
    (
        RUN,
        make_argument("--gate", metavar="RULE", default="", help="the rule to apply; default: the run's"),
        CONFIG,
        JSON,
    ),
    RegateArguments,
    "settings: --train.gate.SETTING VALUE (list them: ludus config); the others are the run's own",
    frozenset({"train.gate"}),
)
