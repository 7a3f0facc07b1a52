import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.agent import ToolHandler, take_turns
from ludus.errors import BudgetExhausted, ModelError, SandboxError, ToolBroken
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Limits, NextMessage, Policy
from ludus.result_budget import Spill
from ludus.tools import Tool, tool
from ludus.types import Call, Completion, Finish, JsonObject, Message, Reasoning, Sampling, StopReason, Turn, Usage

USER = (Message("user", "go"),)


@tool(parallel=True)
async def add(a: int, b: int) -> str:
    """Add two whole numbers."""
    return str(a + b)


@tool(ends_episode=True)
async def submit(answer: str) -> str:
    """Hand in the answer."""
    return f"submitted {answer}"


async def run(
    script: Any,
    tools: Sequence[Tool] = (add,),
    limits: Limits = Limits(),
    *,
    opening: Sequence[Message] = USER,
    handler: ToolHandler | None = None,
    spill: Spill | None = None,
    sampling: Sampling = Sampling(),
    seed: int | None = None,
) -> list[Turn]:
    policy = Policy(ScriptedModel(script), limits=limits, sampling=sampling)

    return [t async for t in take_turns(policy, opening, tools, handler=handler, spill=spill, seed=seed)]


def raw_call(name: str, arguments: str) -> Message:
    return Message("assistant", calls=(Call("c1", name, arguments),))


# ---- the story ----------------------------------------------------------------------------------------------------


async def test_a_call_is_run_and_its_result_goes_back_to_the_model():
    seen: list[Sequence[Message]] = []

    def script(messages: Sequence[Message], tools: object, sampling: object) -> Message:
        seen.append(list(messages))
        return call("add", a=2, b=3) if len(messages) == 1 else say("It is 5.")

    first, last = await run(script)
    assert first.stop is None
    assert (first.results[0].content, first.results[0].error) == ("5", "")
    assert (last.stop, last.completion.message.content) == (StopReason.FINISHED, "It is 5.")
    assert [m.role for m in seen[1]] == ["user", "assistant", "tool"]
    assert seen[1][2].call_id == seen[1][1].calls[0].id


async def test_the_opening_is_not_changed():
    opening = list(USER)
    await run([call("add", a=1, b=1), say("done")], opening=opening)
    assert opening == list(USER)


# ---- the model's mistakes go back to the model --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (raw_call("subtract", "{}"), "Unknown tool 'subtract'. Available tools: add."),
        (raw_call("add", '{"a": 1,'), "not valid JSON"),
        (raw_call("add", "null"), "must be a JSON object, not null"),
        (raw_call("add", "[1, 2]"), "must be a JSON object, not list"),
        (raw_call("add", '"text"'), "must be a JSON object, not str"),
        (raw_call("add", '{"a": "one", "b": 2}'), "Expected `int`, got `str` - at `a`"),
        (raw_call("add", '{"a": 1}'), "Missing required field `b`"),
        (raw_call("add", '{"a": 1, "b": 2, "c": 3}'), "unknown field `c`"),
        (raw_call("add", ""), "Missing required field `a`"),
        (raw_call("add", '{"a": 1, "b": [2]}'), "Expected `int`, got `array`"),
        (raw_call("add", '{"a":' + "[" * 1_000 + "]" * 1_000 + "}"), "nested too deeply"),
        (raw_call("add", "[" * 100_000), "nested too deeply"),
        (raw_call("add", '{"a": "\ud800"}'), "half of a surrogate pair"),
        (raw_call("add", '{"a": "\\ud800"}'), "not valid JSON"),
    ],
)
async def test_a_bad_call_is_an_observation_and_a_tool_error(message: Message, says: str):
    first, last = await run([message, say("sorry")])
    (result,) = first.results
    assert says in result.error
    assert says in json.loads(result.content)["error"]
    assert result.call == message.calls[0], "the record keeps the call as the model wrote it"
    assert last.stop is StopReason.FINISHED


async def test_the_model_sees_what_a_tool_raises():
    @tool
    async def fails() -> str:
        raise FileNotFoundError("no such file: x")

    first, _ = await run([call("fails"), say("ok")], [fails])
    assert first.results[0].error == "FileNotFoundError: no such file: x"


async def test_what_a_tool_raises_is_held_to_the_size_budget():
    @tool
    async def fails() -> str:
        raise ValueError("x" * 1_000_000)

    first, _ = await run([call("fails"), say("ok")], [fails])
    assert len(first.results[0].error) + len(first.results[0].content) < 10_000


