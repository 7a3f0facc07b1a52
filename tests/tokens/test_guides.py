"""Forced calls and JSON replies in token mode."""

import msgspec
import pytest
from tests.gateway_kit import ADD

from ludus.errors import ModelError, Unsupported
from ludus.models.server import ServerSettings
from ludus.parsers import Parser, list_names
from ludus.tokens import Guide
from ludus.tokens.engine_standin import StandIn
from ludus.tokens.engines.llamacpp import LlamaCppEngine
from ludus.tokens.engines.sglang import SglangEngine
from ludus.tokens.engines.vllm import VllmEngine
from ludus.tokens.guides import add_guide, asks_for_form, build_call_grammar, make_guide, mark_guided
from ludus.tokens.model import TokenModel
from ludus.tokens.toy_engine import ToyEngine
from ludus.types import Call, Completion, Finish, Message, Sampling, ToolSpec

TOOL = ToolSpec("add", "Adds.", ADD["function"]["parameters"])
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORM = Sampling(extra={"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}})
FORCED = Sampling(tool_choice="required")
HERMES = Parser("hermes")
SERVER = ServerSettings(base_url="http://127.0.0.1:9", name="m")


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(), None),
        (Sampling(tool_choice="auto"), None),
        (Sampling(extra={"response_format": {"type": "text"}}), None),
        (Sampling(extra={"response_format": {"type": "json_object"}}), Guide(schema={"type": "object"})),
        (FORM, Guide(schema=SCHEMA)),
        (FORCED, Guide(grammar=build_call_grammar(HERMES, [TOOL]))),
    ],
)
def test_the_guide_is_what_the_request_asks_for(sampling, expected):
    assert make_guide(sampling, [TOOL], HERMES) == expected
    assert asks_for_form(sampling, [TOOL]) is (expected is not None)


def test_without_tools_no_call_is_forced():
    assert make_guide(FORCED, (), HERMES) is None


@pytest.mark.parametrize("wanted", [{"type": "xml"}, {"type": "json_schema"}, "json", {"json_schema": {"schema": {}}}])
def test_another_form_is_refused_by_name(wanted):
    with pytest.raises(Unsupported, match="response_format"):
        make_guide(Sampling(extra={"response_format": wanted}), (), HERMES)


def test_json_cannot_be_forced_after_an_open_think_block_but_a_call_can():
    with pytest.raises(Unsupported, match="think block"):
        make_guide(FORM, (), HERMES, opens_thought=True)
    guide = make_guide(FORCED, [TOOL], HERMES, opens_thought=True)
    assert guide is not None and guide.grammar.startswith('root ::= [^<]* "</think>"')


def test_the_grammar_wraps_the_tools_own_schema_as_the_parser_writes_calls():
    root, *rules = build_call_grammar(HERMES, [TOOL, ToolSpec("say", "", {"type": "object"})]).splitlines()
    assert r'"<tool_call>\n{\"name\": \"add\", \"arguments\": "' in root
    assert r'"}\n</tool_call>"' in root
    assert root.count("<tool_call>") == 2
    assert any(rule.startswith("string ::=") for rule in rules)


def test_formats_whose_arguments_are_no_json_are_refused_by_name():
    refused = set()
    for name in list_names():
        try:
            build_call_grammar(Parser(name), [TOOL])
        except Unsupported as error:
            assert name in str(error)
            refused.add(name)
    assert {"qwen3_coder", "pythonic", "glm45"} <= refused
    assert not {"hermes", "llama3_json", "mistral", "deepseek_v31", "kimi_k2", "gpt_oss"} & refused


@pytest.mark.parametrize(
    ("engine", "for_schema", "for_grammar"),
    [
        (VllmEngine, {"structured_outputs": {"json": SCHEMA}}, {"structured_outputs": {"grammar": "g"}}),
        (LlamaCppEngine, {"json_schema": SCHEMA}, {"grammar": "g"}),
        (SglangEngine, {"json_schema": msgspec.json.encode(SCHEMA).decode()}, {"ebnf": "g"}),
    ],
)
def test_every_engine_has_fields_of_its_own(engine, for_schema, for_grammar):
    engine = engine(SERVER)
    assert dict(add_guide(engine, Guide(schema=SCHEMA), FORM).extra) == for_schema
    assert dict(add_guide(engine, Guide(grammar="g"), FORCED).extra) == for_grammar


def test_an_engine_without_guided_decoding_is_refused_by_the_field(tokens):
    engine = ToyEngine(tokens.codec().tokenizer, [])
    with pytest.raises(Unsupported, match="tool_choice"):
        add_guide(engine, Guide(grammar="g"), FORCED)
    with pytest.raises(Unsupported, match="response_format"):
        add_guide(engine, Guide(schema={}), FORM)


def test_a_reply_of_another_form_is_an_error_unless_it_was_cut():
    plain = Completion(Message("assistant", "Sure!"))
    for guide in (Guide(schema=SCHEMA), Guide(grammar="g")):
        with pytest.raises(ModelError, match="ignored the form"):
            mark_guided(plain, guide)
        assert mark_guided(msgspec.structs.replace(plain, finish=Finish.LENGTH), guide).guided
    assert mark_guided(Completion(Message("assistant", '{"a": 1}')), Guide(schema=SCHEMA)).guided
    assert mark_guided(Completion(Message("assistant", calls=(Call("c", "add", "{}"),))), Guide(grammar="g")).guided


async def test_a_forced_call_goes_to_the_engine_and_is_marked(tokens):
    codec = tokens.codec()
    reply = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'

    async with StandIn(ToyEngine(codec.tokenizer, [reply])) as server:
        model = TokenModel(VllmEngine(ServerSettings(base_url=server.url, name="toy")), codec)
        completion = await model.complete(
            [Message("user", "hi")], [TOOL], Sampling(max_tokens=99, tool_choice="required")
        )
        await model.close()
        completion, body = completion, server.requests[-1][1]
    assert completion.guided
    assert [call.name for call in completion.message.calls] == ["add"]
    assert body["structured_outputs"] == {"grammar": build_call_grammar(codec.parser, [TOOL])}
