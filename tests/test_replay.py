"""Recorded replies, played again: by the loop, by a command-line agent, and up to a turn."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from tests.build import make_rollout, make_turn

from ludus.env import Env, FollowUp
from ludus.errors import ConfigError, ModelError
from ludus.models.scripted import ScriptedModel, call, join_calls, say
from ludus.policy import Agent, Limits, Policy, Together
from ludus.replay import RecordedModel, find_differences, find_turn_differences, make_diff, restore_policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.skill import Skill
from ludus.tools import tool
from ludus.types import (
    Call,
    Message,
    Provenance,
    Replayed,
    Rollout,
    Sampling,
    Score,
    StopReason,
    Task,
    ToolResult,
    Turn,
)

TASK = Task(id="count", prompt="Count.", answer="3")
ORIGIN = Replayed("/runs/first", "k" * 32, 3)


class Counting(Env, frozen=True):
    """Its tool counts from `start`; its user says two things."""

    name: ClassVar[str] = "counting"
    sandbox: ClassVar[SandboxSpec | None] = None
    system: ClassVar[str] = "You count."
    start: int = 1

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Any]:
        numbers = itertools.count(self.start)

        @tool
        async def count(label: str) -> str:
            """Count one further.

            Args:
                label: what to call it
            """
            return f"{label}: {next(numbers)}"

        return (count,)

    async def follow_up(self, task: Task, turns: Sequence[Turn], box: Sandbox | None) -> FollowUp | None:
        spoken = sum(len(turn.notices) for turn in turns)
        return FollowUp(f"And then? ({self.start})") if spoken < 1 else None

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(rollout.answer == f"It is {self.start + 1}."))


REPLIES = [join_calls(call("count", label="a"), call("count", label="b")), say("Wait."), say("It is 2.")]
POLICY = Policy(ScriptedModel(REPLIES, "teacher"), limits=Limits(turns=5))


async def record(env: Env = Counting(), policy: Policy = POLICY) -> Rollout:
    rollout = await run(Job(TASK, policy, seed=7), Runner(env))
    assert rollout.failure is None, rollout.failure
    return rollout


async def play(
    recorded: Rollout, env: Env, policy: Policy = POLICY, *, turns: int = 3, goes_on: bool = False
) -> Rollout:
    origin = replace_origin(turns)
    played = restore_policy(policy, env, origin, recorded, goes_on=goes_on)
    return await run(Job(TASK, played, seed=7), Runner(env))


def replace_origin(turns: int) -> Replayed:
    return Replayed(ORIGIN.run, ORIGIN.outcome, turns)


# ---- playing ------------------------------------------------------------------------------------------------------


async def test_parallel_calls_follow_ups_and_the_score_are_as_recorded():
    recorded = await record()
    now = await play(recorded, Counting())
    assert find_differences(recorded, now) == []
    assert (now.stop, now.score) == (recorded.stop, recorded.score)
    assert now.provenance.replayed == ORIGIN
    assert now.provenance.policy != recorded.provenance.policy, "it is no rollout of the policy alone"


async def test_what_a_tool_a_user_and_a_verifier_say_now_is_compared():
    recorded = await record()
    found = find_differences(recorded, await play(recorded, Counting(start=4)))
    assert [(each.turn, each.part, each.tool) for each in found] == [
        (1, "result", "count"),
        (1, "result", "count"),
        (2, "user", ""),
        (3, "score", ""),
    ]
    assert (found[1].recorded, found[1].now, found[1].diff) == ("b: 2", "b: 5", "-b: 2\n+b: 5")
    ignore = [re.compile(r"\d")]
    assert [each.part for each in find_differences(recorded, await play(recorded, Counting(start=4)), ignore)] == [
        "score"
    ]


async def test_a_rollout_that_is_not_judged_is_compared_without_its_score():
    recorded = await record()
    played = restore_policy(POLICY, Counting(), ORIGIN, recorded)
    now = await run(Job(TASK, played, together=Together(1)), Runner(Counting(start=1)))
    assert now.score is None
    assert find_differences(recorded, now, judged=False) == []


@pytest.mark.parametrize("stop", [StopReason.TIMEOUT, StopReason.CONTEXT])
async def test_a_record_that_the_world_ended_ends_where_it_does(stop: StopReason):
    recorded = await record()
    cut = make_rollout(1.0, *recorded.turns[:1], stop=stop, opening=recorded.opening, provenance=recorded.provenance)
    now = await play(cut, Counting(), turns=1)
    assert (now.failure, now.stop, len(now.turns)) == (None, stop, 1)


async def test_a_record_that_is_too_short_says_so():
    model = RecordedModel([], "teacher")
    with pytest.raises(ModelError, match="the record has 0 replies, and another was asked for"):
        await model.complete([Message("user", "?")], (), Sampling())
    assert model.ran_out


async def test_another_model_goes_on_after_a_turn_and_limits_count_from_the_start():
    recorded = await record()
    asked: list[list[Message]] = []

    def go_on(messages: Sequence[Message], *_: object) -> Message:
        asked.append(list(messages))
        return call("count", label="more")

    policy = replace(POLICY, model=ScriptedModel(go_on, "other"))
    now = await play(recorded, Counting(start=4), policy, turns=2, goes_on=True)
    assert [len(messages) for messages in asked] == [7, 9, 11]
    assert [message.role for message in asked[0]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert asked[0][4].content == "b: 5", "the model sees what the tools say now"
    assert (len(now.turns), now.stop, now.provenance.model) == (5, StopReason.MAX_TURNS, "other")
    assert now.opening == recorded.opening
    assert [each.turn for each in find_turn_differences(recorded.turns[:2], now.turns)] == [1, 1, 2]


# ---- the policy ---------------------------------------------------------------------------------------------------


async def test_the_skill_and_the_toolsets_are_those_of_the_record():
    skill = Skill("Count aloud.")
    recorded = await record(policy=replace(POLICY, skill=skill))
    restored = restore_policy(POLICY, Counting(), ORIGIN, recorded)
    assert restored.skill == skill, "it is in the system text"
    assert restored.toolsets == recorded.provenance.toolsets
    as_file = replace(POLICY, skill_as="file")
    lost = make_rollout(1.0, "x", provenance=recorded.provenance, opening=recorded.opening[1:])
    with pytest.raises(ConfigError, match=f"had the skill {skill.hash}, which the settings do not have"):
        restore_policy(as_file, Counting(), ORIGIN, lost)
    assert restore_policy(replace(as_file, skill=skill), Counting(), ORIGIN, lost).skill == skill


def test_an_agent_with_a_model_of_its_own_is_refused():
    class Closed(Agent):
        @property
        def name(self) -> str:
            return "closed"

        @property
        def brings_model(self) -> bool:
            return True

    with pytest.raises(ConfigError, match="closed brings a model of its own"):
        restore_policy(replace(POLICY, agent=Closed()), Counting(), ORIGIN, make_rollout(1.0, "x"))


# ---- differences --------------------------------------------------------------------------------------------------


def with_result(content: str, **fields: Any) -> Rollout:
    result = ToolResult(Call("c1", "terminal", "{}"), content, **fields)
    origin = Provenance(policy="p", model="m")
    return make_rollout(1.0, make_turn("", result), make_turn("done", stop=StopReason.FINISHED), provenance=origin)


def test_results_without_a_partner_and_pictures_are_differences():
    one = with_result("same", images=("data:image/png;base64,AAAA",))
    other = with_result("same", images=("data:image/png;base64,BBBB",))
    (found,) = find_differences(one, other)
    assert "[picture " in found.diff and "base64" not in found.diff
    bare = make_rollout(1.0, make_turn(""), make_turn("done", stop=StopReason.FINISHED))
    assert [each.now for each in find_differences(one, bare)] == ["(no result)"]
    short = make_rollout(1.0, make_turn("", *one.turns[0].results))
    assert [(each.turn, each.part) for each in find_differences(one, short)] == [(2, "turns")]


@pytest.mark.parametrize(
    ("old", "new", "diff"),
    [
        ("a\nb\nc", "a\nx\nc", "-b\n+x"),
        ('{"output": "a\\nb"}', '{"output": "a\\nx"}', '-b"}\n+x"}'),
        ("a", "a\nb", "+b"),
        ("x" * 500 + "1" + "y" * 500, "x" * 500 + "2" + "y" * 500, None),
        ("\n".join(map(str, range(90))), "", None),
    ],
)
def test_a_diff_is_short_and_shows_the_place(old: str, new: str, diff: str | None):
    made = make_diff(old, new)
    if diff is not None:
        assert made == diff
        return
    assert len(made) < 500
    assert (made.startswith("-…") and "1y" in made and "2y" in made) or made.endswith("more lines)")
