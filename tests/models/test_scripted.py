import asyncio

import pytest

from ludus.errors import ModelError
from ludus.models.scripted import ScriptedModel, call, join_calls, say
from ludus.types import Call, Completion, Finish, Message, Reasoning, Sampling, Usage

USER = Message("user", "hi")


async def ask(model, *messages):
    return await model.complete(messages or [USER], [], Sampling())


async def test_a_list_is_played_by_the_conversation_and_not_by_the_clock():
    model = ScriptedModel(["one", say("two"), Completion(say("three"), Finish.LENGTH)])
    first = await ask(model)
    assert await ask(model) == first
    second = await ask(model, USER, first.message)
    third = await ask(model, USER, first.message, USER, second.message)
    assert [c.message.content for c in (first, second, third)] == ["one", "two", "three"]
    assert third.finish is Finish.LENGTH


async def test_the_end_of_the_script_is_an_error():
    model = ScriptedModel(["one"], name="tiny")
    with pytest.raises(ModelError, match="tiny: reply 2 was requested, but the script has 1") as caught:
        await ask(model, USER, say("one"))
    assert not caught.value.retryable


async def test_a_function_sees_everything():
    def script(messages, tools, sampling):
        return f"{len(messages)} {len(tools)} {sampling.seed}"

    got = await ScriptedModel(script).complete([USER], [], Sampling(seed=7))
    assert got.message.content == "1 0 7"


async def test_a_function_may_be_async_and_may_raise():
    async def script(messages, tools, sampling):
        await asyncio.sleep(0)
        if len(messages) > 1:
            raise ModelError("gone")
        return say("yes")

    model = ScriptedModel(script)
    assert (await ask(model)).message.content == "yes"
    with pytest.raises(ModelError, match="gone"):
        await ask(model, USER, say("x"))


async def test_calls_get_ids_that_are_unique_in_the_conversation():
    both = join_calls(call("a", x=1), call("b"), text="look", reasoning="hmm")
    model = ScriptedModel([both, both])
    first = (await ask(model)).message
    second = (await ask(model, USER, first)).message
    assert first == Message(
        "assistant",
        "look",
        (Call("call_1_1", "a", '{"x":1}'), Call("call_1_2", "b", "{}")),
        reasoning=Reasoning("hmm", "reasoning_content"),
    )
    assert [c.id for c in second.calls] == ["call_2_1", "call_2_2"]


async def test_what_is_given_is_kept():
    message = Message("assistant", calls=(Call("mine", "a", "{"),))
    reply = Completion(message, Finish.OTHER, Usage(1, 2), "m")
    assert await ask(ScriptedModel([reply])) == reply


async def test_finish_and_usage_are_filled_in():
    got = await ask(ScriptedModel([call("a"), "x"], name="fake"))
    assert (got.finish, got.model) == (Finish.CALLS, "fake")
    assert got.usage.prompt_tokens > 0
    assert got.usage.completion_tokens > 0
    assert (await ask(ScriptedModel(["x"]))).finish is Finish.STOP


def test_a_parameter_may_be_called_name():
    assert call("greet", name="you").calls[0].arguments == '{"name":"you"}'
