"""The model in this process, for real: skipped where its engine or weights cannot be had."""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ludus.errors import ConfigError, ModelError
from ludus.models.embedded import EmbeddedModel, EmbeddedSettings, as_text, grammar
from ludus.models.weights import default_cache, find
from ludus.tools import tool
from ludus.types import Call, Finish, Message, Sampling, StopReason

GREEDY = Sampling(temperature=0.0, max_tokens=60, extra={"cache_prompt": False})


@tool
async def write_file(path: str, content: str) -> str:
    """Create a file. It must not exist."""
    return f"Wrote {path}"


SPECS = [write_file.spec]
EXAMPLES = [
    Message("user", 'Create a file called memo.txt that contains "call the bank".'),
    Message("assistant", calls=(Call("1", "write_file", '{"path": "memo.txt", "content": "call the bank"}'),)),
    Message("tool", "Wrote memo.txt", call_id="1"),
    Message("assistant", "Done."),
    Message("user", 'Create a file called list.txt that contains "eggs and flour".'),
    Message("assistant", calls=(Call("2", "write_file", '{"path": "list.txt", "content": "eggs and flour"}'),)),
    Message("tool", "Wrote list.txt", call_id="2"),
    Message("assistant", "Done."),
]


@pytest.fixture(scope="session")
def settings() -> EmbeddedSettings:
    pytest.importorskip("xllamacpp", reason="the embedded model's engine is not installed")
    cache = default_cache(os.environ)
    try:
        find(None, cache)
    except ConfigError as error:
        pytest.skip(str(error))
    return EmbeddedSettings(cache=cache, slots=2, context=1024)


def with_model(settings: EmbeddedSettings, body: Callable[[EmbeddedModel], Awaitable[None]]) -> None:
    async def main() -> None:
        model = EmbeddedModel(settings)
        try:
            await body(model)
        finally:
            await model.close()

    asyncio.run(main())


def test_it_answers_calls_a_tool_and_says_when_it_was_cut(settings: EmbeddedSettings):
    async def body(model: EmbeddedModel) -> None:
        plain, called, cut = await asyncio.gather(
            model.complete([Message("user", "Say hello.")], [], GREEDY),
            model.complete(
                [*EXAMPLES, Message("user", 'Create a file called city.txt that contains "Lisbon".')], SPECS, GREEDY
            ),
            model.complete([Message("user", "Count from 1 to 100.")], [], Sampling(temperature=0.0, max_tokens=3)),
        )
        assert plain.message.content
        assert plain.usage.prompt_tokens > 0
        (call,) = called.message.calls
        assert called.finish is Finish.CALLS
        assert call.name == "write_file"
        assert set(json.loads(call.arguments)) == {"path", "content"}
        assert cut.finish is Finish.LENGTH

    with_model(settings, body)


def test_a_tool_can_be_demanded_or_forbidden(settings: EmbeddedSettings):
    async def body(model: EmbeddedModel) -> None:
        ask = [Message("user", "What a nice day.")]
        must = await model.complete(ask, SPECS, Sampling(temperature=0.0, tool_choice="required", max_tokens=200))
        assert must.message.calls or must.finish is Finish.LENGTH
        not_ = await model.complete(
            [*EXAMPLES, *ask], SPECS, Sampling(temperature=0.0, tool_choice="none", max_tokens=20)
        )
        assert not not_.message.calls

    with_model(settings, body)


def test_the_same_seed_gives_the_same_reply(settings: EmbeddedSettings):
    async def body(model: EmbeddedModel) -> None:
        ask = [Message("user", "Invent a name for a boat.")]
        drawn = Sampling(temperature=1.0, seed=7, max_tokens=20, extra={"cache_prompt": False})
        first = await model.complete(ask, [], drawn)
        second = await model.complete(ask, [], drawn)
        assert first.message == second.message

    with_model(settings, body)


def test_closing_twice_is_fine_and_closed_is_closed(settings: EmbeddedSettings):
    async def main() -> None:
        model = EmbeddedModel(settings)
        await model.start()
        await model.close()
        await model.close()
        with pytest.raises(ModelError, match="closed"):
            await model.complete([Message("user", "hello")], [], GREEDY)

    asyncio.run(main())


def test_weights_that_are_none_are_refused(tmp_path: Path, settings: EmbeddedSettings):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUFxxxx" * 10)

    async def main() -> None:
        model = EmbeddedModel(EmbeddedSettings(cache=tmp_path, weights=bad))
        with pytest.raises(ConfigError, match=r"model.weights: llama.cpp cannot load .*bad.gguf"):
            await model.start()
        await model.close()

    asyncio.run(main())


def test_without_the_engine_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    model = EmbeddedModel(EmbeddedSettings(cache=tmp_path))
    with pytest.raises(ConfigError, match=r"ludus\[local\]"):
        asyncio.run(model.start())


def test_tools_calls_and_results_become_words():
    messages = as_text([Message("system", "Be brief."), *EXAMPLES[:3]], SPECS)
    assert [m.role for m in messages] == ["system", "user", "assistant", "user"]
    assert "write_file(path, content): Create a file." in messages[0].content
    assert json.loads(messages[2].content) == {
        "name": "write_file",
        "arguments": {"path": "memo.txt", "content": "call the bank"},
    }
    assert messages[3].content == "Wrote memo.txt"
    assert not any(m.calls for m in messages)


def test_the_grammar_names_every_tool_and_its_arguments():
    text = grammar(SPECS)
    assert r"{\"name\": \"write_file\", \"arguments\": " in text
    assert "| answer" in text.splitlines()[0]
    assert "answer" not in grammar(SPECS, "required").splitlines()[0]


def test_a_rollout_on_it_ends_like_any_other(settings: EmbeddedSettings):
    from ludus.agent import Limits, Policy, turns

    async def body(model: EmbeddedModel) -> None:
        opening = [*EXAMPLES, Message("user", 'Create a file called city.txt that contains "Lisbon".')]
        policy = Policy(model, sampling=GREEDY, limits=Limits(turns=3))
        got = [turn async for turn in turns(policy, opening, [write_file])]
        assert got[0].results[0].content.startswith("Wrote ")
        assert got[-1].stop in {StopReason.FINISHED, StopReason.MAX_TURNS, StopReason.LENGTH}

    with_model(settings, body)
