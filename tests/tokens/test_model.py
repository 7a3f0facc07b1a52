"""Token mode through the real loop: the same calls and records, with the exact ids."""

import asyncio
import gc
import weakref

import msgspec
import pytest

from ludus.agent import take_turns
from ludus.encoding import to_json
from ludus.errors import ConfigError, ModelError, Unsupported
from ludus.models.server import Price, ServerSettings
from ludus.policy import Limits, Policy
from ludus.tokens.engine_standin import StandIn
from ludus.tokens.engines.vllm import VllmEngine
from ludus.tokens.model import TokenModel
from ludus.tokens.session import TokenSession
from ludus.tokens.toy_engine import ToyEngine
from ludus.tools import tool
from ludus.types import Completion, Message, Sampling, StopReason, Turn


@tool
async def look(at: str) -> str:
    """Look at a place."""
    return f"There is a fox at {at}."


OPENING = (Message("system", "Be brief."), Message("user", "Where is the fox?"))


def make_replies(codec):
    from ludus.types import Call

    def call(at):
        return codec.parser.render((Call("", "look", f'{{"at": "{at}"}}'),), "I look.")

    return [call("home"), call("wörld \U0001f600"), "At home."]


async def run_loop(model, tools=(look,), opening=OPENING, **limits):
    policy = Policy(model, sampling=Sampling(max_tokens=500), limits=Limits(**limits))
    return [turn async for turn in take_turns(policy, opening, tools)]


async def complete(model, messages=OPENING, tools=(), **sampling):
    return await model.complete(messages, tools, Sampling(**sampling))


async def test_the_loop_runs_in_token_mode_and_records_exact_ids(tokens):
    codec = tokens.codec()
    engine = ToyEngine(codec.tokenizer, make_replies(codec))
    done = await run_loop(TokenModel(engine, codec))
    assert [turn.stop for turn in done] == [None, None, StopReason.FINISHED]
    assert done[1].results[0].content == "There is a fox at wörld \U0001f600."
    ids = tuple(n for turn in done for n in turn.completion.tokens.ids)
    last = engine.log[-1]
    assert ids == (*last.prompt, *last.ids)
    assert [turn.completion.usage.prompt_tokens for turn in done] == [len(draw.prompt) for draw in engine.log]


async def test_records_survive_json(tokens):
    codec = tokens.codec("thinking")
    replies = ["<think>\na\n</think>\n\nOne.", "<think>\nb\n</think>\n\nTwo."]
    model = TokenModel(ToyEngine(codec.tokenizer, replies), codec)
    messages = [*OPENING]
    for _ in replies:
        completion = await complete(model, messages)
        messages += [completion.message, Message("user", "Go on.")]
    assert completion.splice is not None
    assert msgspec.json.decode(to_json(completion), type=Completion) == completion
    assert msgspec.json.decode(to_json(Turn(completion)), type=Turn).completion.tokens == completion.tokens


async def test_many_conversations_at_once_do_not_mix(tokens):
    codec = tokens.codec()

    def reply(prompt):
        return prompt[-40:].strip().replace("<|im_start|>", "").replace("<|im_end|>", "")

    async def main():
        model = TokenModel(ToyEngine(codec.tokenizer, reply), codec)
        openings = [(Message("user", f"I am number {n}."),) for n in range(20)]
        return await asyncio.gather(*(run_loop(model, (), opening) for opening in openings))

    for number, (turn,) in enumerate(await main()):
        assert f"number {number}." in codec.tokenizer.decode(turn.completion.tokens.ids)


async def test_equal_conversations_are_two_sessions(tokens):
    codec = tokens.codec()
    model = TokenModel(ToyEngine(codec.tokenizer, ["Same."] * 4), codec)
    one, two = await complete(model), await complete(model)
    for first in (one, two):
        after = await complete(model, (*OPENING, first.message, Message("user", "And?")))
        assert after.splice is None
        assert first.message.content == "Same."


async def test_sessions_end_with_their_messages(tokens):
    codec = tokens.codec()
    model = TokenModel(ToyEngine(codec.tokenizer, lambda _: "Words."), codec)
    messages = [*OPENING]
    for _ in range(3):
        messages += [(await complete(model, messages)).message, Message("user", "Go on.")]
    session, _ = model._sessions.find(messages)
    alive = weakref.ref(session)
    assert len(model._sessions) == 3
    del session, messages
    gc.collect()
    assert len(model._sessions) == 0
    assert alive() is None


async def test_copied_messages_are_rendered(tokens):
    codec = tokens.codec()
    model = TokenModel(ToyEngine(codec.tokenizer, ["One.", "Two."]), codec)
    first = await complete(model)
    copied = msgspec.json.decode(to_json(first.message), type=Message)
    second = await complete(model, (*OPENING, copied, Message("user", "And?")))
    assert second.tokens is not None
    assert sum(second.tokens.sampled) == len(model.engine.log[1].ids)
    assert second.tokens.ids == (*model.engine.log[1].prompt, *model.engine.log[1].ids)


async def test_several_replies_in_a_session_of_the_caller(tokens):
    codec = tokens.codec()
    model = TokenModel(ToyEngine(codec.tokenizer, ["One.", "Two.", "Three."]), codec)
    session = TokenSession(codec)
    replies = await model.sample(session, OPENING, (), Sampling(max_tokens=50), 3)
    assert [reply.message.content for reply in replies] == ["One.", "Two.", "Three."]
    assert len(session.build_sequences()) == 3