async def test_a_slow_tool_is_stopped_and_the_rollout_goes_on():
    gone: list[str] = []

    @tool
    async def sleeps() -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            gone.append("cancelled")
        return ""

    first, last = await run([call("sleeps"), say("ok")], [sleeps], Limits(tool_seconds=0.01))
    assert "longer than 0.01 s" in first.results[0].error
    assert gone == ["cancelled"]
    assert last.stop is StopReason.FINISHED


async def test_a_time_out_of_the_tools_own_keeps_its_message():
    @tool
    async def searches() -> str:
        raise TimeoutError("nothing found in 60 s; search a smaller folder")

    first, _ = await run([call("searches"), say("ok")], [searches])
    assert first.results[0].error == "TimeoutError: nothing found in 60 s; search a smaller folder"


async def test_a_tool_that_gives_back_something_else_than_text_is_broken():
    @tool
    async def counts() -> str:
        return 42  # type: ignore

    with pytest.raises(ToolBroken, match="the tool 'counts' returned int, not text") as caught:
        await run([call("counts"), say("ok")], [counts])
    assert not caught.value.retryable


async def test_a_tool_may_have_its_own_time_limit():
    @tool(seconds=0.01)
    async def sleeps() -> str:
        await asyncio.sleep(3600)
        return ""

    first, _ = await run([call("sleeps"), say("ok")], [sleeps], Limits(tool_seconds=3600))
    assert "longer than 0.01 s" in first.results[0].error


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("error", [SandboxError("slot is gone"), BudgetExhausted("the judge's budget is spent")])
async def test_failures_outside_the_agent_and_errors_of_the_user_are_raised(parallel: bool, error: Exception):
    @tool(parallel=parallel)
    async def touch() -> str:
        raise error

    both = Message("assistant", calls=(Call("1", "touch", "{}"), Call("2", "touch", "{}")))
    with pytest.raises(type(error), match=str(error)):
        await run([both, say("never")], [touch])


# ---- several calls in one turn ------------------------------------------------------------------------------------


async def test_neighbours_that_may_run_side_by_side_do_and_others_wait():
    log: list[str] = []
    barrier = asyncio.Event()

    @tool(parallel=True)
    async def look(name: str) -> str:
        log.append(f"start {name}")
        if name == "b":
            barrier.set()
        await barrier.wait()  # "a" can only end if "b" runs beside it
        log.append(f"end {name}")
        return name

    @tool
    async def change() -> str:
        log.append("change")
        return "changed"

    def calls(*names: str) -> tuple[Call, ...]:
        return tuple(
            Call(str(i), "change" if n == "!" else "look", "{}" if n == "!" else json.dumps({"name": n}))
            for i, n in enumerate(names)
        )

    first, _ = await run([Message("assistant", calls=calls("a", "b", "!", "c")), say("ok")], [look, change])
    assert [r.content for r in first.results] == ["a", "b", "changed", "c"], "results keep the order of the calls"
    assert log.index("change") > max(log.index("end a"), log.index("end b"))
    assert log.index("start c") > log.index("change")


# ---- why it stopped -----------------------------------------------------------------------------------------------


async def test_a_model_that_calls_for_ever_is_stopped_by_the_turn_limit():
    got = await run(lambda *_: call("add", a=1, b=1), limits=Limits(turns=5))
    assert [t.stop for t in got] == [None] * 4 + [StopReason.MAX_TURNS]
    assert len(got[-1].results) == 1


async def test_submitting_on_the_last_turn_is_a_submission():
    (only,) = await run([call("submit", answer="x")], [submit], Limits(turns=1))
    assert only.stop is StopReason.SUBMITTED


async def test_a_submission_with_bad_arguments_does_not_end_the_episode():
    first, second = await run([raw_call("submit", "{}"), call("submit", answer="x")], [submit])
    assert (first.stop, second.stop) == (None, StopReason.SUBMITTED)


@pytest.mark.parametrize(
    ("finish", "stop"),
    [
        (Finish.STOP, StopReason.FINISHED),
        (Finish.LENGTH, StopReason.LENGTH),
        (Finish.FILTER, StopReason.FILTERED),
        (Finish.OTHER, StopReason.FINISHED),
    ],
)
async def test_a_cut_answer_is_not_a_natural_finish(finish: Finish, stop: StopReason):
    (only,) = await run([Completion(say("The answer is"), finish)])
    assert only.stop is stop


