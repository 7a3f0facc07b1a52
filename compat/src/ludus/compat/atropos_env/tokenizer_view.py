"""A tokenizer with the methods that files use of a Hugging Face tokenizer, over the tokenizer of Ludus.

It needs no `transformers`. `apply_chat_template` gives a plain list of ids, or a text.
"""

from collections.abc import Sequence
from typing import Any, cast

from ludus.errors import ConfigError
from ludus.tokens.template import Template
from ludus.tokens.tokenizer import Tokenizer, TokenizerFiles, load_tokenizer


class TokenizerView:
    """`self.tokenizer` of a file."""

    def __init__(self, files: TokenizerFiles, name: str = "") -> None:
        self.exact: Tokenizer = files.tokenizer
        self.name_or_path = name
        self.chat_template: str | None = files.templates.get("default")
        self._files = files
        self._special = {id for token in files.tokens.values() if (id := self.exact.find_id(token)) is not None} | set(
            self.exact.stop_tokens
        )
        self.eos_token: str | None = files.tokens.get("eos_token") or self.exact.eos or None
        self.bos_token: str | None = files.tokens.get("bos_token") or None
        self.pad_token: str | None = files.tokens.get("pad_token") or self.eos_token
        self.unk_token: str | None = files.tokens.get("unk_token") or None
        self.model_max_length = 2**31
        self.padding_side = "right"

    @classmethod
    def load(cls, name: str) -> "TokenizerView":
        """The tokenizer of a folder, a file, or the hub. Raises ConfigError."""
        try:
            return cls(load_tokenizer(name), name)
        except ConfigError as error:
            raise ConfigError(
                f"env.tokenizer_name is '{name}': {error} (another one: --env.tokenizer_name FOLDER)"
            ) from error

    @property
    def vocab_size(self) -> int:
        return self.exact.size

    @property
    def eos_token_id(self) -> int | None:
        return self.convert_tokens_to_ids(self.eos_token) if self.eos_token else None

    @property
    def bos_token_id(self) -> int | None:
        return self.convert_tokens_to_ids(self.bos_token) if self.bos_token else None

    @property
    def pad_token_id(self) -> int | None:
        return self.convert_tokens_to_ids(self.pad_token) if self.pad_token else None

    @property
    def all_special_ids(self) -> list[int]:
        return sorted(self._special)

    def __len__(self) -> int:
        return self.exact.size

    def __call__(self, text: Any, add_special_tokens: bool = True, **_: Any) -> dict[str, Any]:
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        rows = [self.encode(each, add_special_tokens) for each in text]
        return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}

    def encode(self, text: str, add_special_tokens: bool = True, **_: Any) -> list[int]:
        """The ids of a text. Special tokens are added as most tokenizers do: one at the begin, if there is one."""
        ids = self.exact.encode(text)
        first = self.bos_token_id if add_special_tokens else None
        return ids if first is None or ids[:1] == [first] else [first, *ids]

    def decode(self, ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        numbers = [int(id) for id in ([ids] if isinstance(ids, int) else ids)]
        if skip_special_tokens:
            numbers = [id for id in numbers if id not in self._special]
        return self.exact.decode(numbers)

    def batch_decode(self, rows: Any, skip_special_tokens: bool = False, **_: Any) -> list[str]:
        return [self.decode(row, skip_special_tokens) for row in rows]

    def tokenize(self, text: str, **_: Any) -> list[str]:
        return [self.exact.decode([id]) for id in self.exact.encode(text)]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self.exact.find_id(tokens)
        return [self.exact.find_id(token) for token in tokens]

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        chat_template: str | None = None,
        return_dict: bool = False,
        return_tensors: Any = None,
        **variables: Any,
    ) -> Any:
        """The conversation as ids or, with `tokenize=False`, as text."""
        if return_tensors is not None:
            raise ValueError("return_tensors: this tokenizer gives lists; make a tensor of the list")
        source = chat_template or self.chat_template
        if not source:
            raise ConfigError(f"the tokenizer '{self.name_or_path}' has no chat template: use another tokenizer_name")
        named = {**self._files.templates, "default": source} if not chat_template else {"default": source}
        template = Template(named, tokens=self._files.tokens, variables=variables)
        messages = [_make_plain(message) for message in conversation]
        text = template.render(messages, tools, generate=add_generation_prompt)
        if not tokenize:
            return text
        ids = self.exact.encode(text)
        return {"input_ids": ids, "attention_mask": [1] * len(ids)} if return_dict else ids


def _make_plain(message: Any) -> dict[str, Any]:
    given = dict(cast(dict[str, Any], message)) if isinstance(message, dict) else message.model_dump()
    if given.get("content") is None:
        given["content"] = ""
    return given


def build_row(
    tokenizer: Any,
    chat: Sequence[Any],
    include_messages: bool = False,
    train_on_all_assistant_turns: bool = False,
    finish_reason: str = "",
) -> dict[str, Any]:
    """`atroposlib`'s `tokenize_for_trainer`: the ids of a conversation, masked but for the last message, or for every
    assistant message. A reply that was cut has no end token.

    The ids are made from text: they are not the sampled ones. Rows of `managed_server` are.
    """
    messages = list(chat)
    tokens = _list_ids(tokenizer.apply_chat_template(messages))
    if train_on_all_assistant_turns:
        masks = [-100] * len(tokens)
        for index, message in enumerate(messages):
            if message["role"] in ("assistant", "agent"):
                start = _find_start(tokenizer, messages[:index], tokens)
                end = min(len(_list_ids(tokenizer.apply_chat_template(messages[: index + 1]))), len(tokens))
                masks[start:end] = tokens[start:end]
    else:
        start = _find_start(tokenizer, messages[:-1], tokens)
        masks = [-100] * start + tokens[start:]
    if finish_reason == "length":
        end = _find_end(tokenizer, tokens)
        tokens, masks = tokens[:end], masks[:end]
    row = {"tokens": tokens, "masks": masks}
    return {**row, "messages": messages} if include_messages else row


def _find_start(tokenizer: Any, before: Sequence[Any], tokens: Sequence[int]) -> int:
    """Where a message begins: behind the generation prompt of what is before it."""
    try:
        prefix = _list_ids(tokenizer.apply_chat_template(list(before), add_generation_prompt=True))
    except Exception:  # foreign templates; some need a message
        if before:
            raise
        prefix = []
    return min(len(prefix), len(tokens))


def _find_end(tokenizer: Any, tokens: list[int]) -> int:
    """Where a row ends if its reply was cut: before the end token that the template adds."""
    eos = tokenizer.eos_token_id
    if eos not in tokens:
        return len(tokens)
    at = len(tokens) - 1 - tokens[::-1].index(eos)
    return at if not tokenizer.decode(tokens[at + 1 :]).strip() else len(tokens)


def _list_ids(ids: Any) -> list[int]:
    """A list of ids. Newer tokenizers of Hugging Face give a dict."""
    return list(ids["input_ids"] if not isinstance(ids, list) else cast(list[int], ids))