async def test_prices_are_counted(tokens):
    codec = tokens.codec()
    model = TokenModel(ToyEngine(codec.tokenizer, ["One."]), codec, price=Price(prompt=1e6, completion=2e6))
    usage = (await complete(model)).usage
    assert usage.dollars == usage.prompt_tokens + 2 * usage.completion_tokens


async def test_tools_that_the_template_drops_are_refused_before_anything_is_sent(tokens):
    codec = tokens.codec("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    engine = ToyEngine(codec.tokenizer, ["Fine."])
    with pytest.raises(ConfigError, match="leaves out the tools"):
        await complete(TokenModel(engine, codec), tools=(look.spec,))
    assert not engine.log
    assert (await complete(TokenModel(engine, codec))).message.content == "Fine."


async def test_a_template_that_raises_in_the_middle_is_a_config_error(tokens):
    no = "{%- if messages[-1].content == 'boom' %}{{ raise_exception('I will not') }}{% endif %}"
    touchy = no + tokens.TEMPLATES["plain"]
    codec = tokens.codec(touchy)
    model = TokenModel(ToyEngine(codec.tokenizer, ["One."]), codec)
    first = await complete(model)
    with pytest.raises(ConfigError, match="I will not"):
        await complete(model, (*OPENING, first.message, Message("user", "boom")))


async def test_no_call_is_read_where_none_may_be_made(tokens):
    codec = tokens.codec()
    model = TokenModel(ToyEngine(codec.tokenizer, make_replies(codec)[:1]), codec)
    completion = await complete(model, tools=(look.spec,), tool_choice="none")
    assert completion.message.calls == ()
    assert "<tool_call>" in completion.message.content


async def test_a_call_cannot_be_forced_by_an_engine_without_guided_decoding(tokens):
    codec = tokens.codec()
    with pytest.raises(Unsupported, match="tool_choice"):
        await complete(TokenModel(ToyEngine(codec.tokenizer, []), codec), tools=(look.spec,), tool_choice="required")


async def test_an_engine_of_another_model_is_found_at_the_start(tokens):
    other = tokens.make_tokenizer(["<extra>", "世界", "Grüße"])

    async with StandIn(ToyEngine(other, ["Never."])) as server:
        engine = VllmEngine(ServerSettings(base_url=server.url, name="toy"))
        model = TokenModel(engine, tokens.codec())
        with pytest.raises(ConfigError, match="encodes a probe text differently"):
            await model.complete(OPENING, (), Sampling(max_tokens=5))
        await model.close()
        assert not server.toy.log


async def test_the_engine_is_compared_once_even_if_many_begin(tokens):
    codec = tokens.codec()
    engine = ToyEngine(codec.tokenizer, lambda _: "Hi.")
    encoded = []

    async def tokenize(text):
        encoded.append(text)
        await asyncio.sleep(0)
        return codec.tokenizer.encode(text)

    engine.tokenize = tokenize

    model = TokenModel(engine, codec)
    await asyncio.gather(*(model.complete(OPENING, (), Sampling()) for _ in range(5)))
    assert len(encoded) == 1


async def test_over_http_the_loop_gives_the_same_record(tokens):
    codec = tokens.codec()

    async def over_http():
        async with StandIn(ToyEngine(codec.tokenizer, make_replies(codec), seed=3)) as server:
            model = TokenModel(VllmEngine(ServerSettings(base_url=server.url, name="toy")), codec, name="toy")
            try:
                return await run_loop(model)
            finally:
                await model.close()

    direct = await run_loop(TokenModel(ToyEngine(codec.tokenizer, make_replies(codec), seed=3), codec))
    assert [t.completion for t in await over_http()] == [t.completion for t in direct]


async def test_an_engine_that_cuts_the_prompt_is_refused(tokens):
    codec = tokens.codec()

    def cut(path, reply):
        if path == "/v1/completions":
            reply["choices"][0]["prompt_token_ids"] = reply["choices"][0]["prompt_token_ids"][1:]
        return reply

    with pytest.raises(ModelError, match="another prompt than it was sent"):
        async with StandIn(ToyEngine(codec.tokenizer, ["Hi."]), mangle=cut) as server:
            model = TokenModel(VllmEngine(ServerSettings(base_url=server.url, name="toy")), codec)
            try:
                await model.complete(OPENING, (), Sampling(max_tokens=5))
            finally:
                await model.close()


async def test_a_user_who_goes_on_with_other_tools_leaves_exact_ids(tokens):
    """The user's message continues the sequence; other tools change the beginning of the prompt and start a new one."""

    @tool
    async def listen() -> str:
        """Listen."""
        return "Silence."

    said = [(Message("user", "Are you sure?"), (look,)), (Message("user", "Listen."), (look, listen)), None]

    async def ask(turns):
        return said.pop(0)

    async def converse(model):
        policy = Policy(model, sampling=Sampling(max_tokens=500))
        return [turn async for turn in take_turns(policy, OPENING, (look,), next_message=ask)]

    codec = tokens.codec()
    engine = ToyEngine(codec.tokenizer, ["At home.", "Yes.", "I hear nothing."])
    first, second, third = await converse(TokenModel(engine, codec))
    assert second.completion.splice is None and third.completion.splice is not None
    ids = (*first.completion.tokens.ids, *second.completion.tokens.ids)
    assert ids == (*engine.log[1].prompt, *engine.log[1].ids)
    kept = ids[: third.completion.splice.kept]
    assert (*kept, *third.completion.tokens.ids) == (*engine.log[2].prompt, *engine.log[2].ids)