@pytest.mark.parametrize("content", ["", " \n"])
@pytest.mark.parametrize(
    ("finish", "stop"),
    [(Finish.STOP, StopReason.EMPTY), (Finish.OTHER, StopReason.EMPTY), (Finish.LENGTH, StopReason.LENGTH)],
)
async def test_an_empty_reply_has_a_stop_reason_of_its_own(content: str, finish: Finish, stop: StopReason):
    """The model ended it, or the policy's `max_tokens` did: both are scored."""
    thought = Message("assistant", content, reasoning=Reasoning("so…", "think"))
    (only,) = await run([Completion(thought, finish)])
    assert only.stop is stop


async def test_a_reply_that_the_content_filter_removed_is_an_error_after_its_turn():
    """The server decided, not the policy: no score. What came before it, and the reply itself, is on the record."""
    removed = Completion(Message("assistant", ""), Finish.FILTER, Usage(7, 0))
    turns: list[Turn] = []

    async def collect() -> None:
        async for turn in take_turns(Policy(ScriptedModel([call("add", a=1, b=2), removed])), USER, [add]):
            turns.append(turn)

    with pytest.raises(ModelError, match="content filter removed the whole reply") as caught:
        await collect()
    assert not caught.value.retryable
    assert [turn.stop for turn in turns] == [None, StopReason.FILTERED]


async def test_the_rollout_ends_before_a_prompt_that_does_not_fit():
    full = Completion(call("add", a=1, b=2), usage=Usage(900, 90))
    (only,) = await run([full, say("never asked")], limits=Limits(context_tokens=995))
    assert only.stop is StopReason.CONTEXT
    assert only.results[0].content == "3", "the turn that fills the context is kept whole"


async def test_a_conversation_that_the_server_finds_too_long_ends_and_an_opening_is_an_error():
    fault = ModelError("status 400: maximum context length is 4096 tokens", retryable=False)
    fault.too_long = True

    def full_after(replies: int) -> Callable[..., Message]:
        def script(messages: Sequence[Message], *_: object) -> Message:
            if len(messages) > 2 * replies:
                raise fault
            return call("add", a=1, b=1)

        return script

    got = await run(full_after(2))
    assert [turn.stop for turn in got] == [None, None]
    with pytest.raises(ModelError, match="maximum context length"):
        await run(full_after(0))


async def test_where_a_server_counts_nothing_the_context_is_estimated():
    @tool
    async def tells() -> str:
        return "x" * 400

    def script(*_: object) -> Completion:
        return Completion(call("tells"))

    got = await run(script, [tells], Limits(context_tokens=500))
    assert got[-1].stop is StopReason.CONTEXT
    assert 2 <= len(got) <= 5


async def test_an_opening_that_does_not_fit_gives_no_turn():
    assert (
        await run([say("never asked")], limits=Limits(context_tokens=100), opening=[Message("user", "x" * 1000)]) == []
    )


# ---- the size budget ----------------------------------------------------------------------------------------------


