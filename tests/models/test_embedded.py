"""The model in this process, for real: skipped where its engine or weights cannot be had."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ludus.config.secrets import find_weights_folder
from ludus.errors import ConfigError, ModelError
from ludus.models.embedded import (
    EmbeddedModel,
    EmbeddedRuntime,
    build_grammar,
    flatten_messages,
    parse_call,
    read_calls,
)
from ludus.models.settings import EmbeddedSettings
from ludus.models.weights import QWEN_CODER, find_weights
from ludus.parsers import Parser
from ludus.tools import tool
from ludus.tools.toolsets import make_tools
from ludus.types import Call, Completion, Finish, Message, Sampling, StopReason, ToolSpec

GREEDY = Sampling(temperature=0.0, max_tokens=40, extra={"cache_prompt": False})


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


ONE_THREAD = EmbeddedSettings(threads=1, context=1024)
"""One thread does not wait for another on a busy machine."""


@pytest.fixture(scope="session")
def runtime() -> EmbeddedRuntime:
    pytest.importorskip("xllamacpp", reason="the embedded model's engine is not installed")
    cache = find_weights_folder()
    try:
        find_weights(None, cache)
    except ConfigError as error:
        pytest.skip(str(error))
    return EmbeddedRuntime(cache=cache, slots=2)


@asynccontextmanager
async def open_model(runtime: EmbeddedRuntime) -> AsyncGenerator[EmbeddedModel]:
    model = EmbeddedModel(ONE_THREAD, runtime)
    try:
        yield model
    finally:
        await model.close()


async def test_it_answers_calls_a_tool_and_reports_a_cut_reply(runtime: EmbeddedRuntime):
    async with open_model(runtime) as model:
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


async def test_a_tool_can_be_demanded_or_forbidden(runtime: EmbeddedRuntime):
    async with open_model(runtime) as model:
        ask = [Message("user", "What a nice day.")]
        must = await model.complete(ask, SPECS, Sampling(temperature=0.0, tool_choice="required", max_tokens=40))
        assert must.message.calls or must.finish is Finish.LENGTH
        not_ = await model.complete(
            [*EXAMPLES, *ask], SPECS, Sampling(temperature=0.0, tool_choice="none", max_tokens=20)
        )
        assert not not_.message.calls


async def test_the_same_seed_gives_the_same_reply(runtime: EmbeddedRuntime):
    async with open_model(runtime) as model:
        ask = [Message("user", "Invent a name for a boat.")]
        sampled = Sampling(temperature=1.0, seed=7, max_tokens=20, extra={"cache_prompt": False})
        first = await model.complete(ask, [], sampled)
        second = await model.complete(ask, [], sampled)
        assert first.message == second.message


async def test_more_requests_than_slots_wait_for_their_turn(runtime: EmbeddedRuntime):
    async with open_model(runtime) as model:
        asks = [[Message("user", f"What is {i} plus {i}?")] for i in range(5)]
        short = Sampling(temperature=0.0, max_tokens=4)
        got = await asyncio.gather(*(model.complete(ask, [], short) for ask in asks))
        assert all(0 < reply.usage.completion_tokens <= 4 for reply in got)


async def test_a_caller_that_is_cancelled_while_it_loads_does_not_affect_others(runtime: EmbeddedRuntime):
    async with open_model(runtime) as model:
        impatient = asyncio.create_task(model.start())
        await asyncio.sleep(0)
        impatient.cancel()
        assert (await model.complete([Message("user", "Say hello.")], [], GREEDY)).message.content


async def test_closing_ends_what_is_being_computed(runtime: EmbeddedRuntime):
    model = EmbeddedModel(ONE_THREAD, runtime)
    await model.start()
    endless = Sampling(max_tokens=900, extra={"ignore_eos": True})
    busy = [asyncio.create_task(model.complete([Message("user", "Tell a story.")], [], endless)) for _ in range(3)]
    await asyncio.sleep(0.2)
    await model.close()
    ends = await asyncio.gather(*busy, return_exceptions=True)
    assert all(isinstance(end, ModelError) for end in ends)


def test_a_program_that_forgets_to_close_it_still_ends(runtime: EmbeddedRuntime):
    program = f"""
import asyncio
from pathlib import Path
from ludus.models.embedded import EmbeddedModel, EmbeddedRuntime, EmbeddedSettings
runtime = EmbeddedRuntime(cache=Path({str(runtime.cache)!r}), slots=1)
model = EmbeddedModel(EmbeddedSettings(threads=1, context=256), runtime)
asyncio.run(model.start())
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=300, check=False).returncode == 0


async def test_a_conversation_that_outgrows_the_context_is_refused(runtime: EmbeddedRuntime):
    async with open_model(runtime) as model:
        with pytest.raises(ModelError, match="context") as caught:
            await model.complete([Message("user", "word " * 2000)], [], GREEDY)
        assert not caught.value.retryable


async def test_loading_leaves_the_environment_as_it_was(runtime: EmbeddedRuntime):
    before = dict(os.environ)

    async with open_model(runtime) as model:
        await model.start()
    assert dict(os.environ) == before


