"""Token mode against a real vLLM, for `make test-vllm`: skipped unless one is named.

LUDUS_TEST_VLLM is its address, LUDUS_TEST_VLLM_MODEL the folder that it serves, with the tokenizer in it.
"""

import os

import pytest

from ludus.models.server import ServerSettings
from ludus.models.settings import OpenAISettings
from ludus.rl.row_checks import Vocabulary, check_rows
from ludus.tokens.capture import CapturedChatModel
from ludus.tokens.codec import Codec
from ludus.tokens.engines.vllm import VllmEngine
from ludus.tokens.model import TokenModel
from ludus.tokens.sequences import TokenStep, build_sequences
from ludus.tokens.session import TokenSession
from ludus.types import Message, Sampling

URL = os.environ.get("LUDUS_TEST_VLLM", "")
MODEL = os.environ.get("LUDUS_TEST_VLLM_MODEL", "")
pytestmark = pytest.mark.skipif(not (URL and MODEL), reason="LUDUS_TEST_VLLM names no server: see scripts/test-vllm")


def make_codec():
    return Codec.open(MODEL, "hermes", template="chatml")


async def run_turns(model, turns=3):
    messages = [Message("user", "Tell me about foxes.")]
    done = []
    for turn in range(turns):
        completion = await model.complete(messages, (), Sampling(max_tokens=16, seed=turn))
        done.append(completion)
        messages += [completion.message, Message("user", "Go on.")]
    return done


def build_rows(done):
    return build_sequences([TokenStep(completion.tokens, completion.splice) for completion in done])


async def test_a_conversation_is_one_exact_row_and_a_second_pass_agrees():
    async def main():
        engine = VllmEngine(ServerSettings(base_url=URL, name=MODEL))
        model = TokenModel(engine, make_codec())
        try:
            (row,) = build_rows(await run_turns(model))
            again = []
            for place in [p for p, sampled in enumerate(row.tokens.sampled) if sampled]:
                forced = Sampling(temperature=0.0, max_tokens=1, extra={"allowed_token_ids": [row.tokens.ids[place]]})
                (got,) = await engine.generate(row.tokens.ids[:place], forced)
                assert got.ids == (row.tokens.ids[place],)
                again += got.logprobs
            return model, row, again
        finally:
            await model.close()

    model, row, again = await main()
    assert [v for v in row.tokens.logprobs if v is not None] == pytest.approx(again, abs=0.02)
    good, report = check_rows([row], Vocabulary(size=model.codec.tokenizer.size))
    assert good == [row] and not report.fatal


async def test_several_samples_stops_and_lengths():
    model = TokenModel(VllmEngine(ServerSettings(base_url=URL, name=MODEL)), make_codec())
    session = TokenSession(model.codec)
    opening = (Message("user", "Count to ten."),)
    try:
        many = await model.sample(session, opening, (), Sampling(max_tokens=6, seed=4), 3)
        (stopped,) = await model.sample(session, opening, (), Sampling(max_tokens=40, temperature=0.0, stop=("e",)))
    finally:
        await model.close()
    assert len({reply.tokens.ids for reply in many}) > 1
    assert "e" not in stopped.message.content
    assert len(session.build_sequences()) == 4


async def test_chat_with_token_ids_is_captured_exactly():
    async def main():
        model = CapturedChatModel(OpenAISettings(base_url=f"{URL}/v1", name=MODEL))
        try:
            return await run_turns(model)
        finally:
            await model.close()

    done = await main()
    rows = build_rows(done)
    assert sum(sum(row.tokens.sampled) for row in rows) == sum(c.usage.completion_tokens for c in done)
    good, report = check_rows(rows)
    assert good == rows and not report.fatal
