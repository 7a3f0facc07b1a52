"""The ids of a rollout as a page shows them."""

from pathlib import Path

import pytest
from tests.rl_kit import TableTrainer, collect, make_run

from ludus.rl.trainer_logprobs import read_trainer_logprobs
from ludus.store import MemoryStore
from ludus.view.paging import Parameters
from ludus.view.transcript import TokenWords, list_tokens


async def test_the_trainers_logprobs_stand_at_the_sampled_ids(tmp_path: Path):
    store = MemoryStore()
    await collect(make_run(TableTrainer(), store=store, steps=1))
    rollouts = [rollout for key in store.list_done() if (rollout := store.get(key)) is not None]
    rollout = next(rollout for rollout in rollouts if read_trainer_logprobs(store, rollout))
    known = read_trainer_logprobs(store, rollout)
    page = list_tokens(rollout, {}, TokenWords(), tmp_path, Parameters({}), None, known)
    assert page.sampled == (False, True) and page.trainer_logprobs[0] is None
    assert page.trainer_logprobs[1] == pytest.approx(page.logprobs[1], abs=1e-4)
    second = list_tokens(rollout, {}, TokenWords(), tmp_path, Parameters({"start": ["1"]}), None, known)
    assert second.trainer_logprobs == page.trainer_logprobs[1:]
    assert list_tokens(rollout, {}, TokenWords(), tmp_path, Parameters({}), None, (0.0, 0.0)).trainer_logprobs == ()
