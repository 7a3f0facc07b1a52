"""Estimates: the same numbers as a real run with the same agent and optimizer, and nothing of the user's is called."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest

from ludus.env import Env
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel, say
from ludus.models.server import Price
from ludus.policy import Policy
from ludus.reflact.earlier_runs import EarlierRun
from ludus.reflact.early_gates import EarlyRule
from ludus.reflact.estimate import Estimate, EstimateLine, PlannedRun, estimate, simulate
from ludus.reflact.gate import Contender, Decision, Gate, Verdict, judge
from ludus.reflact.guards import GuardSettings
from ludus.reflact.ledger.settings import LedgerSettings
from ludus.reflact.proposers import Proposer, View
from ludus.reflact.proposers.exemplars import Exemplars
from ludus.reflact.records import Baseline, Reflection, StageCost, Summary
from ludus.reflact.splits import Splits
from ludus.reflact.stand_ins import Assumptions, StandInWorld
from ludus.reflact.train_settings import Appendix, SlowUpdate, TrainSettings
from ludus.reflact.trainer import train
from ludus.reflact.training_run import Resources
from ludus.runner import Runner
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import Skill
from ludus.types import Rollout, Score, Task, Usage

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
    "curtailed": {"gate": Gate(rule="curtailed", block=2)},
    "sequential": {"gate": Gate(rule="sequential", block=2, passes=2, refresh=True)},
    "replicates": {"selection_replicates": 2, "selection_size": 3, "test_replicates": 3, "test_size": 2},
    "canaries": {"guards": GuardSettings(canaries=3)},
    "no test": {"test": False},
    "one epoch": {"epochs": 1},
    "no budget": {"edit_budget": 0, "min_edit_budget": 0},
    "ledger": {"recipe": "ledger"},
    "small steps": {"recipe": "ledger", "ledger": LedgerSettings(batch_size=2), "minibatch_size": 1},
    "ledger with notes": {"recipe": "ledger", "appendix": Appendix(enabled=True, consolidate_above=2)},
}
ASSUMED = Assumptions(failing=0.7, reply_tokens=5)


def change_settings(**changes: Any) -> TrainSettings:
    return msgspec.structs.replace(SMALL, **changes)


def plan_run(world: SimpleNamespace, settings: TrainSettings, **more: Any) -> PlannedRun:
    return PlannedRun(world.Env(), world.policy(), world.splits(train=7, selection=12), settings, **more)


def estimate_now(planned: PlannedRun, *more: Any) -> Estimate:
    return asyncio.run(estimate(planned, *more))


def count_spent(costs: Iterable[StageCost]) -> dict[tuple[str, str], int]:
    return {(cost.role, cost.stage): cost.calls for cost in costs}


# ---- beside a real run ----------------------------------------------------------------------------------------------


def run_for_real(planned: PlannedRun, assumed: Assumptions, *, curable: float) -> Summary:
    """Train with rollouts that are run and judged, with an agent and an optimizer that behave like the stand-ins."""
    skill, train_tasks = planned.policy.skill or Skill(""), len(planned.splits.train)
    world = StandInWorld(skill, train_tasks, assumed, curable)

    class RealEnv(Env, frozen=True):
        name: ClassVar[str] = "real"
        sandbox: ClassVar[SandboxSpec | None] = None
        system: ClassVar[str] = planned.env.system

        async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
            return world.judge(rollout.opening[0].content, rollout.task.id, rollout.provenance.seed)

    async def go() -> Summary:
        agent = ScriptedModel(lambda *_: say("-" * 4 * assumed.reply_tokens))
        records = [
            record
            async for record in train(
                Runner(RealEnv()),
                Policy(agent, skill=planned.policy.skill),
                planned.splits,
                planned.settings,
                optimizer=ScriptedModel(world.answer),
                resources=Resources(rollouts=planned.rollouts),
            )
        ]
        assert not any(record.events for record in records if not isinstance(record, Baseline))
        last = records[-1]
        assert isinstance(last, Summary)
        return last

    return asyncio.run(go())


@pytest.mark.parametrize("curable", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_a_simulation_makes_the_calls_that_a_real_run_makes(world: SimpleNamespace, case: str, curable: float):
    planned = plan_run(world, change_settings(**CASES[case]))
    real = run_for_real(planned, ASSUMED, curable=curable)
    simulated = asyncio.run(simulate(planned, ASSUMED, curable=curable))
    assert count_spent(simulated.spent) == count_spent(real.spent)
    assert (simulated.steps, simulated.accepted, simulated.rejected) == (real.steps, real.accepted, real.rejected)
    replies = [[cost for cost in last.spent if cost.role == "optimizer"] for last in (simulated, real)]
    assert replies[0] == replies[1]  # with the tokens: the prompts are the same


@pytest.mark.parametrize("recipe", ["ledger", "reflact"])
def test_the_estimate_is_what_the_real_run_takes(world: SimpleNamespace, recipe: str):
    planned = plan_run(world, change_settings(recipe=recipe), rollouts=120)
    found = estimate_now(planned, ASSUMED)
    runs = [run_for_real(planned, ASSUMED, curable=curable) for curable in (0.0, 0.5, 1.0)]
    likely = runs[1]
    assert found.steps == likely.steps
    assert {(line.role, line.stage): line.calls.likely for line in found.lines if line.calls.likely} == count_spent(
        likely.spent
    )
    for line in found.lines:
        counts = [count_spent(each.spent).get((line.role, line.stage), 0) for each in runs]
        assert (line.calls.least, line.calls.most) == (min(counts), max(counts))
    assert found.count_calls("agent").likely <= 120


def test_proposals_help_for_a_while(world: SimpleNamespace):
    for recipe in ("ledger", "reflact"):
        settings = change_settings(recipe=recipe, batch_size=20, edit_budget=4)
        planned = PlannedRun(world.Env(), world.policy(), world.splits(60, 60, 60), settings)
        helped = asyncio.run(simulate(planned))
        idle = asyncio.run(simulate(planned, curable=0.0))
        assert helped.claim is not None and helped.claim.is_better
        assert helped.best.skill != helped.initial.skill == idle.best.skill
        assert recipe == "ledger" or 0 < helped.accepted < helped.steps


# ---- what is not called ---------------------------------------------------------------------------------------------


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("an estimate must not call this")


class Untouchable(Env, frozen=True):
    """An environment with a slot whose every method is an error."""

    name: ClassVar[str] = "untouchable"
    tasks = opening = slot = prepare = setup = tools = verify = refuse


class UntouchableProposer(Proposer):
    name: ClassVar[str] = "untouchable"
    modes: ClassVar[tuple[Any, ...]] = ("patch", "full_rewrite_minibatch")
    needs_optimizer: ClassVar[bool] = True

    async def reflect(self, view: View, batch: int, rollouts: AsyncIterator[Rollout]) -> tuple[Reflection, ...]:
        return refuse()


@pytest.mark.parametrize("recipe", ["ledger", "reflact"])
def test_neither_environment_nor_agent_nor_proposer_are_called(world: SimpleNamespace, recipe: str):
    policy = Policy(ScriptedModel(refuse), skill=Skill("# Skill\n"))
    settings = change_settings(recipe=recipe)
    planned = PlannedRun(Untouchable(), policy, world.splits(), settings, proposer=UntouchableProposer())
    assert estimate_now(planned).count_calls("optimizer").likely > 0


def test_a_rule_with_state_is_made_for_each_run(world: SimpleNamespace):
    made: list[Any] = []

    class Stubborn(EarlyRule):
        def __init__(self) -> None:
            self.decisions = 0
            made.append(self)

        def __call__(self, gate: Gate, candidate: Contender, current: Contender, best: Contender) -> Verdict:
            self.decisions += 1
            verdict = judge(gate, candidate, current, best)
            return msgspec.structs.replace(verdict, decision=Decision.REJECT, new_best=False)

        def is_clear(self, gate: Gate, candidate: Contender, current: Contender, left: Any) -> bool:
            return True

    settings = change_settings(gate=Gate(rule="mine.py", block=2), slow=SlowUpdate(enabled=False))
    found = estimate_now(plan_run(world, settings, make_rule=Stubborn), Assumptions(failing=1.0))
    assert [rule.decisions for rule in made] == [found.steps, 0, found.steps]
    assert 0 < find_line(found, "evaluate").calls.likely <= 2 * found.steps  # one block of two items per candidate


def test_a_budget_that_is_too_small_is_an_error_as_in_the_run(world: SimpleNamespace):
    with pytest.raises(ConfigError, match=r"budget.rollouts is 5"):
        estimate_now(plan_run(world, change_settings(recipe="ledger"), rollouts=5))


# ---- tokens and money -----------------------------------------------------------------------------------------------


def find_line(found: Estimate, stage: str) -> EstimateLine:
    return next(line for line in found.lines if line.stage == stage)


def test_turns_send_again_what_was_said(world: SimpleNamespace):
    assumed = Assumptions(turns=3, opening_tokens=100, reply_tokens=10, result_tokens=20)
    planned = plan_run(world, SMALL)
    planned = PlannedRun(planned.env, world.policy("x" * 200), planned.splits, planned.settings)
    each = find_line(estimate_now(planned, assumed), "baseline").each
    assert (each.prompt_tokens, each.completion_tokens) == (150 + 180 + 210, 30)


def test_prompts_of_the_optimizer_hold_the_transcripts(world: SimpleNamespace):
    planned = plan_run(world, SMALL)
    short, long = (
        find_line(estimate_now(planned, Assumptions(reply_tokens=size, result_tokens=0, turns=2)), "analyst").each
        for size in (10, 1_010)
    )
    assert 2_000 < long.prompt_tokens - short.prompt_tokens < 4_100  # one or two rollouts of two turns
    assert short.completion_tokens == long.completion_tokens == Assumptions().proposal_tokens


def test_what_an_earlier_run_took_is_used_where_it_is_known(world: SimpleNamespace):
    spent = (StageCost("agent", "rollout", 2, Usage(20, 4)), StageCost("optimizer", "rank", 1, Usage(7, 3)))
    found = estimate_now(plan_run(world, SMALL), Assumptions(), EarlierRun("runs/one", spent))
    for line in found.lines:
        assert line.measured == (line.role == "agent" or line.stage == "rank")
    assert find_line(found, "test").each == Usage(10, 2) and find_line(found, "rank").each == Usage(7, 3)


def test_money_is_calls_times_tokens_times_price(world: SimpleNamespace):
    found = estimate_now(plan_run(world, change_settings(test=False)))
    dollars = found.compute_dollars("agent", Price(prompt=1.0, completion=2.0))
    costs = [(line.each.prompt_tokens + 2 * line.each.completion_tokens) / 1e6 for line in found.lines]
    for name in ("least", "likely", "most"):
        lines = zip(found.lines, costs, strict=True)
        own = sum(getattr(line.calls, name) * cost for line, cost in lines if line.role == "agent")
        assert getattr(dollars, name) == pytest.approx(own)
    assert dollars.least < dollars.likely <= dollars.most
    assert found.compute_dollars("agent", Price()) == (0.0, 0.0, 0.0)


def test_a_run_without_a_model_that_proposes_asks_nobody(world: SimpleNamespace):
    settings = change_settings(slow=SlowUpdate(enabled=False), memory=False)
    for recipe in ("reflact", "ledger"):
        changed = msgspec.structs.replace(settings, recipe=recipe)
        planned = plan_run(world, changed, proposer=Exemplars(), has_optimizer=False)
        found = estimate_now(planned, ASSUMED)
        assert found.count_calls("optimizer") == (0, 0, 0)
        assert {line.role for line in found.lines} == {"agent"}
        assert find_line(found, "ship").calls.likely > 0


def test_tasks_of_different_splits_may_share_an_id(world: SimpleNamespace):
    tasks = {
        split: [Task(id=str(n), prompt="Do it.", answer=f"{split} {n}") for n in range(6)]
        for split in ("train", "selection", "test")
    }
    splits = Splits.from_tasks(*tasks.values())
    found = estimate_now(PlannedRun(world.Env(), world.policy(), splits, change_settings()))
    assert find_line(found, "baseline").calls.likely == 6
    assert find_line(found, "test").calls.least == 6
