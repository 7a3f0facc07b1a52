"""What kind of run a directory holds: a training run of a skill (`train`) or of weights (`rl`), a measurement before it
(`headroom`), a batch (`process`, `evaluate`), groups of a worker (`serve`), or sessions of the gateway."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ludus.config.tree import CONTENT, TRAINING
from ludus.errors import ConfigError

SERVE = "serve"
"""The section that only the record of a worker has, apart from records that have all sections."""

RL = "rl"
"""The section that only the record of an RL run has, apart from records that have all sections."""

HEADROOM = "headroom"
"""The command in the section `content` of a headroom run."""

RunKind = Literal["training", "headroom", "weights", "batch", "worker", "gateway"]

_WORDS: Mapping[RunKind, str] = {
    "training": "a training run",
    "headroom": "a headroom run",
    "weights": "an RL run",
    "batch": "a run of evaluate or process",
    "worker": "a run of serve",
    "gateway": "a record of gateway sessions",
}
_COMMANDS: Mapping[str, RunKind] = {
    "train": "training",
    "headroom": "headroom",
    "rl": "weights",
    "evaluate": "batch",
    "process": "batch",
    "serve": "worker",
}


def find_kind(recorded: Mapping[str, Any]) -> RunKind:
    """The kind of a run, by its recorded settings."""
    if CONTENT in recorded:
        return "headroom" if recorded[CONTENT].get("command") == HEADROOM else "training"
    if TRAINING & recorded.keys():
        return "gateway"
    return "weights" if RL in recorded else "worker" if SERVE in recorded else "batch"


def refuse_other_kind(out: Path, recorded: Mapping[str, Any], command: str) -> None:
    """Raise `ConfigError` if the command cannot resume the run, because another command made it."""
    kind = find_kind(recorded)
    if kind == _COMMANDS.get(command):
        return
    others = [name for name, made in _COMMANDS.items() if made == kind]
    resume = " or ".join(shlex.join(["ludus", name, "--resume", "--out", str(out)]) for name in others)
    instead = f"resume it with {resume}, or name another --out" if others else "name another --out"
    raise ConfigError(f"{out} is {_WORDS[kind]}, which `ludus {command}` cannot resume: {instead}")


def explain_missing_rows(run: Path, recorded: Mapping[str, Any]) -> str:
    """Why a run directory has no file of training rows, and what to do."""
    kind, name = find_kind(recorded), shlex.quote(str(run))
    what = "an evaluation" if kind == "batch" else _WORDS[kind]
    more = ". `ludus process` writes them to a file" if kind == "batch" else ""
    instead = f"check them with ludus export {name} | ludus check -{more}"
    return f"{run} is {what}, which has no file of training rows: {instead}"
