"""The queue of leases: nothing is lost, nothing is at two workers, and what kills its workers is found."""

from collections.abc import Hashable, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.engines.lease_queue import FEW, LeaseQueue, choose_window, is_worth_a_lease, split_evenly


def plain(bodies: Iterable[str]) -> Iterator[tuple[str, Hashable]]:
    return ((body, None) for body in bodies)


def give(queue: LeaseQueue[str], worker: str, most: int) -> list[str]:
    return [unit.body for unit in queue.give(worker, most)]


def test_units_go_out_in_order_and_are_read_only_when_they_are_needed():
    read: list[str] = []

    def bodies() -> Iterator[tuple[str, Hashable]]:
        for body in "abcdef":
            read.append(body)
            yield body, None

    queue = LeaseQueue[str]()
    queue.add(bodies())
    assert give(queue, "one", 2) == ["a", "b"] and give(queue, "two", 1) == ["c"]
    assert read == ["a", "b", "c"]


def test_a_unit_that_has_ended_twice_counts_once():
    queue = LeaseQueue[str]()
    source = queue.add(plain("a"))
    (unit,) = queue.give("one", 1)
    queue.lose("one", "killed")
    queue.give("two", 1)
    assert queue.end("one", unit.number) is None
    assert not queue.is_drained(source)
    assert queue.end("two", unit.number) is unit
    assert queue.end("two", unit.number) is None
    assert queue.is_drained(source)


def test_what_a_lost_worker_had_comes_first_again_in_its_order():
    queue = LeaseQueue[str]()
    queue.add(plain("abcdef"))
    queue.give("one", 3)
    loss = queue.lose("one", "killed")
    assert [unit.body for unit in loss.returned] == ["a", "b", "c"] and not loss.poisoned
    assert give(queue, "two", 5) == ["a", "b", "c", "d", "e"]


def test_what_was_not_begun_returns_without_a_mark():
    queue = LeaseQueue[str]()
    queue.add(plain("abc"))
    units = queue.give("one", 3)
    queue.take_back("one", [units[1].number, units[2].number, 99])
    again = queue.give("two", 5)
    assert [unit.body for unit in again] == ["b", "c"] and not any(unit.losses for unit in again)


def test_units_that_were_lost_are_spread():
    queue = LeaseQueue[str]()
    queue.add(plain(str(number) for number in range(40)))
    queue.give("one", 20)
    queue.lose("one", "killed")
    lost = [unit for unit in queue.give("two", 15) if unit.losses]
    assert len(lost) == FEW


def test_the_unit_that_kills_its_workers_is_found_and_the_others_run():
    queue = LeaseQueue[str](deaths=3)
    source = queue.add(plain(["poison", *(f"good {number}" for number in range(30))]))
    poisoned, done, deaths = [], set[str](), 0
    for _ in range(200):
        units = queue.give("one", 10)
        if any(unit.body == "poison" for unit in [*units, *queue.list_out("one")]):
            poisoned += queue.lose("one", f"death {(deaths := deaths + 1)}").poisoned
            continue
        for unit in queue.list_out("one"):
            assert queue.end("one", unit.number)
            done.add(unit.body)
    assert [unit.body for unit in poisoned] == ["poison"] and poisoned[0].alone == 3
    assert len(done) == 30 and queue.is_drained(source) and deaths == 5


def test_a_suspect_runs_alone_while_the_other_workers_go_on():
    queue = LeaseQueue[str]()
    queue.add(plain("abcdefgh"))
    queue.give("one", 1)
    queue.lose("one", "killed")
    queue.give("one", 1)
    (busy,) = queue.give("two", 1)
    queue.lose("one", "killed")
    assert give(queue, "two", 4) == []  # from now on it is kept for "a"
    assert give(queue, "three", 2) == ["c", "d"]
    queue.end("two", busy.number)
    assert give(queue, "two", 4) == ["a"] and give(queue, "two", 4) == []
    assert give(queue, "three", 1) == ["e"]
    (unit,) = queue.list_out("two")
    queue.end("two", unit.number)
    assert give(queue, "two", 2) == ["f", "g"]


def test_a_worker_that_gets_no_more_is_not_kept_for_a_suspect():
    queue = LeaseQueue[str]()
    queue.add(plain("ab"))
    for _ in range(2):
        queue.give("one", 1)
        queue.lose("one", "killed")
    queue.give("two", 1)
    (unit,) = queue.list_out("two")
    queue.take_back("two", [unit.number])
    queue.excuse("two")
    assert give(queue, "three", 2) == ["a"]