def big(size: int) -> Tool:
    @tool
    async def flood() -> str:
        return "line\n" * (size // 5)

    return flood


async def test_a_long_result_is_spilled_and_previewed():
    kept: dict[str, bytes] = {}

    async def spill(name: str, data: bytes) -> str:
        kept[name] = data
        return f"/tmp/{name}"

    limits = Limits(result_chars=1000, preview_chars=100)
    first, _ = await run([call("flood"), say("ok")], [big(50_000_000)], limits, spill=spill)
    (result,) = first.results
    assert result.spilled == "/tmp/turn1-1.txt"
    assert len(kept["turn1-1.txt"]) == 50_000_000
    assert len(result.content) < 300
    assert "of 50000000 characters are not shown" in result.content
    assert result.content.startswith("line\n")
    assert result.content.endswith("line\n"), "the end of a long result is shown: errors tend to come last"
    assert "/tmp/turn1-1.txt" in result.content
    assert result.error == ""


async def test_without_a_slot_or_with_a_full_disk_the_rest_is_dropped_and_said():
    async def full(name: str, data: bytes) -> str:
        return ""

    for spill in (None, full):
        first, _ = await run([call("flood"), say("ok")], [big(5000)], Limits(result_chars=100), spill=spill)
        assert "they were dropped" in first.results[0].content
        assert first.results[0].spilled == ""


async def test_results_of_one_turn_share_a_budget_and_the_largest_go_first():
    @tool
    async def text(size: int) -> str:
        return "x" * size

    sizes = (400, 900, 500)
    calls = tuple(Call(str(i), "text", json.dumps({"size": s})) for i, s in enumerate(sizes))
    limits = Limits(result_chars=1000, turn_chars=1000, preview_chars=10)
    first, _ = await run([Message("assistant", calls=calls), say("ok")], [text], limits)
    assert [len(r.content) == s for r, s in zip(first.results, sizes, strict=True)] == [True, False, True]


# ---- seams --------------------------------------------------------------------------------------------------------


async def test_a_handler_replaces_dispatch():
    async def handler(request: Call, arguments: JsonObject) -> str:
        return f"handled {request.name} {arguments}"

    first, _ = await run([call("add", a="not", b="checked"), say("ok")], handler=handler)
    assert first.results[0].content == "handled add {'a': 'not', 'b': 'checked'}"


async def test_every_turn_samples_with_a_seed_of_its_own():
    seeds: list[int | None] = []

    def script(messages: Sequence[Message], tools: object, sampling: Sampling) -> Message:
        seeds.append(sampling.seed)
        return call("add", a=1, b=1) if len(seeds) < 4 else say("ok")

    await run(script, seed=7)
    first = list(seeds)
    seeds.clear()
    await run(script, seed=7)
    assert seeds == first
    assert len(set(first)) == 4
    seeds.clear()
    await run(script, seed=7, sampling=Sampling(seed=5))
    assert [seed is not None and seed - 5 for seed in seeds] == first


async def test_turns_before_a_failure_are_with_the_caller():
    def script(messages: Sequence[Message], *_: object) -> Message:
        if len(messages) > 1:
            raise SandboxError("died midway")
        return call("add", a=1, b=1)

    got: list[Turn] = []

    with pytest.raises(SandboxError):
        async for turn in take_turns(Policy(ScriptedModel(script)), USER, [add]):
            got.append(turn)
    assert len(got) == 1


async def test_the_reply_whose_call_broke_the_slot_is_with_the_caller():
    @tool
    async def breaks() -> str:
        raise SandboxError("the slot ended")

    got: list[Turn] = []

    async def collect() -> None:
        async for turn in take_turns(Policy(ScriptedModel([call("breaks")])), USER, [breaks]):
            got.append(turn)

    with pytest.raises(SandboxError):
        await collect()
    assert [(len(turn.completion.message.calls), turn.results) for turn in got] == [(1, ())]


@given(st.text(max_size=60))
async def test_no_arguments_text_can_break_the_loop(arguments: str):
    first, last = await run([raw_call("add", arguments), say("ok")])
    assert first.results[0].error
    assert last.stop is StopReason.FINISHED


# ---- a user who goes on -------------------------------------------------------------------------------------------


async def converse(script: Any, next_message: NextMessage, limits: Limits = Limits()) -> list[Turn]:
    policy = Policy(ScriptedModel(script), limits=limits)
    return [turn async for turn in take_turns(policy, USER, (add,), next_message=next_message)]


async def test_a_user_goes_on_after_a_reply_and_brings_other_tools():
    heard: list[int] = []
    prompts: list[tuple[list[str], list[str]]] = []

    async def ask(turns: Sequence[Turn]) -> tuple[Message, Sequence[Tool]] | None:
        heard.append(len(turns))
        return (Message("user", "And now?"), (submit,)) if len(heard) == 1 else None

    def act(messages: Sequence[Message], tools: Any, sampling: Any) -> Message:
        prompts.append(([message.content for message in messages], [spec.name for spec in tools]))
        return [call("add", a=1, b=2), say("3"), say("still 3")][len(prompts) - 1]

    turns = await converse(act, ask)
    assert heard == [2, 3]  # it is asked after replies without a call only
    assert [turn.stop for turn in turns] == [None, None, StopReason.FINISHED]
    assert [message.content for message in turns[1].messages] == ["3", "And now?"]
    assert prompts[2] == (["go", "", "3", "3", "And now?"], ["submit"])


async def test_an_empty_reply_leaves_the_word_to_the_user_and_a_cut_one_ends_the_rollout():
    async def ask(turns: Sequence[Turn]) -> tuple[Message, Sequence[Tool]] | None:
        return Message("user", "Go on."), ()

    cut = Completion(Message("assistant", "I was"), Finish.LENGTH)
    assert [turn.stop for turn in await converse([say(""), cut], ask)] == [None, StopReason.LENGTH]


async def test_a_user_who_never_ends_meets_the_limits():
    async def ask(turns: Sequence[Turn]) -> tuple[Message, Sequence[Tool]] | None:
        return Message("user", "word " * 50), ()

    turns = await converse(["a", "b", "c"], ask, Limits(turns=2))
    assert [turn.stop for turn in turns] == [None, StopReason.MAX_TURNS]
    assert turns[-1].notices  # what was said stays on the record
    assert [turn.stop for turn in await converse(["a", "b", "c"], ask, Limits(context_tokens=60))] == [
        StopReason.CONTEXT
    ]
