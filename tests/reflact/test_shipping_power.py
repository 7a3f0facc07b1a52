"""What the selection tasks of a run can tell, beside what shipping does with simulated rollouts."""

from random import Random

import pytest

from ludus.reflact.paired_evidence import FEWEST_TASKS, compute_certainty
from ludus.reflact.shipping_power import SelectionFacts, count_tasks_needed, estimate_luck, find_smallest_gain
from ludus.reflact.train_settings import ShippingSettings

FACTS = SelectionFacts(luck=0.18, room=0.9, certainty=0.95)


def test_more_tasks_and_more_passes_show_smaller_gains():
    gains = [find_smallest_gain(FACTS, tasks, 6) or 1.0 for tasks in (3, 5, 10, 40)]
    assert 0.9 > gains[0] > gains[1] > gains[2] > gains[3]
    assert (find_smallest_gain(FACTS, 40, 1) or 1.0) > gains[3]
    assert find_smallest_gain(FACTS, FEWEST_TASKS - 1, 30) is None
    assert find_smallest_gain(FACTS._replace(room=0.02), 10, 6) is None


def test_the_tasks_for_a_gain_show_it():
    needed = count_tasks_needed(FACTS, 0.1, ShippingSettings())
    assert needed is not None and (find_smallest_gain(FACTS, needed, 4) or 1.0) <= 0.1
    assert count_tasks_needed(FACTS, 0.001, ShippingSettings()) is None
    assert count_tasks_needed(FACTS._replace(room=0.01), 0.05, ShippingSettings()) is None


def test_luck_is_never_taken_to_be_none():
    assert 0 < estimate_luck([0.0] * 20) < estimate_luck([1.0, -1.0] * 10) < 1


@pytest.mark.parametrize(("tasks", "start", "most"), [(3, 0.1, 1.0), (10, 0.1, 1.0), (10, 0.5, 0.9), (40, 0.3, 0.9)])
def test_a_gain_of_that_size_is_shown_in_about_four_of_five_runs(tasks: int, start: float, most: float):
    """Some tasks gain all that there is to gain, the others nothing."""
    random, passes, runs = Random(7), ShippingSettings().count_passes(tasks), 200
    gain = find_smallest_gain(SelectionFacts(2 * start * (1 - start), most - start, 0.95), tasks, passes)
    assert gain is not None
    shown = 0
    for _ in range(runs):
        rates = [most if random.random() < gain / (most - start) else start for _ in range(tasks)]
        pairs = [[float(random.random() < p) - (random.random() < start) for _ in range(passes)] for p in rates]
        shown += compute_certainty(pairs) >= 0.95
    assert 0.65 < shown / runs < 0.95
