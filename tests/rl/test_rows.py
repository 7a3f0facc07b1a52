"""Rows from rollouts: exact ones, and ones from text only where they are requested."""

import msgspec
import pytest
from tests.build import make_token_rollout

from ludus.rl.rows import NotExact, build_rows, find_mode, retokenize, unmark_guided
from ludus.types import (
    Group,
    Message,
    Reasoning,
    Splice,
    Tokens,
    ToolSpec,
)

EXACT = Tokens((1, 2, 3), (False, False, True), (None, None, -0.5))


@pytest.mark.parametrize(
    ("tokens", "found"),
    [((EXACT, EXACT), "tokens"), ((None, None), "chat"), ((EXACT, None), "mixed"), ((), "empty")],
)
def test_the_mode_is_found_in_the_record(tokens, found):
    assert find_mode(make_token_rollout(*tokens)) == found


def test_exact_rollouts_give_their_rows():
    (row,) = build_rows(make_token_rollout(EXACT, EXACT))
    assert row.tokens.ids == (1, 2, 3, 1, 2, 3)
    assert len(build_rows(make_token_rollout(EXACT, EXACT, splices={1: Splice(0, 2)}))) == 2
    assert build_rows(make_token_rollout()) == []


@pytest.mark.parametrize(("tokens", "words"), [((None,), "in chat mode:"), ((EXACT, None), "in chat mode in part:")])
def test_chat_rollouts_are_refused_with_the_way_out(tokens, words):
    with pytest.raises(NotExact, match=f"'t1' was run {words}.*token mode.*re-tokenized"):
        build_rows(make_token_rollout(*tokens))


def test_a_record_that_is_not_whole_is_refused():
    with pytest.raises(NotExact, match="is incomplete"):
        build_rows(make_token_rollout(EXACT, EXACT, splices={1: Splice(5, 0)}))


def test_guided_replies_are_masked_unless_they_are_unmarked():
    rollout = make_token_rollout(EXACT)
    (turn,) = rollout.turns
    guided = msgspec.structs.replace(turn.completion, guided=True)
    rollout = msgspec.structs.replace(rollout, turns=(msgspec.structs.replace(turn, completion=guided),))
    (row,) = build_rows(rollout)
    assert not any(row.tokens.sampled)
    group = unmark_guided(Group(task=rollout.task, rollouts=(rollout,), size=1))
    (row,) = build_rows(group.rollouts[0])
    assert row.tokens == EXACT


# ---- from text, for imitation -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def codec(tmp_path_factory):
    pytest.importorskip("tokenizers", reason="the extra 'tokens' is not installed")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from ludus.tokens.codec import Codec

    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False
    )
    rust.train_from_iterator(["user assistant system tool"], trainer)
    folder = tmp_path_factory.mktemp("tokenizer")
    rust.save(str(folder / "tokenizer.json"))
    return Codec.open(folder, "hermes", template="chatml")


def test_text_becomes_rows_that_mark_the_replies(codec):
    from ludus.types import Call

    tools = (ToolSpec("look", "Looks.", {"type": "object", "properties": {}}),)
    messages = (
        Message("user", "Where?"),
        Message("assistant", "I look.", (Call("1", "look", "{}"),), reasoning=Reasoning("hm", "think")),
        Message("tool", "There.", call_id="1"),
        Message("assistant", "There it is."),
    )
    (row,) = retokenize(messages, tools, codec)
    marked = [n for n, s in zip(row.tokens.ids, row.tokens.sampled, strict=True) if s]
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    said = f"<think>\nhm\n</think>\n\nI look.\n{call}<|im_end|>There it is.<|im_end|>"
    assert codec.tokenizer.decode(marked) == said
    assert set(row.tokens.logprobs) == {None}
    assert codec.tokenizer.decode(row.tokens.ids).startswith("<|im_start|>system\nYou can call these functions")


def test_no_replies_are_no_rows(codec):
    assert retokenize((Message("user", "Hello?"),), (), codec) == []
