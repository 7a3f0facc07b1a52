"""Sizes of steps and requests are chosen by prices, and a choice never costs more than it saves."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ludus.config import list_assumed
from ludus.models.server import Price
from ludus.reflact.ledger.settings import LedgerSettings
from ludus.reflact.request_sizes import (
    CHOICES,
    Prices,
    RequestSizes,
    RunTokens,
    SizeChoice,
    apply_sizes,
    choose_sizes,
    compute_training_cost,
    count_cached,
    guess_run_tokens,
    read_sizes,
    settle_sizes,
)
from ludus.reflact.train_settings import TrainSettings
from ludus.settings import get_recorded
from ludus.store import MemoryStore

AUTO = TrainSettings()
TOKENS = RunTokens(rollouts=1280, tasks=100, before=200, skill=1500, other=600, reply=300)
FREE = Price(prompt=0.0, completion=0.0)
DEAR = Price(prompt=1.25, completion=10.0)


def choose(agent: Price, optimizer: Price | None, settings: TrainSettings = AUTO, **tokens: Any) -> SizeChoice:
    found = choose_sizes(settings, Prices(agent, optimizer), lambda: replace(TOKENS, **tokens))
    assert found is not None
    return found


def refuse_to_guess() -> RunTokens:
    raise AssertionError("the prices leave no choice")


def test_without_prices_the_sizes_are_those_of_always_and_the_reason_names_the_settings():
    found = choose_sizes(AUTO, Prices(Price(), Price()), refuse_to_guess)
    assert found is not None and found.sizes == RequestSizes(8, 8, 1) == read_sizes(AUTO)
    assert found.reasons == (
        "steps of 8 tasks: model.price and optimizer.price not given",
        "a text for each task: model.price.prompt and .cached not given",
    )


def test_requests_that_are_dear_beside_rollouts_become_fewer():
    assert choose(FREE, DEAR).sizes == RequestSizes(24, 24, 1)
    assert choose(DEAR, FREE).sizes == RequestSizes(8, 8, 1), "rollouts are what costs"
    assert choose(DEAR, DEAR).sizes == RequestSizes(8, 8, 1)
    assert choose(FREE, FREE).sizes == RequestSizes(8, 8, 1), "of equal ones the default"


def test_short_runs_keep_small_steps():
    assert choose(FREE, DEAR, rollouts=400).sizes.batch == 8
    assert choose(FREE, DEAR, tasks=30).sizes.batch == 8
    assert "too few for 24" in choose(FREE, DEAR, tasks=30).reasons[0]


def test_a_text_is_shared_where_it_is_most_of_a_rollout_and_cached_tokens_cost_less():
    large = {"skill": 20_000, "other": 100, "reply": 20}
    cached = Price(prompt=3.0, completion=15.0, cached=0.3, written=3.75)
    assert choose(cached, None, **large).sizes.block > 1
    assert choose(cached, None, skill=600).sizes.block == 1, "too short for any cache"
    assert choose(cached, None).sizes.block == 1, "further rollouts would cost more"
    same = choose(Price(prompt=3.0, completion=15.0, cached=3.0), None, **large)
    assert same.sizes.block == 1 and same.reasons[1] == "a text for each task: cached tokens cost no less"
    assert count_cached(4, TOKENS, Price(prompt=3.0)) == 0


def test_sizes_that_are_set_stay():
    settings = TrainSettings(ledger=LedgerSettings(batch_size=12, block_size=2), minibatch_size=6)
    assert choose_sizes(settings, Prices(FREE, DEAR), refuse_to_guess) is None
    half = TrainSettings(ledger=LedgerSettings(block_size=2), minibatch_size=6)
    assert choose(FREE, DEAR, half).sizes == RequestSizes(8, 6, 2), "batch and minibatch are chosen together"
    assert choose_sizes(TrainSettings(recipe="reflact"), Prices(FREE, DEAR), refuse_to_guess) is None


@given(
    agent=st.tuples(*[st.floats(0, 20)] * 3),
    optimizer=st.tuples(*[st.floats(0, 80)] * 2),
    skill=st.integers(0, 50_000),
    other=st.integers(0, 50_000),
    reply=st.integers(0, 5_000),
)
def test_a_choice_never_costs_more_than_the_default(
    agent: tuple[float, float, float], optimizer: tuple[float, float], skill: int, other: int, reply: int
):
    """With the further rollouts that it takes to learn the same."""
    asked = Price(prompt=optimizer[0], completion=optimizer[1])
    prices = Prices(Price(prompt=agent[0], completion=agent[1], cached=agent[2]), asked)
    tokens = replace(TOKENS, skill=skill, other=other, reply=reply)
    found = choose_sizes(AUTO, prices, lambda: tokens)
    assert found is not None
    best, default = (compute_training_cost(s, tokens, prices) for s in (found.sizes, RequestSizes()))
    assert best.dollars <= default.dollars and best.rollouts >= default.rollouts


def test_a_run_keeps_its_sizes_whatever_prices_are_later():
    store = MemoryStore()
    first = settle_sizes(AUTO, store, Prices(FREE, DEAR), lambda: TOKENS)
    assert first is not None and first.sizes.batch == 24
    assert settle_sizes(AUTO, store, Prices(DEAR, FREE), refuse_to_guess) == first
    assert len(list(store.read_records(CHOICES))) == 1
    assert read_sizes(apply_sizes(AUTO, first)) == first.sizes
    assert read_sizes(apply_sizes(AUTO, None)) == RequestSizes()
    assert "ledger" not in apply_sizes(TrainSettings(recipe="reflact"), None).identity


def test_the_default_choice_is_the_run_of_earlier_versions():
    """These left default settings of the ledger out of records and identities, and kept 8, 8 and 1."""
    assert "ledger" not in apply_sizes(AUTO, SizeChoice()).identity
    assert apply_sizes(AUTO, SizeChoice()).identity["minibatch_size"] == 8
    assert list_assumed()["train"]["ledger"]["batch_size"] == 8
    assert list_assumed()["train"]["ledger"]["block_size"] == 1
    assert get_recorded(AUTO)["ledger"] == LedgerSettings(), "that they are left open is recorded"


@pytest.mark.parametrize(("limit", "rollouts"), [(None, 200), (100, 67)])
def test_tokens_are_guessed_without_a_rollout(world: SimpleNamespace, limit: int | None, rollouts: int):
    splits = world.splits(train=20, test=8)
    tokens = guess_run_tokens(world.Env(), world.policy(), splits, AUTO, limit)
    assert (tokens.rollouts, tokens.tasks) == (rollouts, 20)
    assert tokens.skill >= 400 and tokens.other > 0
