"""Trajectories in ATIF. `test_viewers_live` gives them to Harbor's own validator."""

import json

from tests.export_kit import PICTURE, SOURCE, make_seen, make_sum

from ludus.encoding import to_json
from ludus.rl.exporters.atif import export_atif, name_calls
from ludus.types import Call, Completion, Message, ToolSpec, Turn

LOOK = ToolSpec("look", "Look at it.", {"type": "object", "properties": {"at": {"type": "string"}}})


def export(rollout, id: str = "one"):
    return json.loads(to_json(export_atif(rollout, [LOOK], SOURCE, id, lambda name: f"/run/{name}")))


def test_messages_and_turns_are_steps_with_calls_results_and_usage():
    found = export(make_seen()[0])
    assert [step["step_id"] for step in found["steps"]] == list(range(1, 10))
    assert [step["source"] for step in found["steps"]] == [
        *("system", "user", "agent", "system", "user"),
        *("agent", "agent", "user", "agent"),
    ]
    turn = found["steps"][5]
    assert (turn["message"], turn["reasoning_content"], turn["model_name"]) == ("I look.", "Hm.", "m-2026")
    first, second = turn["tool_calls"]
    assert (first["tool_call_id"], first["arguments"]) == ("c1", {"at": "a"})
    assert second == {
        "tool_call_id": "call_1_2",
        "function_name": "look",
        "arguments": {},
        "extra": {"raw_arguments": "not json"},
    }, "an id is not given twice, and no argument is made up"
    results = turn["observation"]["results"]
    assert [each["source_call_id"] for each in results] == ["c1", "call_1_2"]
    assert results[1]["extra"]["error"] == "The arguments are not valid JSON."
    assert turn["metrics"] == {
        "prompt_tokens": 100,
        "completion_tokens": 20,
        "cached_tokens": 60,
        "cost_usd": 0.01,
        "completion_token_ids": [10, 11],
        "logprobs": [-0.5, -0.25],
    }
    assert found["final_metrics"]["total_steps"] == 9 and found["final_metrics"]["total_cost_usd"] == 0.01


def test_pictures_are_paths():
    steps = export(make_seen()[0])["steps"]
    kinds = [part.get("text") or part["source"] for part in steps[4]["message"]]
    assert kinds == [
        "Look",
        {"media_type": "image/png", "path": f"/run/{PICTURE}"},
        " here",
        {"media_type": "image/webp", "path": "https://example.com/x.webp?y=1"},
        ".",
    ]
    assert steps[5]["observation"]["results"][0]["content"][1]["source"]["path"] == f"/run/{PICTURE}"


def test_the_result_and_the_origin_are_extra_and_the_answer_is_not_there():
    scored, played, failed = map(export, make_seen())
    extra = scored["extra"]
    assert (extra["score"], extra["passed"], extra["stop"], extra["split"]) == (0.5, False, "max_turns", "train")
    assert (extra["feedback"], extra["parts"], extra["suspect"]) == ("Half.", {"style": 1.0}, ["it looks odd"])
    assert scored["agent"]["name"] == "tiny" and scored["agent"]["version"] == "1.2"
    assert scored["agent"]["tool_definitions"][0]["function"]["name"] == "look"
    assert [step.get("is_copied_context") for step in played["steps"] if step["source"] == "agent"] == [
        True,
        True,
        None,
    ]
    assert played["extra"]["replayed"]["turns"] == 1
    assert failed["steps"] == [{"step_id": 1, "source": "system", "message": "the slot is gone\nand more"}]
    assert failed["extra"]["failure"]["boundary"] == "sandbox" and "score" not in failed["extra"]
    assert "secret" not in json.dumps([scored, played, failed])


def test_a_rollout_of_chat_mode_has_no_ids():
    metrics = export(make_sum(1.0, 0, tokens=False))["steps"][2]["metrics"]
    assert "completion_token_ids" not in metrics


def test_calls_without_an_id_get_one():
    turn = Turn(Completion(Message("assistant", calls=(Call("", "a", "{}"), Call("", "a", "{}")))))
    assert [id for id, _, _ in name_calls(turn, 4)] == ["call_4_1", "call_4_2"]
