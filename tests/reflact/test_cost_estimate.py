"""Estimates, compared with what real runs take."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ludus.models.server import Price
from ludus.reflact.cost_estimate import Assumptions, CallCount, Sizes, estimate, list_batch_sizes
from ludus.reflact.gate import Gate
from ludus.reflact.ledger.ledger_settings import LedgerSettings
from ludus.reflact.prompt_templates import Prompts
from ludus.reflact.records import Summary
from ludus.reflact.splits import plan_epoch
from ludus.reflact.train_settings import Appendix, SlowUpdate, TrainSettings

SMALL = TrainSettings(
    recipe="reflact", epochs=3, batch_size=2, minibatch_size=2, merge_batch_size=2, edit_budget=2, min_edit_budget=1
)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"accumulation": 2, "batch_size": 4},
    "one batch": {"batch_size": 40},
    "large merges": {"merge_batch_size": 8, "minibatch_size": 1, "batch_size": 6},
    "failures only": {"failure_only": True},
    "autonomous": {"control": "autonomous"},
    "no limit": {"control": "none"},
    "suggestions": {"update_mode": "rewrite_from_suggestions"},
    "documents": {"update_mode": "full_rewrite_minibatch"},
    "notes": {"appendix": Appendix(enabled=True, consolidate_above=1)},
    "forced guidance": {"slow": SlowUpdate(samples=3, gated=False)},
    "changes only": {"slow": SlowUpdate(samples=2, pairs="changed")},
    "no epoch's end": {"slow": SlowUpdate(enabled=False), "memory": False},
    "memory alone": {"slow": SlowUpdate(enabled=False)},
    "no gate": {"gate": Gate(enabled=False)},
    "replicates": {"selection_replicates": 2, "selection_size": 3, "test_replicates": 3, "test_size": 2},
    "no test": {"test": False},
    "one epoch": {"epochs": 1},
    "no budget": {"edit_budget": 0, "min_edit_budget": 0},
    "ledger": {"recipe": "ledger"},
    "small steps": {"recipe": "ledger", "ledger": LedgerSettings(batch_size=2), "minibatch_size": 1},
}


def change_settings(**changes: Any) -> TrainSettings:
    return msgspec.structs.replace(SMALL, **changes)


def make_sizes(settings: TrainSettings) -> Sizes:
    return Sizes(7, settings.selection_size or 6, settings.test_size or 6)


def run_to_summary(world: SimpleNamespace, settings: TrainSettings, replies: Any = None) -> Summary:
    model = world.optimizer_model(replies) if replies else None
    last = world.run(settings=settings, splits=world.splits(train=7), optimizer=model)[-1]
    assert isinstance(last, Summary)
    return last


def check_bounds(settings: TrainSettings, last: Summary) -> None:
    guess = estimate(settings, make_sizes(settings), analysts=True, prompts=Prompts.load())
    bounds = {(line.role, line.stage): line.calls for line in guess.lines}
    real = {(entry.role, entry.stage): entry.calls for entry in last.spent}
    assert real.keys() <= bounds.keys()
    for place, count in bounds.items():
        assert count.least <= real.get(place, 0) <= count.most, place
        assert count.least <= count.likely <= count.most, place
    assert guess.steps == last.steps


@pytest.mark.parametrize("case", CASES)
def test_the_real_counts_are_within_the_bounds(world: SimpleNamespace, case: str):
    settings = change_settings(**CASES[case])
    check_bounds(settings, run_to_summary(world, settings))


@pytest.mark.parametrize("case", CASES)
def test_they_are_within_the_bounds_when_every_reply_is_bad(world: SimpleNamespace, case: str):
    settings = change_settings(**CASES[case])
    check_bounds(settings, run_to_summary(world, settings, lambda messages: "I would rather not."))


def test_what_is_likely_comes_true_when_all_goes_as_assumed(world: SimpleNamespace):
    """Every train rollout fails, every step has a candidate, every reply is usable."""
    settings = change_settings(epochs=1, control="none", test=False)

    def useless(messages: Any) -> Any:
        reply = world.optimizer(messages)
        if world.get_stage(messages).startswith("analyst"):
            reply["items"] = [world.edit(f"Be brief, {hash(messages[1].content)}.")]
        return reply

    last = run_to_summary(world, settings, useless)
    guess = estimate(settings, make_sizes(settings), Assumptions(failing=1.0), analysts=True, prompts=Prompts.load())
    likely = {(line.role, line.stage): line.calls.likely for line in guess.lines if line.calls.likely}
    likely.pop(("agent", "ship"))  # no candidate was accepted, so nothing can be shipped
    assert likely == {(entry.role, entry.stage): entry.calls for entry in last.spent}


def test_tokens_of_rollouts_follow_from_what_is_assumed(world: SimpleNamespace):
    settings = change_settings(epochs=1)
    last = run_to_summary(world, settings, lambda messages: "no")
    agent = [entry for entry in last.spent if entry.role == "agent"]
    calls, tokens = sum(entry.calls for entry in agent), sum(entry.usage.tokens for entry in agent)
    assumed = Assumptions(opening_tokens=15, reply_tokens=2, skill_tokens=2)
    guess = estimate(settings, make_sizes(settings), assumed, analysts=True, prompts=Prompts.load())
    each = guess.lines[0].each
    assert each.tokens == 15 + 2 + 2
    assert 0.5 < each.tokens * calls / tokens < 2.0


def test_turns_send_again_what_was_said():
    assumed = Assumptions(turns=3, opening_tokens=100, skill_tokens=50, reply_tokens=10, result_tokens=20)
    line = estimate(SMALL, Sizes(4, 2, 2), assumed, analysts=False, prompts=Prompts.load()).lines[0]
    assert (line.each.prompt_tokens, line.each.completion_tokens) == (150 + 180 + 210, 30)


def test_money_is_calls_times_tokens_times_price():
    guess = estimate(change_settings(test=False), Sizes(4, 2, 2), analysts=False, prompts=Prompts.load())
    likely, most = guess.compute_dollars("agent", Price(prompt=1.0, completion=2.0))
    each = guess.lines[0].each
    one = (each.prompt_tokens + 2 * each.completion_tokens) / 1e6
    assert likely == pytest.approx(guess.count_calls("agent").likely * one)
    assert most == pytest.approx(guess.count_calls("agent").most * one)
    assert guess.compute_dollars("agent", Price()) == (0.0, 0.0)


def test_a_run_without_analysts_asks_nobody():
    settings = change_settings(slow=SlowUpdate(enabled=False), memory=False)
    guess = estimate(settings, Sizes(4, 2, 2), analysts=False, prompts=Prompts.load())
    assert guess.count_calls("optimizer") == CallCount()
    assert {line.role for line in guess.lines} == {"agent"}


@pytest.mark.parametrize("train", [1, 3, 7, 8, 9, 40])
@pytest.mark.parametrize(("size", "together"), [(1, 1), (2, 1), (2, 3), (4, 2), (40, 2)])
def test_batches_are_cut_as_the_plan_cuts_them(world: SimpleNamespace, train: int, size: int, together: int):
    settings = change_settings(batch_size=size, accumulation=together)
    plan = plan_epoch(world.tasks("train", train), 1, batch_size=size, accumulation=together, seed=1)
    assert list_batch_sizes(train, settings) == [[len(batch.tasks) for batch in step] for step in plan]
