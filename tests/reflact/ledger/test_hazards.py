"""Who is to blame for failures that nobody explains."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger_kit import read

from ludus.reflact.ledger.hazards import compute_damage, update_hazards
from ludus.reflact.ledger.line_records import Hazard


def test_a_line_that_failures_come_with_is_found_although_nobody_suspects_it():
    random, hazards = Random(0), dict[str, Hazard]()
    for _ in range(400):
        present = [f"L{n}" for n in range(1, 9) if random.random() > 0.2]
        failed = random.random() < 0.05 + 0.4 * ("L3" in present)
        update_hazards(hazards, read(f"t{random.randrange(20)}", not failed, present), present, [])
    damages = {n: compute_damage(hazards, f"L{n}", {"": 1.0}).mean for n in range(1, 9)}
    assert all(damages[n] < damages[3] / 2 for n in damages if n != 3), damages


def test_a_suspect_gets_more_of_the_blame_and_a_named_cause_takes_it():
    one, two = dict[str, Hazard](), dict[str, Hazard]()
    update_hazards(one, read("t", False, ["L1", "L2"], suspects=("L1",)), ["L1", "L2"], [])
    assert one["line/L1/"].blamed == pytest.approx(5 * one["line/L2/"].blamed)
    update_hazards(two, read("t", False, ["L1"], ["units"]), ["L1"], ["dates"])
    assert two == {}


@given(st.lists(st.tuples(st.booleans(), st.sets(st.sampled_from(["L1", "L2", "L3"])), st.booleans()), max_size=30))
def test_what_is_blamed_is_the_number_of_unexplained_failures(rollouts: list[tuple[bool, set[str], bool]]):
    hazards = dict[str, Hazard]()
    for passed, present, missing in rollouts:
        lines = sorted(present)
        update_hazards(hazards, read("t", passed, lines), lines, ["units"] if missing else [])
    assert sum(hazard.blamed for hazard in hazards.values()) == pytest.approx(sum(not each[0] for each in rollouts))
    assert all(0 <= hazard.blamed <= hazard.exposed for hazard in hazards.values())
