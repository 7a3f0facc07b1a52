"""Everything that a run knows about a skill, put together from its store."""

from types import SimpleNamespace

from msgspec.structs import replace

from ludus.reflact.outcome_index import OutcomeIndex
from ludus.reflact.rollout_origins import read_origins
from ludus.skill import Skill
from ludus.store import MemoryStore


def test_rollouts_of_the_selection_split_are_found_by_skill_with_all_replicates(world: SimpleNamespace):
    store = MemoryStore()
    records = world.run(settings=replace(world.SETTINGS, selection_replicates=2), store=store)
    index = OutcomeIndex(store.outcomes.items(), read_origins(store))
    initial = records[0].state.initial
    assert index.get_measure(initial.skill) == initial.measure
    assert {mark.count for mark in initial.measure.marks.values()} == {2}
    assert index.get_measure(Skill("never measured")) is None
    assert OutcomeIndex(store.outcomes.items(), {}).get_measure(initial.skill) is None, "train and test do not count"
