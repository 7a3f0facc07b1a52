"""The origin of each stored rollout of a training run: its split, and the stage that ran it.

`Task.split` is the environment's own name of a split. The split that counts is that of the trainer, which divides the
tasks (`Splits`), and it decides what may be trained on. So each stage stores the content addresses of its outcomes, in
one record, before it runs them (`record_stage`). Each stage runs tasks of one split. An outcome of several stages
belongs to the first of them.

Runs of earlier versions have no such records. `rebuild_origins` finds the splits by comparing the tasks with splits
that were loaded again.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec
from msgspec import Struct

from ludus.encoding import canonical, to_json
from ludus.reflact.records import Baseline, EpochEnd, Record, Step, Summary
from ludus.reflact.splits import Splits, hash_tasks
from ludus.store import Store, decode_record
from ludus.types import Task

SplitName = Literal["train", "selection", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "selection", "test")

STAGE_SPLITS: Mapping[str, SplitName] = {
    "rollout": "train",
    "slow": "train",
    "baseline": "selection",
    "evaluate": "selection",
    "validate": "selection",
    "ship": "selection",
    "canary": "selection",
    "test": "test",
    "best_of": "test",
    "held_out": "test",
    "other_model": "test",
}
"""The split whose tasks a stage runs."""

STAGE_RECORDS = "stage"
"""The kind of a `_StageRecord` in the store."""


class Origin(Struct, frozen=True):
    """Where a rollout comes from."""

    split: SplitName
    stage: str
    """A name in `STAGE_SPLITS`; empty if it is not known."""


class _StageRecord(Struct, frozen=True):
    """The outcomes of a stage, by content address."""

    stage: str
    outcomes: tuple[str, ...]


_STAGE_RECORD = msgspec.json.Decoder(_StageRecord)


class _RecordReader(Protocol):
    def read_records(self, kind: str) -> Iterable[tuple[str, bytes]]: ...


def record_stage(store: Store, stage: str, outcomes: Iterable[str]) -> None:
    """Store that a stage runs these outcomes."""
    record = _StageRecord(stage, tuple(outcomes))
    key = hashlib.sha256(canonical((STAGE_RECORDS, record))).hexdigest()[:32]
    store.put_record(key, STAGE_RECORDS, to_json(record))


def read_origins(store: _RecordReader) -> dict[str, Origin]:
    """The origins that a run has stored, by content address."""
    origins: dict[str, Origin] = {}
    for _, body in store.read_records(STAGE_RECORDS):
        record = decode_record(_STAGE_RECORD, body)
        if record.stage in STAGE_SPLITS:
            for key in record.outcomes:
                origins.setdefault(key, Origin(STAGE_SPLITS[record.stage], record.stage))
    return origins


# ---- runs of earlier versions ---------------------------------------------------------------------------------------

_PARTS: Mapping[tuple[type[Record], SplitName], str] = {
    (Baseline, "selection"): "baseline",
    (Step, "train"): "rollout",
    (Step, "selection"): "evaluate",
    (EpochEnd, "train"): "slow",
    (EpochEnd, "selection"): "evaluate",
    (Summary, "selection"): "validate",
    (Summary, "test"): "test",
}
"""The stage of an outcome, by the part of the run that counts its cost and by its split."""


def rebuild_origins(
    tasks: Mapping[str, Task], splits: Splits, parts: Iterable[tuple[Record, Sequence[str]]]
) -> dict[str, Origin]:
    """The origins of outcomes that a run did not store.

    `tasks` are the tasks of the outcomes by content address, `parts` the records of the run with the outcomes that each
    counts. A task that is neither in the train split nor in the selection split is in the test split, which stays
    sealed.
    """
    known: dict[str, SplitName] = {hash_tasks([task]): "selection" for task in splits.selection}
    known |= {hash_tasks([task]): "train" for task in splits.train}
    counted = {key: type(record) for record, keys in parts for key in keys}
    origins: dict[str, Origin] = {}
    for key, task in tasks.items():
        split = known.get(hash_tasks([task]), "test")
        part = counted.get(key)
        stage = "" if part is None else _PARTS.get((part, split), "")
        origins[key] = Origin(split, "test" if split == "test" else stage)
    return origins
