"""Which groups make the next batch: exact, oldest first, no deadlock, no starvation."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.rl.api.batching import (
    Backlog,
    QueuedGroup,
    can_reach,
    choose_exact,
    choose_with_shares,
    compute_shares,
    explain_shortage,
    find_combination,
)

SIZES = st.lists(st.integers(1, 9), max_size=9)
OWNED = st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(1, 9)), max_size=9)
TARGETS = st.integers(1, 24)


def make_backlog(owned: Sequence[tuple[int | None, int]]) -> Backlog:
    return Backlog(QueuedGroup(id, size, env_id, 0, 0, 0, 10, 0) for id, (env_id, size) in enumerate(owned))


def list_exact(sizes: Sequence[int], target: int) -> list[tuple[int, ...]]:
    """All sets of places with that sum, by brute force, in the order of their places."""
    places = range(len(sizes))
    subsets = itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(1, len(sizes) + 1))
    return sorted(subset for subset in subsets if sum(sizes[p] for p in subset) == target)


@given(SIZES, st.integers(0, 24))
def test_reachable_sums_are_those_of_subsets(sizes, target):
    counts = {size: sizes.count(size) for size in sizes}
    assert can_reach(counts, target) == (target == 0 or bool(list_exact(sizes, target)))


@given(OWNED, TARGETS)
def test_a_batch_is_the_oldest_exact_set_and_there_is_one_whenever_there_can_be(owned, target):
    """No deadlock: odd, oversize and mixed sizes never hide an exact set."""
    sets = list_exact([size for _, size in owned], target)
    chosen = choose_exact(make_backlog(owned).all_lanes, target)
    assert ([group.id for group in chosen] if chosen else None) == (list(sets[0]) if sets else None)


@given(st.lists(st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1, max_size=6), max_size=12))
def test_no_group_is_overtaken_while_it_could_be_in_the_batch(arrivals):
    """No starvation: a group stays behind only if no exact batch contains it."""
    backlog, ids, waiting = Backlog(), itertools.count(), {}
    for sizes in arrivals:
        for size in sizes:
            group = QueuedGroup(next(ids), size, None, 0, 0, 0, 1, 0)
            waiting[group.id] = size
            backlog.add(group)
        while chosen := choose_exact(backlog.all_lanes, 8):
            order = sorted(waiting)
            places = {id: place for place, id in enumerate(order)}
            sets = list_exact([waiting[id] for id in order], 8) if len(order) <= 12 else None
            if sets is not None:
                assert tuple(places[group.id] for group in chosen) == sets[0]
            for group in chosen:
                del waiting[group.id]
                backlog.remove(group.id)
        assert not (len(waiting) <= 12 and list_exact(list(waiting.values()), 8))


@pytest.mark.parametrize(
    ("target", "sizes", "expected"),
    [
        (4, [1, 1, 2, 4], [0, 1, 2]),
        (8, [4, 3, 3, 4], [0, 3]),
        (4, [8], None),
        (4, [8, 2, 2], [1, 2]),
        (6, [2, 4, 2, 2, 2], [0, 1]),
        (12, [4, 4, 8, 4], [0, 1, 3]),
        (8, [8, 4, 4], [0]),
        (0, [1], None),
    ],
)
def test_the_vectors_on_which_the_original_blocks_or_starves(target, sizes, expected):
    chosen = choose_exact(make_backlog([(None, size) for size in sizes]).all_lanes, target)
    assert (None if chosen is None else [group.id for group in chosen]) == expected


def test_many_groups_of_a_size_that_never_fits_are_not_walked_over():
    backlog = make_backlog([(0, 3)] * 20_000 + [(1, 4)] * 2)
    looked = 0

    class Counted(dict):
        def values(self):
            nonlocal looked
            for value in super().values():
                looked += 1
                yield value

    chosen = choose_exact([Counted(lane) for lane in backlog.all_lanes], 8)
    assert [group.size for group in chosen or ()] == [4, 4]
    assert looked < 10


# ---- the backlog --------------------------------------------------------------------------------------------------


@given(OWNED, st.sets(st.integers(0, 8)))
def test_the_backlog_keeps_order_and_sums(owned, removed):
    backlog = make_backlog(owned)
    for id in removed & set(range(len(owned))):
        assert backlog.remove(id).id == id
    left = [(id, size) for id, (_, size) in enumerate(owned) if id not in removed]
    assert [(group.id, group.size) for group in backlog] == left
    assert (len(backlog), backlog.sequences) == (len(left), sum(size for _, size in left))
    assert backlog.bytes == 10 * len(left)
    assert (backlog.oldest.id if backlog.oldest else None) == min((id for id, _ in left), default=None)
    assert sum(backlog.counts.values()) == sum(backlog.lanes.values()) == len(left)


# ---- minimum shares -----------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 5), st.floats(-1, 2)), st.integers(1, 64))
def test_shares_fit_into_a_batch(minimums, batch_size):
    shares = compute_shares(batch_size, minimums)
    assert sum(shares.values()) <= batch_size
    assert all(share > 0 and minimums[env_id] > 0 for env_id, share in shares.items())


@given(OWNED, st.integers(1, 16), st.dictionaries(st.sampled_from([0, 1, 2]), st.integers(1, 8)))
def test_a_batch_with_shares_is_exact_and_each_has_its_share(owned, batch_size, shares):
    chosen = choose_with_shares(make_backlog(owned), batch_size, shares)
    if chosen is None:
        return
    ids = [group.id for group in chosen]
    assert ids == sorted(set(ids))
    assert sum(group.size for group in chosen) == batch_size
    given = {env_id: sum(group.size for group in chosen if group.env_id == env_id) for env_id in shares}
    short = [env_id for env_id, share in shares.items() if given[env_id] < share]
    assert not short or sum(shares.values()) > batch_size or sum(given.values()) == batch_size


def test_the_minimum_comes_first_and_the_rest_is_the_oldest():
    backlog = make_backlog([(1, 2), (1, 2), (1, 2), (0, 4), (None, 2)])
    chosen = choose_with_shares(backlog, 8, {0: 2})
    assert [group.id for group in chosen or ()] == [0, 1, 3]
    assert choose_with_shares(backlog, 8, {2: 2}) is None


# ---- short groups, reasons ----------------------------------------------------------------------------------------


@given(SIZES, st.integers(1, 12))
def test_short_groups_are_combined_exactly(sizes, target):
    found = find_combination(sizes, target)
    sets = list_exact(sizes, target)
    assert tuple(found) == (sets[0] if sets else ())


def test_the_reason_says_what_to_change():
    some = make_backlog([(0, 8), (0, 8)])
    assert "64 sequences, 16 wait" in explain_shortage(some, 64, [8], full=False)
    assert "can never make exactly 12" in explain_shortage(some, 12, [8], full=False)
    assert "backlog is full with 16" in explain_shortage(some, 64, [8], full=True)
    assert "8 are larger than a batch" in explain_shortage(some, 4, [], full=False)
    assert "exactly 20" in explain_shortage(make_backlog([(0, 8)] * 3), 20, [4], full=False)
