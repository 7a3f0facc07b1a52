"""How rollouts are shared out among arms."""

from hypothesis import given
from hypothesis import strategies as st

from ludus.library.library_runs import share_budget, thin_out
from ludus.library.readings import TrialKey

WANTED = st.dictionaries(st.text("abc", max_size=3), st.integers(0, 60), max_size=6)


@given(WANTED, st.integers(0, 200))
def test_a_budget_is_shared_fairly_and_never_exceeded(wanted: dict[str, int], left: int):
    given_ = share_budget(wanted, left)
    assert set(given_) == set(wanted) and sum(given_.values()) <= left
    assert all(given_[name] <= wanted[name] for name in wanted)
    cut = [name for name in wanted if given_[name] < wanted[name]]
    if not cut:
        assert given_ == wanted
    for name in cut:  # nobody has more than one that got less than it needs, but for the rest of a division
        assert all(given_[other] <= given_[name] + 1 for other in wanted)
    if cut:
        assert sum(given_.values()) == left


@given(WANTED)
def test_without_a_limit_all_get_what_they_need(wanted: dict[str, int]):
    assert share_budget(wanted, None) == wanted


def test_fewer_pairs_are_of_all_tasks_alike():
    keys = [TrialKey(task, number) for task in "abc" for number in range(4)]
    assert thin_out(keys, 4) == [TrialKey("a", 0), TrialKey("b", 0), TrialKey("c", 0), TrialKey("a", 1)]
    assert sorted(thin_out(keys, 99)) == sorted(keys)
