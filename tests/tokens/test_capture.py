"""Ids from a server that renders itself: exact rows, even if its prompts drift."""

import pytest

from ludus.errors import ModelError
from ludus.models.server import Retry
from ludus.models.settings import OpenAISettings
from ludus.tokens.capture import Capture, CapturedChatModel
from ludus.tokens.engine_standin import StandIn
from ludus.tokens.sequences import TokenStep, build_sequences
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Completion, Message, Sampling


async def run_chat(tokens, replies, *, scatter, mangle=None):
    """A conversation through the chat endpoint: the completions, and what the engine drew."""
    codec = tokens.codec()

    toy = ToyEngine(tokens.tokenizer, list(replies), scatter=scatter)
    async with StandIn(toy, codec=codec, mangle=mangle) as server:
        settings = OpenAISettings(base_url=f"{server.url}/v1", name="toy", retry=Retry(retries=0))
        model = CapturedChatModel(settings)
        messages = [Message("system", "Be brief."), Message("user", "Grüße!")]
        completions = []
        try:
            for _ in replies:
                completion = await model.complete(messages, (tokens.LOOK,), Sampling(max_tokens=500))
                completions.append(completion)
                messages.append(completion.message)
                messages += [Message("tool", "ok", call_id=call.id) for call in completion.message.calls]
                messages += [] if completion.message.calls else [Message("user", "Go on.")]
        finally:
            await model.close()
        return completions, toy.log


def build_rows(completions):
    return build_sequences([TokenStep(completion.tokens, completion.splice) for completion in completions])


async def test_a_server_whose_prompts_repeat_its_replies_gives_one_row(tokens):
    completions, log = await run_chat(tokens, ["One.", "Two.", "Three."], scatter=0.0)
    (row,) = build_rows(completions)
    assert row.tokens.ids == (*log[-1].prompt, *log[-1].ids)
    assert completions[0].message.content == "One."


async def test_drift_costs_rows_but_no_exactness(tokens):
    completions, log = await run_chat(tokens, ["Grüße, 世界 \U0001f600." * 3] * 3, scatter=0.5)
    rows = build_rows(completions)
    assert len(rows) == 3
    for row, sample in zip(rows, log, strict=True):
        assert row.tokens.ids == (*sample.prompt, *sample.ids)
        assert row.tokens.sampled == (False,) * len(sample.prompt) + (True,) * len(sample.ids)


async def test_calls_are_the_servers_own(tokens):
    text = tokens.call_text(tokens.codec(), at="home")
    completions, _ = await run_chat(tokens, [text, "Done."], scatter=0.0)
    assert completions[0].message.calls[0].name == "look"
    assert completions[1].message.content == "Done."


@pytest.mark.parametrize(
    ("field", "words"),
    [("prompt_token_ids", "no token ids"), ("token_ids", "no token ids"), ("logprobs", "no logprobs")],
)
async def test_a_server_that_returns_no_ids_is_refused(tokens, field, words):
    def remove_field(path, reply):
        if path.endswith("/chat/completions"):
            reply.pop(field, None)
            reply["choices"][0].pop(field, None)
        return reply

    with pytest.raises(ModelError, match=words):
        await run_chat(tokens, ["One."], scatter=0.0, mangle=remove_field)


def test_a_reply_without_its_prompt_is_not_recorded(tokens):
    from ludus.tokens import Generation
    from ludus.types import Finish

    capture = Capture()
    with pytest.raises(ModelError, match="ids of the prompt"):
        capture.add_completion(
            Completion(Message("assistant")), Generation(ids=(1,), logprobs=(-1.0,), finish=Finish.STOP)
        )
    assert not capture.steps
