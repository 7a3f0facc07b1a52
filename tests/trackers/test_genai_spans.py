"""Spans of a rollout, by the conventions for generative AI."""

import json

import msgspec
from tests.build import make_rollout, make_task, make_turn

from ludus.trackers.genai_spans import SpanOptions, plan_spans
from ludus.types import (
    Call,
    Completion,
    Failure,
    Message,
    Rollout,
    RolloutTimes,
    Score,
    StopReason,
    ToolResult,
    Turn,
    Usage,
)

SECRET = "sk-1234567890"


def make_traced(**more: object) -> Rollout:
    """A rollout of two turns with a tool call."""
    call = Call("c1", "terminal", '{"command": "ls"}')
    ask = Message("assistant", "I look.", calls=(call,))
    turns = (
        Turn(Completion(ask, usage=Usage(10, 5)), (ToolResult(call, f"key {SECRET}", seconds=1.0),), seconds=3.0),
        Turn(Completion(Message("assistant", "done"), usage=Usage(20, 2, 8)), stop=StopReason.FINISHED, seconds=2.0),
    )
    rollout = make_rollout(Score(1.0, True, 1.0), task=make_task("t1", "do it"))
    opening = (Message("system", "be good"), Message("user", "do it"))
    times = RolloutTimes(1000.0, {"slot": 1.0, "setup": 1.0, "model": 4.0, "tool": 1.0, "verify": 2.0})
    return msgspec.structs.replace(rollout, turns=turns, opening=opening, times=times, **more)


def test_a_rollout_is_an_agent_its_replies_and_its_tools():
    root, *spans = plan_spans("key", make_traced(), 0.0, SpanOptions(provider="openai"))
    assert (root.name, root.start, root.end) == ("invoke_agent ludus", 1000.0, 1009.0)
    assert [(s.name.split()[0], s.client, s.start, s.end) for s in spans] == [
        ("chat", True, 1002.0, 1004.0),
        ("execute_tool", False, 1004.0, 1005.0),
        ("chat", True, 1005.0, 1007.0),
    ]
    assert root.attributes["gen_ai.operation.name"] == "invoke_agent" and root.attributes["ludus.passed"] is True
    assert root.attributes["gen_ai.usage.input_tokens"] == 30 and root.attributes["gen_ai.conversation.id"] == "key"
    assert spans[2].attributes["gen_ai.usage.cache_read.input_tokens"] == 8
    assert spans[1].attributes["gen_ai.tool.name"] == "terminal"


def test_content_is_left_out_unless_asked_for_and_secrets_are_masked():
    plain = list(plan_spans("key", make_traced(), 0.0, SpanOptions()))
    assert not any("do it" in repr(span) or SECRET in repr(span) or "I look" in repr(span) for span in plain)
    options = SpanOptions(content=True, mask=lambda text: text.replace(SECRET, "[redacted]"))
    root, first, tool, second = plan_spans("key", make_traced(), 0.0, options)
    assert json.loads(str(first.attributes["gen_ai.system_instructions"])) == [{"type": "text", "content": "be good"}]
    assert json.loads(str(root.attributes["gen_ai.input.messages"]))[0]["parts"][0]["content"] == "do it"
    (said,) = json.loads(str(first.attributes["gen_ai.output.messages"]))
    assert [part["type"] for part in said["parts"]] == ["text", "tool_call"]
    assert tool.attributes["gen_ai.tool.call.result"] == "key [redacted]"
    (heard,) = json.loads(str(second.attributes["gen_ai.input.messages"]))
    assert heard["parts"][0] == {"type": "tool_call_response", "id": "c1", "response": "key [redacted]"}


def test_long_content_is_cut_and_says_so():
    call = Call("c", "cat", "{}")
    turn = Turn(Completion(Message("assistant", "", calls=(call,))), (ToolResult(call, "x" * 5000),))
    rollout = msgspec.structs.replace(make_traced(), turns=(turn,))
    *_, tool = plan_spans("key", rollout, 0.0, SpanOptions(content=True, longest=100))
    assert tool.attributes["gen_ai.tool.call.result"] == "x" * 100 + "… (4900 characters more)"


def test_failures_are_errors_of_their_spans():
    failed = make_traced(score=None, failure=Failure("sandbox", f"lost {SECRET}"), stop=StopReason.FAILED)
    root, *_ = plan_spans("key", failed, 0.0, SpanOptions(mask=lambda text: text.replace(SECRET, "***")))
    assert root.error == "lost ***" and root.attributes["error.type"] == "sandbox"
    call = Call("c", "cat", "{}")
    turn = Turn(Completion(Message("assistant")), (ToolResult(call, "no", error="no such file /home/ada"),))
    *_, tool = plan_spans("key", msgspec.structs.replace(make_traced(), turns=(turn,)), 0.0, SpanOptions())
    assert tool.error == "tool error" and tool.attributes["error.type"] == "tool_error"


def test_a_rollout_without_times_ends_now():
    rollout = msgspec.structs.replace(make_traced(), times=None, turns=(make_turn(),), seconds=4.0)
    root, *_ = plan_spans("key", rollout, 100.0, SpanOptions())
    assert (root.start, root.end) == (96.0, 100.0)
