"""Another gate on the decisions of a run: no rollout, each decision by itself."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from ludus.reflact.gate import Decision, Gate, judge
from ludus.reflact.gate_rules import find_rule
from ludus.reflact.outcome_index import OutcomeIndex
from ludus.reflact.records import Step
from ludus.reflact.regate import regate
from ludus.reflact.rollout_origins import read_origins
from ludus.store import MemoryStore


@pytest.mark.parametrize("stored", [True, False])
def test_the_same_gate_makes_the_same_decisions(world: SimpleNamespace, stored: bool):
    """With the outcomes of the store, and with the records alone as in runs of earlier versions."""
    store = MemoryStore()
    records = world.run(store=store)
    index = OutcomeIndex(store.outcomes.items(), read_origins(store) if stored else {})
    for rule in ("mean", "curtailed"):
        found = list(regate(records, Gate(), find_rule(rule), index.get_measure, 42))
        assert [each.before for each in found] == [each.verdict.decision.value for each in found]
        assert not any(each.differs for each in found)
    steps = [record for record in records if isinstance(record, Step) and record.verdict]
    assert [each.origin for each in found if each.origin.startswith("step")] == [f"step_{s.number:04d}" for s in steps]
    assert all(each.verdict.paired for each in found)


def test_another_gate_may_decide_otherwise_and_need_fewer_items(world: SimpleNamespace):
    records = world.run()
    found = list(regate(records, Gate(margin=1.0), judge, lambda skill: None, 42))
    assert {each.verdict.decision for each in found} == {Decision.REJECT}
    assert [each.differs for each in found] == [each.before.startswith("accept") for each in found]
    sequential = list(regate(records, Gate(block=2), find_rule("sequential"), lambda skill: None, 42))
    assert sum(each.used for each in sequential) < sum(each.measured for each in sequential)


def test_a_current_skill_that_was_measured_for_the_decision_is_found(world: SimpleNamespace):
    """Forced guidance makes the current skill unmeasured; the next decision measures it."""
    settings = replace(world.SETTINGS, epochs=3, slow=replace(world.SETTINGS.slow, gated=False))
    store = MemoryStore()
    records = world.run(settings=settings, store=store)
    index = OutcomeIndex(store.outcomes.items(), read_origins(store))
    found = list(regate(records, Gate(), judge, index.get_measure, 42))
    assert [each.before for each in found] == [each.verdict.decision.value for each in found]
