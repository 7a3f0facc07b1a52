"""How many groups may be under way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.rl.server_credits import (
    CreditRules,
    ServerStatus,
    compute_credits,
    has_crossed,
    is_finished,
    limit_for_eval,
)


def make_rules(**fields) -> CreditRules:
    defaults = {"group_size": 4, "batch_size": 16, "max_batches_offpolicy": 3, "min_batch_allocation": None, "most": 99}
    return CreditRules(**defaults | fields)


def make_status(queue_size: int = 0, step: int = 0, **fields) -> ServerStatus:
    return ServerStatus(current_step=step, queue_size=queue_size, **fields)


@pytest.mark.parametrize(
    ("status", "rules", "credits"),
    [
        (make_status(), make_rules(), 12),  # 3 batches of 16 rows are 12 groups of 4
        (make_status(5), make_rules(), 7),
        (make_status(12), make_rules(), 0),
        (make_status(50), make_rules(), 0),
        (make_status(), make_rules(most=2), 2),
        (make_status(), make_rules(batch_size=-1), 0),  # no trainer
        (make_status(), make_rules(max_batches_offpolicy=1, group_size=5), 4),  # a part of a group counts as one
        (make_status(unallocated_fraction=0.5), make_rules(), 6),
        (make_status(unallocated_fraction=0.5), make_rules(min_batch_allocation=0.25), 9),
        (
            make_status(50, self_queue_size=1),
            make_rules(min_batch_allocation=0.25),
            2,
        ),  # its own share of 3 is promised
        (make_status(step=9), make_rules(steps=10), 8),  # one step is left, and one batch more
        (make_status(step=10), make_rules(steps=10), 0),
    ],
)
def test_credits(status, rules, credits):
    assert compute_credits(status, rules) == credits


@given(
    queue=st.integers(0, 100),
    batch=st.integers(1, 64),
    group=st.integers(1, 16),
    batches=st.integers(1, 5),
    fraction=st.floats(0, 1),
    most=st.integers(1, 50),
)
def test_queue_and_credits_never_exceed_the_bound(queue, batch, group, batches, fraction, most):
    rules = make_rules(batch_size=batch, group_size=group, max_batches_offpolicy=batches, most=most)
    credits = compute_credits(make_status(queue, unallocated_fraction=fraction), rules)
    assert 0 <= credits <= most
    if credits:
        assert (queue + credits - 1) * group < batches * batch


@pytest.mark.parametrize(
    ("policy", "evaluating", "groups"),
    [("stop", True, 0), ("limit", True, 3), ("none", True, 7), ("stop", False, 7), ("limit", False, 7)],
)
def test_during_an_evaluation(policy, evaluating, groups):
    assert limit_for_eval(7, policy, 0.5, evaluating=evaluating) == groups


@pytest.mark.parametrize(
    ("before", "now", "every", "crossed"),
    [
        (0, 1, 1, True),  # the original never evaluates with 1
        (3, 4, 5, False),
        (4, 5, 5, True),
        (4, 14, 5, True),  # nor if a jump ends on a larger remainder
        (0, 10, 10, True),
        (10, 10, 10, False),
        (5, 6, 0, False),
    ],
)
def test_crossing(before, now, every, crossed):
    assert has_crossed(before, now, every) is crossed


def test_the_end():
    assert not is_finished(make_status(step=9), make_rules(steps=10))
    assert is_finished(make_status(step=10), make_rules(steps=10))
    assert not is_finished(make_status(step=10**9), make_rules())
