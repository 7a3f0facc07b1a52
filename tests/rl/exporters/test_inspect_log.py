"""Logs of Inspect. `test_viewers_live` reads them with the package itself."""

import json

import pytest
from tests.export_kit import SOURCE, make_seen, make_sum

from ludus.encoding import to_json
from ludus.rl.exporters.inspect_log import (
    LogFacts,
    LogTally,
    SampleName,
    make_header,
    make_sample,
    make_summary,
)
from ludus.types import ToolSpec

FACTS = LogFacts(
    name="first", env="scenes", model="m", limits={"turns": 3}, started=1_700_000_000.0, ended=1_700_000_009.0
)
ODD = {
    "type": "object",
    "properties": {"at": {"type": ["string", "null"], "const": 1}, "any": True, "list": {"items": [{}], "enum": "x"}},
    "required": ["at"],
    "$defs": {},
}
LOOK = ToolSpec("look", "Look at it.", ODD)


def sample(place: int):
    rollout = make_seen()[place]
    name = SampleName(rollout.task.id, place + 1, f"key{place}")
    made = make_sample(rollout, name, [LOOK], SOURCE, FACTS)
    return rollout, name, json.loads(to_json(made))


def test_a_rollout_is_a_sample_with_its_conversation_and_its_score():
    _, name, made = sample(0)
    assert name.member == "samples/scenes/one_epoch_1.json"
    roles = [message["role"] for message in made["messages"]]
    assert roles == [
        *("system", "user", "assistant", "tool", "user"),
        *("assistant", "tool", "tool", "assistant", "user", "assistant", "tool"),
    ]
    assert made["input"] == made["messages"][:5]
    reply, seen, refused = made["messages"][5:8]
    assert reply["content"] == [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "I look."}]
    assert reply["tool_calls"][1]["parse_error"] == "not a JSON object: not json"
    assert [part["type"] for part in seen["content"]] == ["text", "image"]
    assert refused["error"] == {"type": "parsing", "message": "The arguments are not valid JSON."}
    assert made["scores"]["score"]["value"] == 0.5 and made["scores"]["passed"] == {"value": "I"}
    assert made["limit"] == {"type": "turn", "limit": 3.0}
    assert made["model_usage"]["m"]["input_tokens"] == 40 and made["model_usage"]["m"]["input_tokens_cache_read"] == 60
    assert "secret" not in json.dumps(made)


def test_events_tell_what_happened_and_their_input_is_a_range_of_the_messages():
    _, _, made = sample(0)
    events = made["events"]
    kinds = [event["event"] for event in events]
    assert kinds == ["model", "tool", "tool", "model", "model", "tool", "score", "score"]
    assert [event["input_refs"] for event in events if event["event"] == "model"] == [[[0, 5]], [[0, 8]], [[0, 10]]]
    assert made["events_data"]["messages"] == made["messages"]
    assert events[0]["output"]["choices"][0]["message"]["id"] == "m6"
    assert events[1]["timestamp"] == "2023-11-14T22:13:21.500000+00:00", "after 2 s, less half a second for the tool"
    parameters = events[0]["tools"][0]["parameters"]
    assert parameters["properties"] == {"at": {"type": ["string", "null"]}, "any": {}, "list": {}}


def test_a_failure_is_an_error_and_no_score():
    rollout, name, made = sample(2)
    assert made["error"]["message"] == "sandbox: the slot is gone" and made["error"]["traceback"] == "and more"
    assert "scores" not in made and made["messages"] == [] and made["input"] == "Look here."
    summary = make_summary(rollout, name, made)
    assert summary["error"] == "sandbox: the slot is gone" and "scores" not in summary


def test_a_summary_is_small():
    rollout, name, made = sample(0)
    summary = make_summary(rollout, name, made)
    assert summary["scores"] == made["scores"] and summary["limit"] == "turn" and summary["message_count"] == 12
    assert all(isinstance(value, str | int | float) for value in summary["metadata"].values())


def test_the_numbers_of_a_log_are_over_tasks():
    tally = LogTally()
    for place, (task, score) in enumerate([("a", 1.0), ("a", 0.0), ("b", 1.0), ("b", None)]):
        tally.add(make_sum(score, place), SampleName(task, place % 2 + 1))
    header = make_header(FACTS, tally)
    results = header["results"]
    assert (results["total_samples"], results["completed_samples"]) == (4, 3)
    score, passed = results["scores"]
    assert (score["scored_samples"], score["unscored_samples"]) == (3, 1)
    assert score["metrics"]["mean"]["value"] == 0.75 == passed["metrics"]["accuracy"]["value"]
    assert score["metrics"]["stderr"]["value"] == pytest.approx(0.25)
    spec = header["eval"]
    assert (spec["dataset"]["sample_ids"], spec["config"], spec["model"]) == (["a", "b"], {"epochs": 2}, "m")


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("finished", "success"),
        ("running", "started"),
        ("drained", "cancelled"),
        ("failed", "error"),
        ("killed", "error"),
    ],
)
def test_the_state_of_a_run_is_the_status_of_its_log(state: str, status: str):
    facts = LogFacts(name="r", env="e", state=state, message="why")
    header = make_header(facts, LogTally())
    assert header["status"] == status and ("error" in header) == (status == "error")
    assert header["results"]["scores"] == []
