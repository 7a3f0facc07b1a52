"""The logprobs that a trainer gives the ids of a rollout, beside those that the sampler recorded.

On-policy both are of the same weights and should be equal: a difference is one of kernels, templates or precision, and
importance ratios carry it into the gradient. A trainer that knows them reports them with its update
(`PolicyUpdate.logprobs`); they are kept by group, and `ludus view` shows them beside the sampler's.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from ludus.encoding import canonical, to_json
from ludus.rl.trainers import TrainingRow
from ludus.store import Store
from ludus.types import Group, Rollout

TRAINER_LOGPROBS = "trainer-logprobs"
"""The kind of these records in the store."""
DIGITS = 5

_decode = msgspec.json.Decoder(dict[str, tuple[float, ...]]).decode


def store_trainer_logprobs(
    store: Store,
    groups: Iterable[tuple[int, Group]],
    rows: Sequence[TrainingRow],
    logprobs: Sequence[Sequence[float]],
) -> None:
    """Keep what a trainer reported for the rows of some numbered groups: nothing if it reports nothing. A rollout whose
    history branched has several rows and is left out."""
    if len(logprobs) != len(rows):
        return
    counts = Counter((row.group, row.replicate) for row in rows)
    known = {
        (row.group, row.replicate): [round(value, DIGITS) for value in values]
        for row, values in zip(rows, logprobs, strict=True)
        if counts[row.group, row.replicate] == 1
    }
    found: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)
    for number, group in groups:
        for rollout in group.rollouts:
            if (place := (number, rollout.provenance.replicate)) in known:
                found[_name_record(rollout)][str(rollout.provenance.seed)] = known[place]
    for key, values in found.items():
        store.put_record(key, TRAINER_LOGPROBS, to_json(values))


def read_trainer_logprobs(store: Store, rollout: Rollout) -> tuple[float, ...]:
    """The logprobs of the sampled ids of a rollout by the trainer, in order; empty if it reported none."""
    body = store.get_record(_name_record(rollout))
    return () if body is None else _decode(body).get(str(rollout.provenance.seed), ())


def _name_record(rollout: Rollout) -> str:
    """The key of the record of a rollout's group: the rollouts of a task by one version of a policy."""
    task, provenance = rollout.task, rollout.provenance
    parts = (TRAINER_LOGPROBS, provenance.model, provenance.policy, task.split, task.id)
    return hashlib.sha256(canonical(parts)).hexdigest()[:32]
