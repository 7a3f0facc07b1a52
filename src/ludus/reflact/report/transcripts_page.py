"""The page of trajectories of a training run: every rollout, by the part of the run that it belongs to.

It is `ludus.trajectory_page` with a filter for parts: the baseline, each step, the end of each epoch, the end of the
run. A rollout that several parts use is shown at the first of them. `report.html` links to the parts and to tasks in
them (`make_link`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol
from urllib.parse import quote

from ludus.batch import make_group_row
from ludus.encoding import to_json
from ludus.reflact.records import Baseline, EpochEnd, Record, Step, Summary
from ludus.reflact.rollout_origins import Origin, read_origins
from ludus.reflact.training_run import read_parts
from ludus.trajectory_page import render_page
from ludus.types import Group, Rollout

TRANSCRIPTS = "trajectories.html"
UNFINISHED = "not finished"
"""The part of rollouts whose part has not ended."""

_ROLES = {
    "rollout": "train",
    "slow": "comparison of epochs",
    "baseline": "initial skill",
    "validate": "final skill",
    "ship": "shipping",
}
"""What a rollout is for, by its stage."""


class _RolloutStore(Protocol):
    def get(self, key: str) -> Rollout | None: ...

    def read_scores(self) -> Mapping[str, float | None]: ...

    def read_records(self, kind: str) -> Iterable[tuple[str, bytes]]: ...


def name_part(record: Record) -> str:
    """The name of a part of a run."""
    match record:
        case Baseline():
            return "baseline"
        case Step():
            return f"step {record.number}"
        case EpochEnd():
            return f"end of epoch {record.epoch}"
        case Summary():
            return "end"


def make_link(part: str, task: str = "") -> str:
    """The address of the transcripts of a part, or of a task in it, beside the report."""
    return f"{TRANSCRIPTS}#{quote(part, safe='')}" + (f"/{quote(task, safe='')}" if task else "")


def render_transcripts(title: str, facts: Mapping[str, str], store: _RolloutStore) -> Iterator[bytes]:
    """Render the page of a run, finished or not, piece by piece."""
    return render_page(title, facts, None, _make_rows(store), report="report.html")


def _make_rows(store: _RolloutStore) -> Iterator[bytes]:
    origins = read_origins(store)
    parts = list(read_parts(store))
    counted = {key for _, keys in parts for key in keys}
    rest = tuple(key for key in store.read_scores() if key not in counted)
    index = 0
    for record, keys in [*parts, (None, rest)]:
        for role, group in _group_rollouts(store, record, keys, origins):
            row = to_json(make_group_row(group, index))
            yield row[:-1] + b"," + to_json({"part": name_part(record) if record else UNFINISHED, "role": role})[1:]
            index += 1


def _group_rollouts(
    store: _RolloutStore, record: Record | None, keys: Sequence[str], origins: Mapping[str, Origin]
) -> Iterator[tuple[str, Group]]:
    """The rollouts of a part by role, task and skill."""
    found: dict[tuple[str, str, str], list[Rollout]] = {}
    for key in keys:
        rollout = store.get(key)
        if rollout is not None:
            role = _name_role(record, rollout, origins.get(key))
            found.setdefault((role, rollout.task.id, rollout.provenance.skill), []).append(rollout)
    for role, task, skill in sorted(found, key=lambda group: (group[0] != _ROLES["rollout"], *group)):
        rollouts = found[role, task, skill]
        ordered = sorted(rollouts, key=lambda rollout: rollout.provenance.replicate)
        yield role, Group(task=ordered[0].task, rollouts=tuple(ordered), size=len(ordered))


def _name_role(record: Record | None, rollout: Rollout, origin: Origin | None) -> str:
    """What a rollout is for."""
    stage, skill = origin.stage if origin else "", rollout.provenance.skill
    match record:
        case Step() if stage == "evaluate":
            return "candidate" if record.candidate and record.candidate.hash == skill else "current skill"
        case EpochEnd() if stage == "evaluate":
            candidate = record.slow.candidate
            return "candidate" if candidate and candidate.hash == skill else "current skill"
        case Summary() if stage == "test":
            names = {"final": record.final, "best": record.best, "initial": record.initial}
            return "test: " + " and ".join(name for name, product in names.items() if product.skill.hash == skill)
        case _:
            return _ROLES.get(stage, stage)
