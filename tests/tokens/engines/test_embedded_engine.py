"""Token mode on a real engine with real weights. Skipped if there are none."""

import json
from contextlib import asynccontextmanager

import pytest

from ludus.agent import take_turns
from ludus.config.secrets import find_weights_folder
from ludus.errors import ConfigError
from ludus.models.embedded import EmbeddedRuntime
from ludus.models.settings import EmbeddedSettings
from ludus.models.weights import find_weights
from ludus.policy import Limits, Policy
from ludus.rl.row_checks import Vocabulary, check_rows
from ludus.tokens.codec import Codec
from ludus.tokens.engines.embedded_engine import EmbeddedEngine
from ludus.tokens.model import TokenModel
from ludus.tokens.sequences import TokenStep, build_sequences
from ludus.tokens.session import TokenSession
from ludus.types import Message, Sampling, ToolSpec


@pytest.fixture(scope="module")
def weights():
    pytest.importorskip("xllamacpp", reason="the embedded model's engine is not installed")
    try:
        return find_weights(None, find_weights_folder())
    except ConfigError as error:
        pytest.skip(str(error))


@asynccontextmanager
async def open_model(weights):
    """A model on the running engine."""
    engine = EmbeddedEngine(
        EmbeddedSettings(weights=str(weights), threads=1, context=512),
        EmbeddedRuntime(cache=weights.parent, slots=1),
    )
    model = TokenModel(engine, Codec.open(weights, "hermes", template="chatml"))
    try:
        yield model
    finally:
        await model.close()


async def second_pass(engine, row):
    """What the engine says anew about every sampled id. It is made to sample them, which changes no probability that it
    tells. In the same steps as before, as rounding differs between one id at a time and many at once."""
    await engine.generate([5, 6, 7], Sampling(max_tokens=1))  # forget
    again = []
    for place in [place for place, sampled in enumerate(row.tokens.sampled) if sampled]:
        forced = Sampling(temperature=0.0, max_tokens=1, extra={"logit_bias": [[row.tokens.ids[place], 1000.0]]})
        (got,) = await engine.generate(row.tokens.ids[:place], forced)
        assert got.ids == (row.tokens.ids[place],)
        again += got.logprobs
    return again


async def exact_rows_and_a_second_pass(model):
    policy = Policy(model, sampling=Sampling(max_tokens=6), limits=Limits(turns=2))
    turns_run = [turn async for turn in take_turns(policy, (Message("user", "Say hello."),), (), seed=1)]
    first = turns_run[0].completion
    messages = (Message("user", "Say hello."), first.message, Message("user", "Again."))
    second = await model.complete(messages, (), Sampling(max_tokens=6, seed=2))
    (row,) = build_sequences([TokenStep(completion.tokens, completion.splice) for completion in (first, second)])
    recorded = [value for value in row.tokens.logprobs if value is not None]
    assert recorded == pytest.approx(await second_pass(model.engine, row), abs=1e-3)
    tokenizer = model.codec.tokenizer
    good, report = check_rows([row], Vocabulary(size=tokenizer.size, stop_ids=frozenset(tokenizer.stop_tokens)))
    assert good == [row]
    assert not report.fatal
    assert second.usage.prompt_tokens == len(row.tokens) - sum(second.tokens.sampled)


async def several_samples_and_stop_strings(model):
    session = TokenSession(model.codec)
    opening = (Message("user", "Count to ten."),)
    many = await model.sample(session, opening, (), Sampling(max_tokens=4, seed=4), 2)
    (stopped,) = await model.sample(session, opening, (), Sampling(max_tokens=24, temperature=0.0, stop=("e",)))
    assert many[0].tokens.ids != many[1].tokens.ids
    assert "e" not in stopped.message.content
    assert len(session.build_sequences()) == 3


async def logprobs_of_ids_inside_a_character(model):
    """The server reports none of these. The grammar makes the model write them; it changes no logprob."""
    tokenizer, drawn = model.codec.tokenizer, "18 ÷ 5 ⟮ 😀 !"
    prompt = tokenizer.encode("Say something.")
    (got,) = await model.engine.generate(prompt, Sampling(max_tokens=40, extra={"grammar": f'root ::= "{drawn}"'}))
    assert (got.text, tokenizer.decode(got.ids[:-1])) == (drawn, drawn)
    assert None not in got.logprobs and max(got.logprobs) < 0
    inside = [place for place in range(1, len(got.ids)) if tokenizer.decode(got.ids[:place]).endswith("\ufffd")]
    assert len(inside) >= 3
    assert min(got.logprobs[place - 1] for place in inside) > -40


async def test_token_mode_on_the_embedded_model(weights):
    async with open_model(weights) as model:
        await exact_rows_and_a_second_pass(model)
        await several_samples_and_stop_strings(model)
        await logprobs_of_ids_inside_a_character(model)


def test_the_models_own_template_refuses_tools(weights):
    model = TokenModel(
        EmbeddedEngine(EmbeddedSettings(), EmbeddedRuntime(cache=weights.parent)), Codec.open(weights, "hermes")
    )
    assert "drops_tools" in {finding.code for finding in model.findings}


async def test_a_call_and_json_are_forced_on_a_real_engine(weights):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    word = {"enum": ["yes", "no"]}
    tool = ToolSpec("add", "Adds.", schema)
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": word}}}

    async with open_model(weights) as model:
        opening = (Message("user", "Say hello."),)
        forced = await model.complete(opening, (tool,), Sampling(max_tokens=64, seed=1, tool_choice="required"))
        assert [call.name for call in forced.message.calls] == ["add"]
        assert isinstance(json.loads(forced.message.calls[0].arguments)["n"], int)
        written = await model.complete(opening, (), Sampling(max_tokens=64, temperature=0.0, extra=form))
        assert json.loads(written.message.content) in ("yes", "no")
        steps = [TokenStep(each.tokens, each.splice, each.guided) for each in (forced, written)]
        assert not any(sampled for row in build_sequences(steps) for sampled in row.tokens.sampled)
