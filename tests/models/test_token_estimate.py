from ludus.encoding import to_json
from ludus.models.token_estimate import REPLY_TOKENS, estimate_prompt, estimate_reply, estimate_text
from ludus.types import Call, Message, Sampling, ToolSpec


def test_four_characters_are_one_token_rounded_up():
    assert [estimate_text("x" * size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_a_prompt_counts_texts_calls_and_tools():
    text = [Message("user", "x" * 32)]
    assert estimate_prompt(text, []) == (32 + 8) // 4
    call = [*text, Message("assistant", "", (Call("1", "add", '{"a": 1}'),))]
    assert estimate_prompt(call, []) == (32 + 8 + 8 + len("add") + len('{"a": 1}') + 3) // 4
    tools = [ToolSpec("add", "Adds.", {"type": "object"})]
    assert estimate_prompt(text, tools) == (40 + len(to_json(tools)) + 3) // 4


def test_a_reply_counts_its_limit():
    assert estimate_reply(Sampling(max_tokens=7)) == 7
    assert estimate_reply(Sampling()) == REPLY_TOKENS