def parameters(required: list[str], **properties: object) -> ToolSpec:
    return ToolSpec("t", "Do it.", {"type": "object", "properties": properties, "required": required})


SHAPES = {
    "nothing": parameters([]),
    "optional": parameters([], a={"type": "integer"}, b={"type": "boolean"}),
    "choice": parameters(["a"], a={"enum": ["é", 'say "x"', 3, None]}, b={"type": "number"}),
    "nested": parameters(
        ["a"],
        a={
            "type": "array",
            "items": {"type": "object", "properties": {"x": {"type": "string"}, "y": {}}, "required": ["x"]},
        },
    ),
    "anything": parameters(["a"], a={"anyOf": [{"type": "string"}, {"$ref": "#/$defs/x"}]}, b={"type": "object"}),
}


async def test_the_engine_keeps_to_the_schemas_of_all_shapes_of_tools(runtime: EmbeddedRuntime):
    async def called(model: EmbeddedModel, spec: ToolSpec) -> tuple[ToolSpec, Completion]:
        must = Sampling(temperature=0.0, tool_choice="required", max_tokens=30)
        return spec, await model.complete([Message("user", "Do something.")], [spec], must)

    async with open_model(runtime) as model:
        for spec, reply in await asyncio.gather(*(called(model, spec) for spec in SHAPES.values())):
            assert reply.message.calls or reply.finish is Finish.LENGTH
            for call in reply.message.calls:
                given = json.loads(call.arguments)
                assert set(spec.parameters["required"]) <= set(given) <= set(spec.parameters["properties"])


async def test_the_engine_accepts_the_grammar_of_all_builtin_tools(runtime: EmbeddedRuntime):
    class Slot:
        """Tools only need it when they run."""

    specs = [tool.spec for tool in make_tools(["terminal", "file", "code", "todo"], Slot())]  # type: ignore[arg-type]

    async with open_model(runtime) as model:
        reply = await model.complete([Message("user", "Hi.")], specs, Sampling(max_tokens=1))
        assert reply.usage.completion_tokens == 1


async def test_closing_twice_is_fine_and_closed_is_closed(runtime: EmbeddedRuntime):
    model = EmbeddedModel(ONE_THREAD, runtime)
    await model.start()
    await model.close()
    await model.close()
    with pytest.raises(ModelError, match="closed"):
        await model.complete([Message("user", "hello")], [], GREEDY)


async def test_a_file_that_is_not_weights_is_refused(tmp_path: Path, runtime: EmbeddedRuntime):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUFxxxx" * 10)

    model = EmbeddedModel(EmbeddedSettings(weights=str(bad)), EmbeddedRuntime(cache=tmp_path))
    with pytest.raises(ConfigError, match=r"model.weights: llama.cpp cannot load .*bad.gguf"):
        await model.start()
    await model.close()


async def test_without_the_engine_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    model = EmbeddedModel(EmbeddedSettings(), EmbeddedRuntime(cache=tmp_path))
    with pytest.raises(ConfigError, match=r"ludus-train\[local\]"):
        await model.start()


def test_tools_calls_and_results_become_text():
    messages = flatten_messages([Message("system", "Be brief."), *EXAMPLES[:3]], SPECS)
    assert [m.role for m in messages] == ["system", "user", "assistant", "user"]
    assert "write_file(path, content): Create a file." in messages[0].content
    assert json.loads(messages[2].content) == {
        "name": "write_file",
        "arguments": {"path": "memo.txt", "content": "call the bank"},
    }
    assert messages[3].content == "Wrote memo.txt"
    assert not any(m.calls for m in messages)


def test_calls_that_are_no_json_and_text_beside_calls_stay_as_they_are():
    (message,) = flatten_messages([Message("assistant", "Let me see.", (Call("1", "look", "{bad"),))], [])
    assert message.content == 'Let me see.\n{"name": "look", "arguments": "{bad"}'
    for levels in (500, 990, 5_000):
        (message,) = flatten_messages([Message("assistant", "", (Call("1", "look", "[" * levels + "]" * levels),))], [])
        assert "[" * levels in message.content


def test_a_reply_in_json_is_a_call_with_its_arguments_as_written():
    reply = Completion(Message("assistant", '{"name": "look", "arguments": {"at":  1.50}}'))
    got = parse_call(reply, "call_7")
    assert got.message == Message("assistant", calls=(Call("call_7", "look", '{"at":  1.50}'),))
    assert got.finish is Finish.CALLS


@pytest.mark.parametrize("content", ['{"name": "look", "argum', "Done.", '{"x": 1}', ""])
def test_a_reply_that_is_no_whole_call_stays_as_it_is(content: str):
    reply = Completion(Message("assistant", content), Finish.LENGTH)
    assert parse_call(reply, "call_7") is reply


