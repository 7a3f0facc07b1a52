"""What a claim is compared with: the arms are measured after the test, once, and decide nothing in training."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ludus.errors import BudgetExhausted
from ludus.models.scripted import ScriptedModel, say
from ludus.reflact.claim_arms import sum_training
from ludus.reflact.records import Record, Summary
from ludus.reflact.report.run_files import encode_summary
from ludus.reflact.splits import Splits
from ludus.reflact.training_run import ClaimPlan, Resources, read_records
from ludus.store import MemoryStore
from ludus.types import Message, Sampling, ToolSpec


def run_claim(world: SimpleNamespace, claim: ClaimPlan | None, **more: Any) -> list[Record]:
    return world.run(resources=Resources(claim=claim), **{"splits": world.splits(test=12), **more})


def get_summary(records: Sequence[Record]) -> Summary:
    assert isinstance(records[-1], Summary)
    return records[-1]


def test_the_same_rollouts_are_spent_as_samples_of_the_initial_skill(world: SimpleNamespace):
    records = run_claim(world, ClaimPlan())
    plain, end = records[-2], get_summary(records)
    assert isinstance(plain, Summary) and plain.arms is None and plain.claim is not None
    assert plain.claim.is_better and not plain.claim.gain and "gain" not in plain.claim.sentence
    assert end.arms is not None and end.arms.best_of is not None and end.claim is not None
    arm, trained = end.arms.best_of, sum_training(plain.spent)[0]
    assert (arm.samples, arm.matched) == (-(-trained // 12), -(-trained // 12))
    assert trained <= arm.rollouts < trained + 12, "as many rollouts as training and shipping"
    assert (arm.passed, arm.tasks, arm.lead) == (0.0, 12, 1.0)
    assert list(arm.pass_at) == [k for k in (1, 2, 4, 8, 16, 32) if k < arm.samples] + [arm.samples]
    assert end.claim.gain and end.claim.sentence == f"a gain of {plain.claim.sentence}"
    assert f"At equal budget ({trained} rollouts)" in end.arms.sentence
    costs = {cost.stage: cost.calls for cost in end.spent if cost.role == "agent"}
    assert costs["best_of"] == arm.rollouts - 12, "those of the test are used again"
    assert json.loads(encode_summary(end, records))["arms"]["best_of"]["samples"] == arm.samples


def test_a_sceptic_is_right_where_the_initial_skill_passes_at_times(world: SimpleNamespace):
    def agent(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
        number = int(messages[-1].content.split()[-1])
        return say(f"RULE-{number % 3}") if (sampling.seed or 0) % 5 == 0 else world.agent(messages, tools, sampling)

    end = get_summary(run_claim(world, ClaimPlan(best_of=24), policy=world.policy(script=agent)))
    assert end.arms is not None and end.arms.best_of is not None and end.arms.best_of.passed is not None
    assert end.arms.best_of.passed > 0.9 > end.arms.best_of.pass_at[1]
    assert end.arms.best_of.lead is not None and end.arms.best_of.lead < 0.1


def test_with_fewer_samples_than_training_took_nothing_is_called_a_gain(world: SimpleNamespace):
    end = get_summary(run_claim(world, ClaimPlan(best_of=2)))
    assert end.claim is not None and end.claim.is_better and not end.claim.gain
    assert end.arms is not None and "nothing is called a gain" in end.arms.sentence


def test_a_limit_leaves_out_tasks_and_not_samples(world: SimpleNamespace):
    end = get_summary(run_claim(world, ClaimPlan(best_of=5, rollouts=29)))
    assert end.arms is not None and end.arms.best_of is not None
    assert (end.arms.best_of.samples, end.arms.best_of.tasks, end.arms.best_of.rollouts) == (5, 5, 25)
    end = get_summary(run_claim(world, ClaimPlan(best_of=5, rollouts=19)))
    assert end.arms is not None and end.arms.best_of is None and "claim.rollouts" in end.arms.sentence


def test_where_the_initial_skill_stays_no_rollout_is_spent(world: SimpleNamespace):
    silent = world.optimizer_model(lambda messages: {"items": [], "rollouts": []})
    plain, end = run_claim(world, ClaimPlan(), optimizer=silent)[-2:]
    assert isinstance(plain, Summary) and isinstance(end, Summary) and end.arms is not None
    assert end.arms.best_of is None and "nothing to compare" in end.arms.sentence
    assert end.spent == plain.spent


def test_held_out_tasks_and_another_model_are_measured_beside_it(world: SimpleNamespace):
    splits = Splits.from_tasks(
        world.tasks("train", 6), world.tasks("selection", 6), world.tasks("test", 6), held_out=world.tasks("other", 8)
    )
    deaf = ScriptedModel(lambda messages, tools, sampling: say("no idea"), name="deaf")
    records = run_claim(world, ClaimPlan(held_out="split other", model=deaf), splits=splits)
    end = get_summary(records)
    assert end.arms is not None
    tasks, model = end.arms.transfers
    assert (tasks.what, tasks.tasks, tasks.initial, tasks.shipped, tasks.difference) == ("tasks", 8, 0.0, 1.0, 1.0)
    assert (model.what, model.name, model.tasks, model.difference) == ("model", "deaf", 6, 0.0)
    assert "On 8 held-out tasks (split other): +100 points" in end.arms.sentence
    assert "With the model deaf: 0 points" in end.arms.sentence and "told from chance" in end.arms.sentence
    costs = {cost.stage: cost.calls for cost in end.spent if cost.role == "agent"}
    assert (costs["held_out"], costs["other_model"]) == (16, 12)


@pytest.mark.parametrize("recipe", ["ledger", "reflact"])
def test_arms_are_added_to_a_finished_run_and_stay(world: SimpleNamespace, recipe: Any):
    settings = replace(world.SETTINGS, recipe=recipe)
    store = MemoryStore()
    before = run_claim(world, None, settings=settings, store=store)
    claimed = run_claim(world, ClaimPlan(), settings=settings, store=store)
    assert claimed[:-1] == before, "training is not decided again"
    at_once = get_summary(run_claim(world, ClaimPlan(), settings=settings))
    end = get_summary(claimed)
    assert (end.arms, end.claim, end.spent) == (at_once.arms, at_once.claim, at_once.spent)
    again = run_claim(world, None, settings=settings, store=store)
    assert again == claimed, "what was measured stays in the result"
    assert list(read_records(store)) == [*before[:-1], claimed[-1]], "the summary with arms replaces the other"


def test_a_budget_that_ends_in_the_arms_leaves_the_result(world: SimpleNamespace):
    store, seen = MemoryStore(), [0]
    plain = run_claim(world, None)

    def agent(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
        seen[0] += 1
        if seen[0] > 80 and "test" in messages[-1].content and sampling.seed != 0 and limit[0]:
            raise BudgetExhausted("spent")
        return world.agent(messages, tools, sampling)

    limit = [False]
    run_claim(world, None, store=store, policy=world.policy(script=agent))
    limit[0] = True
    with pytest.raises(BudgetExhausted):
        run_claim(world, ClaimPlan(best_of=40), store=store, policy=world.policy(script=agent))
    assert [type(record) for record in read_records(store)] == [type(record) for record in plain]
    limit[0] = False
    resumed = run_claim(world, ClaimPlan(best_of=40), store=store, policy=world.policy(script=agent))
    assert get_summary(resumed).arms == get_summary(run_claim(world, ClaimPlan(best_of=40))).arms
