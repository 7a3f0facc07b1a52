import asyncio

import pytest
from tests.rl import tinker_kit

from ludus.errors import ConfigError, ModelError, ModelUnusable
from ludus.rl import tinker_engine
from ludus.rl.tinker_engine import (
    TinkerEngine,
    TinkerSampler,
    build_params,
    call_service,
    explain_fault,
    import_tinker,
    read_sequence,
)
from ludus.types import Finish, Sampling

STOPS = {2: "<|im_end|>"}


@pytest.fixture(autouse=True)
def client(monkeypatch):
    monkeypatch.setattr(tinker_engine, "import_tinker", tinker_kit.Service().make_module)


async def make_engine(client, timeout=5.0):
    sampler = TinkerSampler(timeout)

    async def make():
        return client

    await sampler.replace(make)
    return sampler, TinkerEngine(sampler, name="tiny@0", stop_tokens=STOPS, context=64)


async def test_ids_and_logprobs_of_a_reply():
    client = tinker_kit.SamplingClient(0)
    _, engine = await make_engine(client)
    client, found, facts = client, await engine.generate([5, 6], Sampling(seed=3), 2), await engine.get_facts()
    prompt, count, params = client.requests[0]
    assert (prompt, count, facts.context) == ([5, 6], 2, 64)
    assert params == {"max_tokens": 62, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "stop": [2], "seed": 3}
    assert [(each.ids, each.logprobs, each.finish) for each in found] == [
        (tinker_kit.IDS, tinker_kit.LOGPROBS, Finish.STOP)
    ] * 2
    assert found[0].prompt == (5, 6)


def test_stop_strings_are_sent_with_the_stop_tokens_as_strings():
    assert build_params(Sampling(stop=("END",)), STOPS, 9)["stop"] == ["END", "<|im_end|>"]
    assert build_params(Sampling(), {}, 9)["stop"] is None


def test_unknown_sampling_is_refused():
    assert build_params(Sampling(extra={"top_k": 4}), STOPS, 9)["top_k"] == 4
    with pytest.raises(ConfigError, match=r"sampling\.extra: Tinker knows top_k, not min_p"):
        build_params(Sampling(extra={"min_p": 0.1}), STOPS, 9)


def test_what_follows_a_stop_token_is_cut_off():
    found = read_sequence(tinker_kit.Sequence((1, 2, 9), (-1, -2, -3), "length"), (7,), STOPS)
    assert (found.ids, found.logprobs, found.finish) == ((1, 2), (-1.0, -2.0), Finish.STOP)


def test_a_reply_without_its_logprobs_is_refused():
    with pytest.raises(ModelError, match="0 logprobs for 3 sampled ids"):
        read_sequence(tinker_kit.Sequence(logprobs=None), (7,), STOPS)
    assert read_sequence(tinker_kit.Sequence((), (), "length"), (7,), STOPS).finish is Finish.LENGTH


async def test_open_requests_end_before_the_client_is_replaced_and_later_ones_use_the_new_one():
    old, new = tinker_kit.SamplingClient(0, gate=asyncio.Event()), tinker_kit.SamplingClient(1)
    sampler, engine = await make_engine(old)
    first = asyncio.ensure_future(engine.generate([5], Sampling()))
    await old.asked.wait()
    made = []

    async def make():
        made.append(True)
        return new

    replacing = asyncio.ensure_future(sampler.replace(make))
    for _ in range(5):
        await asyncio.sleep(0)
    second = asyncio.ensure_future(engine.generate([6], Sampling()))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not made and not new.requests and len(old.requests) == 1
    old.gate.set()
    await asyncio.gather(first, replacing, second)
    assert (len(old.requests), len(new.requests)) == (1, 1)


async def test_a_client_that_cannot_be_made_leaves_the_old_one():
    old = tinker_kit.SamplingClient(0)
    sampler, engine = await make_engine(old)

    async def fail():
        raise ModelUnusable("no")

    with pytest.raises(ModelUnusable):
        await sampler.replace(fail)
    await engine.generate([5], Sampling())
    assert len(old.requests) == 1


async def test_a_failed_request_does_not_hold_up_the_next_version():
    sampler, engine = await make_engine(tinker_kit.SamplingClient(0, error=tinker_kit.Failed("server")))
    with pytest.raises(ModelError, match="sampling: Failed: the request failed") as raised:
        await engine.generate([5], Sampling())

    async def make():
        return tinker_kit.SamplingClient(1)

    await sampler.replace(make)
    assert (raised.value.retryable, len(await engine.generate([5], Sampling()))) == (True, 1)


@pytest.mark.parametrize(
    ("error", "kind", "retryable", "words"),
    [
        (tinker_kit.Status(401), ModelUnusable, False, "trainer.api_key_var"),
        (tinker_kit.Status(402), ModelUnusable, False, "no credit"),
        (tinker_kit.Status(404), ModelError, False, "refused"),
        (tinker_kit.Status(429), ModelError, True, "refused"),
        (tinker_kit.Status(503), ModelError, True, "refused"),
        (tinker_kit.Failed("user"), ModelError, False, "failed"),
        (tinker_kit.Failed("server"), ModelError, True, "failed"),
        (OSError("no route"), ModelError, True, "no route"),
    ],
)
def test_errors_of_the_far_side(error, kind, retryable, words):
    found = explain_fault("sampling", error)
    assert (type(found), found.retryable) == (kind, retryable)
    assert words in str(found)


async def test_no_answer_in_time():
    with pytest.raises(ModelError, match=r"no answer in 0\.01 s \(trainer\.timeout\)"):
        await call_service("sampling", asyncio.Event().wait(), 0.01)


@pytest.mark.parametrize(("answers", "ends"), [("...", True), ("..x..x...", True), ("..x.x..", False)])
async def test_a_service_that_has_ended_is_not_asked_for_hours(monkeypatch, answers, ends):
    monkeypatch.setattr(tinker_engine, "_CHECK_SECONDS", 0.0)

    async def main():
        done = asyncio.get_running_loop().create_future()
        left = list(answers)

        async def check():
            if not left:
                done.set_result("the answer")
            elif left.pop(0) == ".":
                raise ModelUnusable("nothing answers")

        return await call_service("sampling", done, 60.0, check)

    if ends:
        with pytest.raises(ModelUnusable, match="nothing answers"):
            await main()
    else:
        assert await main() == "the answer"


def test_without_the_client_the_message_names_the_extra(monkeypatch):
    monkeypatch.setattr(tinker_engine.importlib, "import_module", _raise_missing)
    with pytest.raises(ConfigError, match=r"ludus-train\[tinker\]"):
        import_tinker()


def _raise_missing(name):
    raise ModuleNotFoundError(name)
