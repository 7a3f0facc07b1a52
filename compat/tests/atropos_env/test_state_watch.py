"""The watch over attributes: a group that finds another one's value is spoiled, and nothing else is."""

from typing import Any

import pytest

from ludus.compat.atropos_env.state_watch import StateWatch, act_as, watch_object


class Env:
    def __init__(self) -> None:
        self.item: Any = None
        self.count = 0
        self.log: list[int] = []
        self.best = 0.0

    def put(self, item: Any) -> None:
        self.item = item

    def note(self, score: float) -> None:
        self.count += 1
        self.log = [*self.log, 1][-3:]
        if score > self.best:
            self.best = score


@pytest.fixture
def watched() -> tuple[Env, StateWatch]:
    env, watch = Env(), StateWatch()
    watch_object(env, watch)
    return env, watch


def test_an_object_that_is_watched_is_what_it_was(watched: tuple[Env, StateWatch]):
    env, _ = watched
    assert isinstance(env, Env) and type(env).__name__ == "Env" and env.item is None
    env.put(3)
    assert env.item == 3
    with pytest.raises(AttributeError, match="nothing"):
        _ = env.nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_a_group_that_finds_another_ones_value_is_spoiled(watched: tuple[Env, StateWatch]):
    env, watch = watched
    with act_as("a"):
        env.put("mine")
    with act_as("b"):
        env.put("theirs")
        assert env.item == "theirs"
    assert watch.spoiled == {}
    with act_as("a"):
        assert env.item == "theirs"
    assert watch.spoiled == {"a": "item"}
    assert watch.end("a") == {} and watch.spoiled == {}


def test_equal_values_and_values_of_nobody_are_harmless(watched: tuple[Env, StateWatch]):
    env, watch = watched
    for group in ("a", "b"):
        with act_as(group):
            env.put("same")
    with act_as("a"):
        assert env.item == "same"
    with act_as("c"):
        assert env.item == "same"  # it never wrote there: one group after another would read it, too
    env.put("by a metric")
    with act_as("b"):
        assert env.item == "by a metric"
    assert watch.spoiled == {}


def test_counters_buffers_and_records_are_harmless(watched: tuple[Env, StateWatch]):
    env, watch = watched
    for score, group in enumerate("abab"):
        with act_as(group):
            env.note(float(score))
            assert env.count and env.log and env.best == score
    assert watch.spoiled == {} and env.count == 4


def test_what_is_written_with_an_item_belongs_to_its_group(watched: tuple[Env, StateWatch]):
    env, watch = watched
    for group in ("a", "b"):
        with act_as(group, taking=True):
            env.put(group)
            assert env.item == group
    with act_as("b"):
        assert env.item == "b"
    with act_as("a"):
        assert env.item == "b"
    assert watch.spoiled == {"a": "item"} and watch.end("a") == {"item": "a"}
