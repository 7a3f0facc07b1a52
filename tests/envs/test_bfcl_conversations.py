"""BFCL's conversations with the data, classes and checkers of bfcl-eval (make test-envs)."""

import importlib.util
from typing import Any

import pytest
from tests.build import make_task, make_turn

from ludus.env_checks import validate
from ludus.envs import bfcl, bfcl_conversations
from ludus.envs.bfcl_conversations import MORE_FUNCTIONS, BfclConversations, split_requests
from ludus.errors import ConfigError
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Limits, Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.types import Call, Completion, Message, Rollout, Task, ToolResult, Turn

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason="bfcl-eval is not installed (make test-envs)"
)


def find_task(id: str) -> Task:
    env = BfclConversations(categories=(id.rpartition("_")[0],))
    return next(task for task in env.tasks("test") if task.id == id)


async def act(id: str, replies: list[Any], **limits: Any) -> Rollout:
    policy = Policy(ScriptedModel(replies), limits=Limits(**limits))
    return await run(Job(find_task(id), policy), Runner(BfclConversations()))


FIRST = [
    call("cd", folder="document"),
    call("mkdir", dir_name="temp"),
    call("mv", source="final_report.pdf", destination="temp"),
    say("Moved."),
]
SECOND = [
    call("cd", folder="temp"),
    call("grep", file_name="final_report.pdf", pattern="budget analysis"),
    say("Found."),
]
THIRD = [call("sort", file_name="final_report.pdf"), say("Sorted.")]
FOURTH = [
    call("cd", folder=".."),
    call("mv", source="previous_report.pdf", destination="temp"),
    call("cd", folder="temp"),
    call("diff", file_name1="final_report.pdf", file_name2="previous_report.pdf"),
    say("Done."),
]


@needs_package
async def test_a_conversation_that_does_every_request_passes():
    rollout = await act("multi_turn_base_0", [*FIRST, *SECOND, *THIRD, *FOURTH])
    assert rollout.score is not None and rollout.score.passed
    assert len([turn for turn in rollout.turns if turn.notices]) == 3
    seen = [result.content for turn in rollout.turns for result in turn.results]
    assert "\"final_report.pdf' moved to 'temp'" in seen[2] or "moved" in seen[2]
    assert "budget analysis" in seen[4]  # the scene has kept what earlier calls changed


@needs_package
@pytest.mark.parametrize(
    ("replies", "soft"),
    [
        ([*FIRST, *SECOND, say("Sorted."), *FOURTH], 0.5),  # the third request was only talked about
        ([*FIRST, *SECOND], 0.5),  # the script ends: the model says nothing more
        ([say("No.")] * 4, 0.0),
        ([FIRST[0], call("mkdir", dir_name="other"), *FIRST[1:], *SECOND], 0.0),  # a folder too many
    ],
)
async def test_partial_credit_is_the_requests_that_were_done(replies: list[Any], soft: float):
    rollout = await act("multi_turn_base_0", [*replies, *[say("I stop.")] * 4])
    assert rollout.score is not None and not rollout.score.passed
    assert (rollout.score.value, rollout.score.soft) == (0.0, soft)


@needs_package
async def test_a_function_that_was_missing_appears_with_the_scene_as_it_is():
    held = find_task("multi_turn_miss_func_0")
    assert held.answer["late"] == {"3": ["sort"]}
    replies = [*FIRST, *SECOND, call("sort", file_name="final_report.pdf"), say("There is no sort."), *THIRD, *FOURTH]
    rollout = await act("multi_turn_miss_func_0", replies)
    assert rollout.score is not None and rollout.score.passed, rollout.score
    missing = next(result for turn in rollout.turns for result in turn.results if result.call.name == "sort")
    assert "Unknown tool 'sort'" in missing.error
    assert MORE_FUNCTIONS in [message.content for turn in rollout.turns for message in turn.notices]
    assert "sort" in rollout.provenance.tools


@needs_package
async def test_hostile_calls_change_nothing_but_their_scene():
    replies = [
        call("__init__"),
        call("_load_scenario", scenario={}),
        call("cd", nonsense=1),
        call("cat", file_name={"a": [1]}),
        call("mkdir", dir_name="__import__('os').system('touch /tmp/broken')"),
        say("Done."),
    ]
    rollout = await act("multi_turn_base_0", [*replies, *[say("I stop.")] * 4])
    assert rollout.failure is None and rollout.score is not None and rollout.score.soft == 0.0
    results = [result for turn in rollout.turns for result in turn.results]
    assert "Unknown tool" in results[0].error and "Unknown tool" in results[1].error
    assert results[2].content.startswith("Error during execution: ")


@needs_package
async def test_a_request_that_takes_too_many_replies_has_failed():
    loop = [call("ls") for _ in range(bfcl_conversations.MOST_STEPS + 1)]
    rollout = await act("multi_turn_base_0", [*FIRST[:-1], *loop, say("Moved."), *SECOND, *THIRD, *FOURTH], turns=100)
    assert rollout.score is not None and not rollout.score.passed
    assert "more than 20 replies" in rollout.score.feedback


@needs_package
async def test_every_task_is_valid():
    env = BfclConversations()
    tasks = list(env.tasks("test"))
    assert len(tasks) == 800
    assert (await validate(Runner(env), "test", tasks)).ok


def test_calls_are_split_by_the_users_requests_and_refused_ones_are_left_out():
    ran, refused = Call("1", "cd", '{"folder": "a"}'), Call("2", "no_such", "{}")
    step = Turn(
        Completion(Message("assistant", calls=(ran, refused))),
        (ToolResult(ran, "ok"), ToolResult(refused, "?", error="Unknown tool")),
    )
    spoken = Turn(Completion(Message("assistant", "Done.")), notices=(Message("user", "Next?"),))
    assert split_requests([step, spoken, make_turn("Bye.")]) == [[[("cd", {"folder": "a"})]], []]


async def test_the_user_has_nothing_more_to_say_after_the_last_request():
    task = make_task(answer={"requests": ["a", "b"], "late": {}})
    spoken = Turn(Completion(Message("assistant", "Done.")), notices=(Message("user", "b"),))
    env = BfclConversations()
    first = await env.follow_up(task, [make_turn("Done.")], None)
    assert first is not None and (first.text, first.tools) == ("b", None)
    assert await env.follow_up(task, [spoken, make_turn("Done.")], None) is None


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    for module in (bfcl, bfcl_conversations):
        monkeypatch.setattr(module, "find_data", lambda: None)
    monkeypatch.setattr(bfcl_conversations, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install mpmath"):
        list(BfclConversations().tasks("test"))
    monkeypatch.setattr(bfcl_conversations, "find_spec", lambda name: object())
    with pytest.raises(ConfigError, match=r"env\.categories: there is no 'multi_turn_bse'"):
        list(BfclConversations(categories=("multi_turn_bse",)).tasks("test"))
