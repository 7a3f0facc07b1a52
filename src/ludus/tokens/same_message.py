"""Whether two messages are the same message in different spellings.

A caller keeps the history in its own form and sends it back each turn. The arguments of a call come back as equal JSON
with other spaces or another order, outer white space is gone, reasoning is left out. It is still the reply that was
sampled. A message with another text, other calls or other reasoning is another message.
"""

from typing import Any, cast

from ludus.tokens.views import show_arguments
from ludus.types import Call, Message


def same_message(one: Message, other: Message) -> bool:
    """Whether two messages have the same meaning."""
    if one is other:
        return True
    if one.role != other.role or one.call_id != other.call_id:
        return False
    if one.role != "assistant":
        return one.content == other.content and one.images == other.images
    return (
        one.content.strip() == other.content.strip()
        and len(one.calls) == len(other.calls)
        and all(map(_same_call, one.calls, other.calls))
        and _same_reasoning(one, other)
    )


def _same_call(one: Call, other: Call) -> bool:
    if one.name != other.name:
        return False
    return one.arguments == other.arguments or _same_value(show_arguments(one), show_arguments(other))


def _same_reasoning(one: Message, other: Message) -> bool:
    if one.reasoning is None or other.reasoning is None:
        return True
    return one.reasoning.text.split() == other.reasoning.text.split()


def _same_value(one: Any, other: Any) -> bool:
    """Whether two values are equal as JSON: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast(dict[str, Any], one), cast(dict[str, Any], other)
        return left.keys() == right.keys() and all(_same_value(left[key], right[key]) for key in left)
    if isinstance(one, list) and isinstance(other, list):
        first, second = cast(list[Any], one), cast(list[Any], other)
        return len(first) == len(second) and all(map(_same_value, first, second))
    return one == other
