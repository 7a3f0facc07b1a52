"""The tokenizer that files get, and the rows that are made with it."""

from pathlib import Path

import pytest
from tests.cli_kit import WORDS, make_tokenizer

from ludus.errors import ConfigError

pytest.importorskip("tokenizers")

from ludus.compat.atropos_env.tokenizer_view import TokenizerView, build_row

TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
    {"role": "assistant", "content": "four"},
]


@pytest.fixture
def view(tmp_path: Path) -> TokenizerView:
    return TokenizerView.load(str(make_tokenizer(tmp_path, WORDS)))


def show_trained(view: TokenizerView, row: dict[str, list[int]]) -> str:
    assert len(row["tokens"]) == len(row["masks"])
    assert all(mask in (-100, id) for id, mask in zip(row["tokens"], row["masks"], strict=True))
    return view.decode([mask for mask in row["masks"] if mask != -100])


def test_a_template_gives_text_or_a_plain_list_of_ids(view: TokenizerView):
    text = view.apply_chat_template(TALK[:2], tokenize=False, add_generation_prompt=True)
    ids = view.apply_chat_template(TALK[:2], add_generation_prompt=True)
    assert isinstance(ids, list) and view.decode(ids) == text and text.endswith("<|im_start|>assistant\n")
    assert view.apply_chat_template(TALK[:2], return_dict=True)["input_ids"] == view.apply_chat_template(TALK[:2])
    assert view.apply_chat_template(TALK[:1], tokenize=False, chat_template="{{ messages[0].content }}!") == "s!"
    with pytest.raises(ValueError, match="return_tensors"):
        view.apply_chat_template(TALK, return_tensors="pt")


def test_a_message_without_content_has_an_empty_one(view: TokenizerView):
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None}]
    assert "None" not in view.apply_chat_template(talk, tokenize=False)


def test_special_tokens_can_be_left_out(view: TokenizerView):
    assert view.eos_token == "<|im_end|>" and view.eos_token_id == view.convert_tokens_to_ids("<|im_end|>")
    ids = [*view.encode("word"), view.eos_token_id]
    assert view.decode(ids, skip_special_tokens=True) == "word"
    assert view.batch_decode([ids, ids]) == ["word<|im_end|>"] * 2
    assert view.eos_token_id in view.all_special_ids and len(view) == view.vocab_size
    assert view(["word", "a"])["input_ids"] == [view.encode("word"), view.encode("a")]
    assert "".join(view.tokenize("word")) == "word"


def test_the_last_message_alone_is_trained_on_or_all_of_the_assistant(view: TokenizerView):
    assert show_trained(view, build_row(view, TALK)).split("<|im_end|>")[0] == "four"
    both = show_trained(view, build_row(view, TALK, train_on_all_assistant_turns=True))
    assert "two" in both and "four" in both and "one" not in both and "three" not in both


def test_messages_are_in_the_row_if_they_are_asked_for(view: TokenizerView):
    assert build_row(view, TALK, True)["messages"] == TALK and "messages" not in build_row(tokenizer=view, chat=TALK)


def test_a_reply_that_was_cut_has_no_end(view: TokenizerView):
    whole, cut = build_row(view, TALK), build_row(view, TALK, finish_reason="length")
    assert view.decode(cut["tokens"]).endswith("four") and len(cut["tokens"]) < len(whole["tokens"])
    assert cut["tokens"] == whole["tokens"][: len(cut["tokens"])] and len(cut["masks"]) == len(cut["tokens"])


def test_a_tokenizer_of_hugging_face_may_give_a_dict(view: TokenizerView):
    class Newer:
        eos_token_id = view.eos_token_id

        def apply_chat_template(self, messages, **options):
            return view.apply_chat_template(messages, return_dict=True, **options)

    assert build_row(Newer(), TALK) == build_row(view, TALK)


def test_one_that_is_not_there_is_refused_by_the_name_of_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"env\.tokenizer_name"):
        TokenizerView.load(str(tmp_path / "absent"))
