"""What a trainer gives the ids of a rollout is kept beside what the sampler recorded."""

import pytest
from tests.rl_kit import TableTrainer, collect, make_run

from ludus.rl.trainer_logprobs import TRAINER_LOGPROBS, read_trainer_logprobs
from ludus.rl.trainers import PolicyUpdate, TrainingRow
from ludus.store import MemoryStore
from ludus.types import Rollout


async def list_trained(trainer: TableTrainer, **changes: object) -> tuple[MemoryStore, list[Rollout]]:
    """The store of a run, and its rollouts."""
    store, seen = MemoryStore(), list[Rollout]()
    await collect(make_run(trainer, store=store, steps=3, **changes))
    for key in store.list_done():
        rollout = store.get(key)
        assert rollout is not None
        seen.append(rollout)
    return store, seen


async def test_on_policy_both_agree_for_every_rollout_that_was_learned_from():
    trainer = TableTrainer()
    store, rollouts = await list_trained(trainer)
    found = [(rollout, read_trainer_logprobs(store, rollout)) for rollout in rollouts]
    assert sum(bool(values) for _, values in found) == sum(map(len, trainer.seen)) > 0
    for rollout, values in found:
        tokens = rollout.turns[0].completion.tokens
        assert tokens is not None
        assert not values or values == pytest.approx([tokens.logprobs[1]], abs=1e-4)


async def test_several_groups_of_one_task_under_one_version_are_all_kept():
    trainer = TableTrainer()
    store, rollouts = await list_trained(trainer, groups=9)
    assert sum(bool(read_trainer_logprobs(store, rollout)) for rollout in rollouts) == sum(map(len, trainer.seen))


class Silent(TableTrainer):
    async def update(self, rows: list[TrainingRow]) -> PolicyUpdate:  # pyright: ignore[reportIncompatibleMethodOverride]
        update = await super().update(rows)
        return PolicyUpdate(version=update.version, metrics=update.metrics)


async def test_a_trainer_that_reports_nothing_leaves_no_record():
    store, rollouts = await list_trained(Silent())
    assert rollouts and not any(read_trainer_logprobs(store, rollout) for rollout in rollouts)
    assert not list(store.read_records(TRAINER_LOGPROBS))
