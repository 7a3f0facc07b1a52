"""How many tokens a text may be, before a server has counted them: four characters each.

Good enough to reserve a budget and to pace requests; never used where a count exists.
"""

from collections.abc import Sequence

from ludus.types import Message, Sampling, ToolSpec, to_json

REPLY = 1024
"""What a reply is taken to be when nothing limits it."""


def text_tokens(text: str) -> int:
    return (len(text) + 3) // 4


def prompt_tokens(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    size = sum(len(m.content) + 8 for m in messages)
    size += sum(len(call.name) + len(call.arguments) for m in messages if m.calls for call in m.calls)
    if tools:
        size += len(to_json(tools))
    return (size + 3) // 4


def reply_tokens(sampling: Sampling) -> int:
    return REPLY if sampling.max_tokens is None else sampling.max_tokens