def test_a_worker_gets_units_of_the_image_that_it_has():
    queue = LeaseQueue[str]()
    queue.add(iter([("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("a3", "a")]))
    assert give(queue, "one", 1) == ["a1"] and give(queue, "two", 1) == ["b1"]
    assert give(queue, "two", 1) == ["b2"] and give(queue, "one", 1) == ["a2"]
    assert give(queue, "two", 1) == ["a3"]


def test_a_dropped_source_gives_nothing_more():
    queue = LeaseQueue[str]()
    first, second = queue.add(plain("abc")), queue.add(plain("xyz"))
    units = queue.give("one", 2)
    queue.take_back("one", [units[1].number])
    assert [unit.body for unit in queue.drop(first)] == ["b"]
    assert not queue.is_drained(first)  # one is still out
    queue.end("one", units[0].number)
    assert queue.is_drained(first) and not queue.is_drained(second)
    assert give(queue, "one", 5) == ["x", "y", "z"]


steps = st.lists(
    st.tuples(st.sampled_from(["give", "end", "lose", "back"]), st.integers(0, 2), st.integers(1, 7)), max_size=120
)


@given(steps, st.integers(0, 40), st.integers(1, 3))
def test_nothing_is_lost_and_nothing_runs_twice(moves: list[tuple[str, int, int]], size: int, deaths: int):
    queue = LeaseQueue[int](deaths)
    source = queue.add((number, number % 3 or None) for number in range(size))
    ended: list[int] = []
    for move, worker, amount in [*moves, *(("give", 0, 7), ("end", 0, 7)) * (size + 60)]:
        out = queue.list_out(worker)
        if move == "give":
            queue.give(worker, amount)
            everywhere = [unit.body for each in range(3) for unit in queue.list_out(each)]
            assert len(everywhere) == len(set(everywhere)) and not set(everywhere) & set(ended)
        elif move == "end":
            ended += [unit.body for unit in out[:amount] if queue.end(worker, unit.number)]
        elif move == "lose":
            ended += [unit.body for unit in queue.lose(worker, "killed").poisoned]
        else:
            queue.take_back(worker, [unit.number for unit in out[:amount]])
    for other in (1, 2):
        ended += [unit.body for unit in queue.list_out(other) if queue.end(other, unit.number)]
    for _ in range(size + 5):
        ended += [unit.body for unit in queue.give(0, 9) if queue.end(0, unit.number)]
        ended += [unit.body for unit in queue.list_out(0) if queue.end(0, unit.number)]
    assert sorted(ended) == list(range(size)) and queue.is_drained(source)


@pytest.mark.parametrize(
    ("slots", "seconds", "ended", "expected"),
    [
        (8, None, 0, 8),
        (8, 60.0, 99, 8),
        (8, 3.0, 99, 8),
        (8, 0.3, 99, 80),
        (8, 0.3, 10, 18),
        (0, 0.1, 99, 0),
        (64, 0.0, 9999, 4096),
    ],
)
def test_a_window_is_a_few_seconds_of_work_and_never_less_than_what_runs_at_once(
    slots: int, seconds: float | None, ended: int, expected: int
):
    assert choose_window(slots, seconds, ended, 3.0) == expected


def test_short_units_are_sent_in_bundles():
    assert is_worth_a_lease(1, 3) and is_worth_a_lease(20, 80) and not is_worth_a_lease(19, 80)


@given(st.integers(0, 500), st.integers(1, 20), st.integers(1, 60) | st.none())
def test_the_nodes_together_run_no_more_than_is_asked_for(total: int, count: int, most: int | None):
    shares = split_evenly(total, list(range(count)), most)
    assert sum(shares.values()) <= total and max(shares.values()) - min(shares.values()) <= 1
    assert sum(shares.values()) == total or (most is not None and min(shares.values()) >= min(most, total // count))


def test_what_a_worker_has_no_slot_for_runs_elsewhere_and_not_for_ever():
    queue = LeaseQueue[str]()
    source = queue.add(plain("abc"))
    for worker in ("one", "two"):
        (unit,) = queue.give(worker, 1)
        assert unit.body == "a"  # before others
        assert queue.move(worker, unit.number) and not queue.move(worker, unit.number)
    assert give(queue, "one", 1) == ["b"]
    queue.pardon(["one", "three"])
    assert give(queue, "two", 1) == ["c"]
    (unit,) = queue.give("three", 1)
    assert unit.body == "a" and not queue.move("three", unit.number)
    assert queue.end("three", unit.number) is unit and not queue.is_drained(source)


def test_what_no_worker_had_a_slot_for_goes_to_any():
    queue = LeaseQueue[str]()
    queue.add(plain("a"))
    (unit,) = queue.give("one", 1)
    assert queue.move("one", unit.number) and not queue.give("one", 1)
    queue.pardon(["one"])
    assert give(queue, "one", 1) == ["a"]
