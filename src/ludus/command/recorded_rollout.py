"""A rollout of a run that is played again, and the settings that it was run with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ludus.agent_settings import AgentSettings
from ludus.command import ROLLOUTS
from ludus.command.rollout_choice import choose_rollout
from ludus.config import Config, assemble
from ludus.config.reading import Layer, is_tree
from ludus.config.tree import SECTIONS
from ludus.errors import ConfigError
from ludus.run_info import describe_kind, find_kind
from ludus.store import RunDir
from ludus.types import Replayed, Rollout

NO_REPLAY = ("gateway", "audit")
"""Kinds of runs whose rollouts cannot be played again: nobody knows what acted, or it was no model."""
_OWN = frozenset({"out", "resume", "accept_code", "notes"})
"""Settings of `run` that are for one run alone."""


class RecordedRollout(Struct, frozen=True):
    """A rollout of a run, with its pictures."""

    run: Path
    key: str
    rollout: Rollout
    settings: Mapping[str, Any]
    """Those of the run that decide how rollouts are run."""

    def make_layer(self) -> Layer:
        return Layer("the run's settings", dict(self.settings))

    def make_origin(self, turns: int) -> Replayed:
        return Replayed(str(self.run.resolve()), self.key, turns)


def read_rollout(run: Path, wanted: str) -> RecordedRollout:
    """The rollout of a run that the user means.

    Raises:
        ConfigError: there is none, or it cannot be played again.
    """
    with RunDir.read(run) as directory:
        kind = find_kind(directory)
        if kind in NO_REPLAY:
            raise ConfigError(f"{run} is {describe_kind(kind)}: its rollouts cannot be played again")
        key, rollout = choose_rollout(directory, wanted)
        rollout = directory.restore_images(rollout)
        settings = _choose_settings(directory.config)
    if not rollout.turns:
        raise ConfigError(f"the rollout of task '{rollout.task.id}' has no reply that could be played")
    return RecordedRollout(run, key, rollout, settings)


def refuse_changes(recorded: RecordedRollout, config: Config) -> None:
    """Raise `ConfigError` for settings that the record has decided already: who acted, on what, with which tools. The
    file of a skill may be named: what is in it is compared with the record."""
    before = assemble([Layer("the run's settings", {k: v for k, v in recorded.settings.items() if k in _DECIDED})])
    for section, names in _DECIDED.items():
        for name in names:
            if getattr(getattr(config, section), name) != getattr(getattr(before, section), name):
                raise ConfigError(f"{section}.{name}: the record has decided it: leave it out")
    if config.agent.skill != before.agent.skill and not recorded.rollout.provenance.skill:
        raise ConfigError("agent.skill: the rollout had no skill: leave it out")


_DECIDED = {
    "env": ("name", "split", "limit", "ids"),
    "agent": tuple(name for name in AgentSettings.__struct_fields__ if name not in ("skill", "harnesses")),
    "tools": ("enabled", "disabled", "distribution"),
}
"""Settings that cannot be changed for a rollout that is played again, by section."""


def _choose_settings(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """The sections with which rollouts are run, without what is the run's own."""
    used = {name.partition(".")[0] for name in ROLLOUTS} & SECTIONS.keys()
    found = {name: value for name, value in recorded.items() if name in used}
    if is_tree(run := found.get("run")):
        found["run"] = {name: value for name, value in run.items() if name not in _OWN}
    return found