def test_the_grammar_names_every_tool_and_its_arguments():
    text = build_grammar(SPECS)
    assert r"{\"name\": \"write_file\", \"arguments\": " in text
    assert "| answer" in text.splitlines()[0]
    assert "answer" not in build_grammar(SPECS, "required").splitlines()[0]


async def test_a_rollout_on_it_ends_like_any_other(runtime: EmbeddedRuntime):
    from ludus.agent import take_turns
    from ludus.policy import Limits, Policy

    async with open_model(runtime) as model:
        opening = [*EXAMPLES, Message("user", 'Create a file called city.txt that contains "Lisbon".')]
        policy = Policy(model, sampling=GREEDY, limits=Limits(turns=2))
        got = [turn async for turn in take_turns(policy, opening, [write_file])]
        assert got[0].results[0].content.startswith("Wrote ")
        assert got[-1].stop in {StopReason.FINISHED, StopReason.MAX_TURNS, StopReason.LENGTH}


# ---- a model that writes calls in fenced blocks -------------------------------------------------------------------


def test_fenced_calls_and_results_become_text():
    messages = flatten_messages([Message("system", "Be brief."), *EXAMPLES[:3]], SPECS, fenced=True)
    assert messages[2].content == (
        '```json\n{"name": "write_file", "arguments": {"path": "memo.txt", "content": "call the bank"}}\n```'
    )
    assert messages[3].content == "Result:\nWrote memo.txt"
    assert "```json" in messages[0].content


def test_the_form_of_a_fenced_call_names_a_tool():
    (system, _) = flatten_messages([Message("user", "Hello.")], SPECS, fenced=True)
    assert '```json\n{"name": "write_file", "arguments": {"path": "...", "content": "..."}}\n```' in system.content


@pytest.mark.parametrize("text", ["```json\n{}\n```", "I use it.\n```json\n{}\n```", "{}"])
def test_a_call_of_a_tool_that_does_not_exist_is_a_call_so_that_the_agent_is_told(text: str):
    written = text.replace("{}", '{"name": "pdf-forms", "arguments": {"page": 2}}')
    got = read_calls(Completion(Message("assistant", written), Finish.STOP), SPECS, Parser("qwen2_5_coder"), 1)
    assert got.message.calls == (Call("call_1", "pdf-forms", '{"page": 2}'),)
    assert got.message.content in ("", "I use it.") and got.finish is Finish.CALLS


@pytest.mark.parametrize(("cut", "finish"), [(Finish.STOP, Finish.CALLS), (Finish.LENGTH, Finish.LENGTH)])
def test_fenced_calls_are_read_and_the_text_beside_them_stays(cut: Finish, finish: Finish):
    call = '{"name": "write_file", "arguments": {"path": "a", "content": "b"}}'
    reply = Completion(Message("assistant", f"Sure.\n```json\n{call}\n```"), cut)
    got = read_calls(reply, SPECS, Parser("qwen2_5_coder"), 3)
    assert got.message.content == "Sure."
    assert got.message.calls == (Call("call_3", "write_file", '{"path": "a", "content": "b"}'),)
    assert got.finish is finish


ANSWERS = [
    '```json\n{"name": "Ann", "age": 3}\n```', '{"name": "Ann", "arguments": {}, "age": 3}',
    '{"name": "Ann", "arguments": "for"}', "Done.", "",
]  # fmt: skip


@pytest.mark.parametrize("content", ANSWERS)
def test_an_answer_of_such_a_model_stays_as_it_is(content: str):
    reply = Completion(Message("assistant", content), Finish.STOP)
    assert read_calls(reply, SPECS, Parser("qwen2_5_coder"), 1) is reply


def test_a_demanded_call_is_fenced_too():
    text = build_grammar(SPECS, "required", fenced=True)
    assert r"```json\n{\"name\": \"write_file\"" in text and r'"}\n```"' in text


@pytest.fixture(scope="module")
def coder() -> EmbeddedRuntime:
    """Only where its weights are: they are large."""
    pytest.importorskip("xllamacpp", reason="the embedded model's engine is not installed")
    cache = find_weights_folder()
    if not (cache / QWEN_CODER.file).is_file():
        pytest.skip("the weights of qwen2.5-coder-1.5b are not here")
    return EmbeddedRuntime(cache=cache, slots=1)


@pytest.mark.slow
async def test_the_larger_model_calls_a_tool_and_then_answers(coder: EmbeddedRuntime):
    settings = EmbeddedSettings(name="qwen2.5-coder-1.5b", threads=1, context=1024)
    model = EmbeddedModel(settings, coder, reader=Parser("qwen2_5_coder"))
    ask = [Message("user", 'Create a file called city.txt that contains "Lisbon".')]
    try:
        called = await model.complete(ask, SPECS, GREEDY)
        (call,) = called.message.calls
        assert (call.name, json.loads(call.arguments)["path"]) == ("write_file", "city.txt")
        result = Message("tool", "Wrote city.txt", call_id=call.id)
        answer = await model.complete([*ask, called.message, result], SPECS, GREEDY)
        assert answer.message.content and not answer.message.calls
    finally:
        await model.close()
