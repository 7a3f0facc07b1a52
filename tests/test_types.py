import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.encoding import to_json
from ludus.types import (
    Call,
    Completion,
    Failure,
    Group,
    Message,
    Provenance,
    Reasoning,
    Rollout,
    Score,
    StopReason,
    Task,
    Tokens,
    ToolResult,
    Turn,
    Usage,
)

TASK = Task(id="t", prompt="do it", answer="42")
FROM = Provenance(policy="p", model="m")


def rollout(**changes: object) -> Rollout:
    fields = {"task": TASK, "provenance": FROM, "stop": StopReason.FINISHED, **changes}
    return Rollout(**fields)  # pyright: ignore


def test_tokens_refuse_columns_of_different_length():
    with pytest.raises(ValueError, match="ids 2, sampled 1, logprobs 2"):
        Tokens((1, 2), (True,), (-0.1, -0.2))


@given(st.lists(st.tuples(st.integers(0, 2**17), st.booleans(), st.floats(-50, 0)), max_size=20))
def test_aligned_tokens_round_trip(rows: list[tuple[int, bool, float]]):
    tokens = Tokens(*(tuple(column) for column in zip(*rows, strict=True))) if rows else Tokens((), (), ())
    assert msgspec.json.decode(to_json(tokens), type=Tokens) == tokens
    assert len(tokens) == len(rows)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["value", "soft", "parts"])
def test_a_score_is_finite_wherever_the_number_stands(bad: float, place: str):
    numbers = {"value": 1.0, "soft": 1.0, "parts": {}}
    numbers[place] = {"style": bad} if place == "parts" else bad
    with pytest.raises(ValueError, match="finite"):
        Score(passed=True, **numbers)


@pytest.mark.parametrize(
    ("value", "passed", "soft"),
    [(1.0, True, 1.0), (0.5, False, 0.5), (0.0, False, 0.0), (-1.0, False, 0.0), (2, True, 1)],
)
def test_score_of_a_value(value: float, passed: bool, soft: float):
    assert Score.of(value) == Score(value, passed, soft)


class Ratio(float):
    """A number of some library."""


class Words(str):
    """Its texts."""


@pytest.mark.parametrize("value", [True, 1, Ratio(1.0), Fraction(1), Decimal(1)])
def test_a_score_is_made_of_plain_values_whatever_a_verifier_has_at_hand(value: Any):
    score = Score.of(value, Words("fine"), parts={Words("style"): value})
    assert score == Score(1.0, True, 1.0, "fine", {"style": 1.0})
    assert msgspec.json.decode(to_json(score), type=Score) == score
    assert Score(value, 1, value) == Score(1.0, True, 1.0)  # type: ignore


def test_a_rollout_has_a_score_or_a_failure():
    failure = Failure("sandbox", "slot is gone")
    with pytest.raises(ValueError, match="exclude"):
        rollout(score=Score.of(1), failure=failure, stop=StopReason.FAILED)
    with pytest.raises(ValueError, match="stop is finished"):
        rollout(failure=failure)
    with pytest.raises(ValueError, match="stop is failed"):
        rollout(stop=StopReason.FAILED)
    assert rollout(failure=failure, stop=StopReason.FAILED).score is None


def test_what_a_rollout_derives_from_its_turns():
    call = Call("c1", "add", '{"a": "x"}')
    first = Turn(
        Completion(Message("assistant", "let me see", calls=(call,)), usage=Usage(10, 5)),
        (ToolResult(call, "no", error="bad type"),),
    )
    last = Turn(Completion(Message("assistant", "", reasoning=Reasoning("hm", "think")), usage=Usage(20, 1)))
    whole = rollout(opening=(Message("user", "do it"),), turns=(first, last))
    assert [m.role for m in whole.messages] == ["user", "assistant", "tool", "assistant"]
    assert whole.messages[2].call_id == "c1"
    assert whole.answer == "let me see", "an empty last message does not hide what was said before"
    assert whole.usage == Usage(30, 6)
    (error,) = whole.tool_errors
    assert (error.turn, error.tool, error.arguments, error.error, error.result) == (
        1, "add", '{"a": "x"}', "bad type", "no",
    )  # fmt: skip


def test_a_rollout_round_trips_through_json():
    call = Call("c1", "add", "{}")
    turn = Turn(
        Completion(
            Message("assistant", "é\x00</script>", (call,), reasoning=Reasoning("r", "reasoning_details", [{"x": 1}])),
            tokens=Tokens((1,), (True,), (-0.5,)),
        ),
        (ToolResult(call, "3", seconds=0.1, spilled="/tmp/x"),),
        StopReason.MAX_TURNS,
    )
    whole = rollout(turns=(turn,), stop=StopReason.MAX_TURNS, score=Score.of(0.5, "half", parts={"a": 1.0}))
    assert msgspec.json.decode(to_json(whole), type=Rollout) == whole


def test_nouns_are_frozen():
    with pytest.raises(AttributeError):
        TASK.prompt = "other"  # pyright: ignore


def test_a_group_says_that_it_is_partial():
    good = rollout(score=Score.of(1))
    broken = rollout(failure=Failure("model", "down"), stop=StopReason.FAILED)
    assert not Group(task=TASK, rollouts=(good, good), size=2).partial
    assert Group(task=TASK, rollouts=(good, broken), size=2).partial
    assert Group(task=TASK, rollouts=(good, broken), size=2).scored == (good,)


@pytest.mark.parametrize(
    ("stop", "last", "found"),
    [
        (StopReason.TIMEOUT, None, StopReason.TIMEOUT),
        (StopReason.FORGED, StopReason.SUBMITTED, StopReason.SUBMITTED),
        (StopReason.BROKEN, None, StopReason.FINISHED),
    ],
)
def test_why_the_agent_stopped_is_known_whatever_its_judge_found(
    stop: StopReason, last: StopReason | None, found: StopReason
):
    turn = Turn(Completion(Message("assistant", "x")), stop=last)
    assert rollout(turns=(turn,), stop=stop).agent_stop is found
