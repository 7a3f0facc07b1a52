"""Filters of trajectories: what each drops, and that each dropped one is counted once."""

import pytest
from tests.build import make_rollout, make_turn

from ludus.batch_settings import BatchSettings, FilterName
from ludus.trajectories.filters import FAILED, FILTERS, TrajectoryFilter, has_reasoning, is_valid_call
from ludus.types import Call, Message, Provenance, Reasoning, Rollout, StopReason, ToolResult

OFFERED = Provenance(policy="p", model="m", tools=("terminal",))
CALL = ToolResult(Call("c1", "terminal", '{"command": "ls"}'), "a.txt")
GOOD = make_rollout(1.0, make_turn("", CALL, thinking="hm"), "done", provenance=OFFERED)


def change(*turns: object, score: float | None = 1.0, **fields: object) -> Rollout:
    return make_rollout(score, *turns, provenance=OFFERED, **fields)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "rollout"),
    [
        ("no-reasoning", change(make_turn("", CALL), "done")),
        (
            "invalid-calls",
            change(make_turn("", ToolResult(Call("c", "rm", "{}"), "", "unknown"), thinking="hm"), "done"),
        ),
        ("invalid-calls", change(make_turn("", ToolResult(Call("c", "terminal", "{"), "", "bad"), thinking="hm"), "x")),
        ("unfinished", change(make_turn("", CALL, thinking="hm"), "cut", stop=StopReason.MAX_TURNS)),
        ("short", change(make_turn("done", thinking="hm"))),
        ("failed-check", change(make_turn("", CALL, thinking="hm"), "wrong", score=0.5)),
    ],
)
def test_each_filter_drops_what_it_names_and_nothing_else(name: FilterName, rollout: Rollout):
    every = TrajectoryFilter(BatchSettings(drop=(*FILTERS, "duplicates")))
    assert every.admit(GOOD)
    assert every.find_reason(rollout) == name
    assert not any(is_unwanted(GOOD, BatchSettings()) for is_unwanted in FILTERS.values())
    others = TrajectoryFilter(BatchSettings(drop=tuple(each for each in FILTERS if each != name)))
    assert others.admit(rollout)


def test_a_failed_rollout_is_never_written():
    chosen = TrajectoryFilter(BatchSettings())
    assert not chosen.admit(make_rollout(None))
    assert chosen.dropped == {FAILED: 1}


def test_duplicates_are_those_after_the_first_that_is_admitted():
    chosen = TrajectoryFilter(BatchSettings(drop=("duplicates", "short")))
    assert [chosen.admit(each) for each in (change("a"), GOOD, GOOD, GOOD)] == [False, True, False, False]
    assert chosen.dropped == {"short": 1, "duplicates": 2}


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (Message("assistant", "x", reasoning=Reasoning("hm", "reasoning_content")), True),
        (Message("assistant", "<think>hm</think>x"), True),
        (Message("assistant", "<REASONING_SCRATCHPAD>\nhm"), True),
        (Message("assistant", "<think>\n</think>x"), False),
        (Message("assistant", "x", reasoning=Reasoning("  ", "reasoning_content")), False),
        (Message("assistant", "I think"), False),
    ],
)
def test_thinking_is_found_in_fields_and_tags(message: Message, found: bool):
    assert has_reasoning(message) is found


@pytest.mark.parametrize(
    ("call", "valid"),
    [
        (Call("c", "a", "{}"), True),
        (Call("c", "a", ""), True),
        (Call("c", "b", "{}"), False),
        (Call("c", "a", "[1]"), False),
        (Call("c", "a", "{,}"), False),
    ],
)
def test_valid_calls(call: Call, valid: bool):
    assert is_valid_call(call, {"a"}) is valid
