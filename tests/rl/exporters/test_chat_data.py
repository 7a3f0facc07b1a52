"""Conversations for fine-tuning and preferences."""

import json

import msgspec
import pytest
from tests.build import make_group
from tests.export_kit import SOURCE, make_sum, make_sums

from ludus.rl.exporters.chat_data import export_openai, export_preference, export_sharegpt
from ludus.rl.exporters.selection import ExportRules, RolloutSelection
from ludus.types import Message, ToolSpec

ADD = ToolSpec("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})


@pytest.mark.parametrize("tokens", [True, False])
def test_openai_has_only_what_passed(tokens):
    (rollout,) = RolloutSelection(ExportRules()).choose(make_sums(tokens=tokens))
    row = export_openai(rollout, [ADD], SOURCE)
    assert row["tools"] == [{"type": "function", "function": msgspec.structs.asdict(ADD)}]
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    call = row["messages"][2]["tool_calls"][0]
    assert call["function"] == {"name": "add", "arguments": '{"a": 2, "b": 2}'}
    assert row["messages"][3]["tool_call_id"] == call["id"]
    assert (row["score"], row["task"], row["split"], row["replicate"]) == (1.0, "sum-1", "train", 0)


def test_sharegpt_has_thinking_calls_and_answers_in_tags():
    row = export_sharegpt(make_sum(1.0, 0), [ADD], SOURCE)
    assert json.loads(row["tools"])[0]["function"]["name"] == "add"
    assert [turn["from"] for turn in row["conversations"]] == ["system", "human", "gpt", "tool", "gpt"]
    reply, answer = row["conversations"][2]["value"], row["conversations"][3]["value"]
    assert reply.startswith("<think>\nHm.\n</think>\n<tool_call>\n")
    made = json.loads(reply.partition("<tool_call>\n")[2].removesuffix("\n</tool_call>"))
    assert made == {"name": "add", "arguments": {"a": 2, "b": 2}}
    told = json.loads(answer.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))
    assert told == {"tool_call_id": "c1", "name": "add", "content": "4"}


def test_a_pair_is_the_best_and_the_worst():
    group = make_group(*(make_sum(score, n) for n, score in enumerate((0.5, 1.0, 0.0, None))))
    row = export_preference(group, [ADD], SOURCE)
    assert isinstance(row, dict) and row["tools"][0]["function"]["name"] == "add"
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert (row["chosen_score"], row["rejected_score"]) == (1.0, 0.0)
    assert row["chosen"][-1]["content"] == "It is 4." and row["rejected"][-1]["content"] == "It is 5."
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == {"a": 2, "b": 2}


def test_no_pair_without_a_difference_or_a_common_beginning():
    assert "all equal" in export_preference(make_group(make_sum(1.0, 0), make_sum(1.0, 1)), (), SOURCE)
    assert "fewer than two scores" in export_preference(make_group(make_sum(None, 0)), (), SOURCE)
    other = msgspec.structs.replace(make_sum(0.0, 1), opening=(Message("user", "other words"),))
    assert "different words" in export_preference(make_group(make_sum(1.0, 0), other), (), SOURCE)


def test_arguments_that_are_no_object_stay_as_the_model_wrote_them():
    rollout = make_sum(1.0, 0)
    message = rollout.turns[0].completion.message
    broken = msgspec.structs.replace(message.calls[0], arguments="{not json")
    completion = msgspec.structs.replace(
        rollout.turns[0].completion, message=msgspec.structs.replace(message, calls=(broken,))
    )
    turns = (msgspec.structs.replace(rollout.turns[0], completion=completion), rollout.turns[1])
    group = make_group(msgspec.structs.replace(rollout, turns=turns), make_sum(0.0, 1))
    row = export_preference(group, [ADD], SOURCE)
    assert isinstance(row, dict) and row["tools"][0]["function"]["name"] == "add"
    assert row["chosen"][0]["tool_calls"][0]["function"]["arguments"] == "{not json"
