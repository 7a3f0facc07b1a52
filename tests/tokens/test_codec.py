"""Codecs: made from names and objects, and replies as messages."""

import pytest

from ludus.errors import ConfigError
from ludus.parsers import Format, ParsedReply, Parser
from ludus.parsers.shapes import JsonCalls
from ludus.tokens.codec import Codec, infer_finish
from ludus.types import Call, Finish, Message, Reasoning


def test_an_unknown_parser_is_a_config_error_with_a_suggestion(tokens, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokens.tokenizer._rust.to_str())
    with pytest.raises(ConfigError, match="did you mean 'hermes'"):
        Codec.open(tmp_path, "hermse", template="chatml")


def test_a_codec_from_names(tokens, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokens.tokenizer._rust.to_str())
    codec = Codec.open(tmp_path, "hermes", template="chatml", variables={"x": 1}, history="append")
    assert codec.renderer.history == "append"
    with pytest.raises(ConfigError, match="without a chat template"):
        Codec.open(tmp_path, "hermes")


def test_a_broken_call_goes_back_to_the_model(tokens):
    talk = tokens.start()
    completion = talk.sample('<tool_call>\n{"name": "look", "arguments": {"at": }\n</tool_call>')
    (call,) = completion.message.calls
    assert call.name == "look"
    assert completion.finish is Finish.CALLS


# ---- parsers of one's own -----------------------------------------------------------------------------------------


class Shouting:
    """A parser that is neither a name nor a format: calls are lines with an exclamation mark."""

    name = "shouting"

    def parse(self, text, tools, *, thinking=False, first=0):
        lines = text.splitlines()
        called = [line.removesuffix("!") for line in lines if line.endswith("!")]
        calls = tuple(Call(f"call_{first + i}", name, "{}") for i, name in enumerate(called))
        return ParsedReply("\n".join(line for line in lines if not line.endswith("!")), calls)

    def render(self, calls, content=""):
        return "\n".join([*([content] if content else []), *(f"{call.name}!" for call in calls)])


def open_codec(tokens, folder, parser):
    (folder / "tokenizer.json").write_text(tokens.tokenizer._rust.to_str())
    return Codec.open(folder, parser, template="chatml")


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (Shouting(), "Hm.\nlook!"),
        (Format((JsonCalls("@@{call}@@"),), gap="\n"), 'Hm.\n@@{"name": "look", "arguments": {}}@@'),
        (Parser("hermes"), 'Hm.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'),
    ],
    ids=["object", "format", "parser"],
)
def test_a_parser_may_be_an_object(tokens, tmp_path, parser, text):
    codec = open_codec(tokens, tmp_path, parser)
    message = codec.parse_reply(text, (tokens.LOOK,), first=4)
    assert message == Message("assistant", "Hm.", (Call("call_4", "look", "{}"),))
    assert codec.parser.render(message.calls, message.content) == text


def test_an_object_that_is_no_parser_is_a_config_error(tokens, tmp_path):
    for wrong in (Shouting, object(), 5):
        with pytest.raises(ConfigError, match="`name`, `parse` and `render`"):
            open_codec(tokens, tmp_path, wrong)


# ---- replies as messages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("Hi.", {}, Message("assistant", "Hi.")),
        ("Hi. STOP there", {"stop": ("", "STOP")}, Message("assistant", "Hi. ")),
        (
            "<think>\nhm\n</think>\n\nHi.",
            {},
            Message("assistant", "Hi.", reasoning=Reasoning("hm", "think")),
        ),
        ("hm", {"thinking": True}, Message("assistant", "", reasoning=Reasoning("hm", "think", "hm"))),
        ("", {"thinking": True}, Message("assistant", "")),
    ],
    ids=["text", "stop", "think", "unclosed", "empty"],
)
def test_a_reply_is_split_into_reasoning_and_content(tokens, text, options, message):
    assert tokens.codec().parse_reply(text, (), **options) == message


def test_calls_are_only_read_where_tools_were_offered(tokens):
    codec = tokens.codec()
    text = tokens.call_text(codec, "I look.", at="home")
    assert codec.parse_reply(text, ()).content == text
    assert codec.parse_reply(text, (tokens.LOOK,), first=2).calls == (Call("call_2", "look", '{"at": "home"}'),)


def test_stop_tokens_are_not_part_of_the_text(tokens):
    codec = tokens.codec()
    ids = tokens.tokenizer.encode("Hi.<|im_end|>")
    assert codec.ends_turn(ids) and not codec.ends_turn(ids[:-1]) and not codec.ends_turn([])
    assert codec.decode_reply(ids) == codec.decode_reply(ids[:-1]) == "Hi."


def test_a_first_prompt_is_encoded_once(tokens):
    codec = tokens.codec()
    opening = (Message("user", "Where?"),)
    text, ids = codec.encode_prompt(opening, (tokens.LOOK,))
    before = codec.renderer.template.rendered_messages
    assert codec.encode_prompt(list(opening), [tokens.LOOK]) == (text, ids)
    assert codec.renderer.template.rendered_messages == before
    assert codec.encode_prompt(opening, ())[0] != text
    assert list(ids) == tokens.tokenizer.encode(text)


def test_a_plain_stop_with_calls_is_a_stop_for_calls():
    called, plain = Message("assistant", "", (Call("1", "look", "{}"),)), Message("assistant", "Hi.")
    assert infer_finish(Finish.STOP, called) is infer_finish(Finish.OTHER, called) is Finish.CALLS
    assert infer_finish(Finish.LENGTH, called) is Finish.LENGTH
    assert infer_finish(Finish.STOP, plain) is Finish.STOP
