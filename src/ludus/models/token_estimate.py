"""Estimates of token counts before a server has counted: four characters are one token.

They are good enough to reserve a budget and to limit a request rate. Where a real count exists, it is used.
"""

from collections.abc import Sequence

from ludus.encoding import to_json
from ludus.types import Message, Sampling, ToolSpec

REPLY_TOKENS = 1024
"""The estimate for a reply without a limit."""


IMAGE_TOKENS = 800
"""The estimate for a picture of medium size."""


def estimate_text(text: str) -> int:
    return (len(text) + 3) // 4


def estimate_prompt(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    size = sum(len(m.content) + 8 for m in messages)
    size += 4 * IMAGE_TOKENS * sum(len(m.images) for m in messages)
    size += sum(len(call.name) + len(call.arguments) for m in messages if m.calls for call in m.calls)
    if tools:
        size += len(to_json(tools))
    return (size + 3) // 4


def estimate_reply(sampling: Sampling) -> int:
    return REPLY_TOKENS if sampling.max_tokens is None else sampling.max_tokens
