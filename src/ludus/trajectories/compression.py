"""Cut trajectories to a number of tokens: the beginning and the end stay, a summary takes the place of the middle.

    system, user, first reply | middle ──> one summary | the last messages

A reply and the results of its calls are one unit: they stay or go together. Units go from the beginning of the middle
on, until the rest and the summary fit. What stays is not changed, except that the system text says that there is a
summary, and that a user's message which follows the summary has it before its own words: two messages of the user in a
row are refused by many chat templates. What is cut is decided here, by pure functions; who writes the summary is not.

A row is in OpenAI's form (`messages`, as the shards of a batch have it) or in ShareGPT's (`conversations`).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from msgspec import Struct

from ludus.chat_form import get_function
from ludus.types import JsonObject

MARK = "[CONTEXT SUMMARY]:"
"""How every summary begins."""
NOTICE = f"Some earlier messages of this conversation are left out. The message that begins with {MARK} sums them up."
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "function": "tool", "observation": "tool"}
HEAD, TAIL = 1500, 500
"""How many characters of the beginning and of the end of a message the writer of a summary sees."""

CountTokens = Callable[[str], int]


class CompressionRules(Struct, frozen=True, kw_only=True):
    """How far a trajectory is cut."""

    tokens: int
    """The most tokens of a trajectory."""
    summary_tokens: int = 750
    """The most tokens of a summary."""
    keep_last: int = 4
    """How many messages at the end stay, at least."""
    frame: int = 4
    """What a chat template adds to each message, in tokens."""
    marks: int = 48
    """What a summary adds beside its words: its mark, and the notice in the system text."""


class Part(NamedTuple):
    """One message of a row."""

    role: str
    text: str
    """All that a model reads of it: thinking, words, calls."""
    tokens: int
    item: JsonObject
    """As the row has it."""


class Conversation(NamedTuple):
    """The messages of a row, and where the row has them."""

    column: str
    parts: Sequence[Part]
    tools: int
    """The tokens of the definitions of tools."""

    def count(self, rules: CompressionRules) -> int:
        return self.tools + sum(part.tokens + rules.frame for part in self.parts)


class Cut(NamedTuple):
    """Which messages a summary takes the place of."""

    start: int
    stop: int
    fits: bool
    """Whether the rest fits with a summary."""


# ---- reading rows -------------------------------------------------------------------------------------------------


def read_conversation(row: Mapping[str, Any], count: CountTokens) -> Conversation:
    """The messages of a row.

    Raises:
        ValueError: it has none, or they are of another form.
    """
    column = next((name for name in ("messages", "conversations") if isinstance(row.get(name), list)), "")
    if not column:
        raise ValueError("it has neither messages nor conversations")
    read = _read_chat if column == "messages" else _read_sharegpt
    parts: list[Part] = []
    for item in cast(list[Any], row[column]):
        if not isinstance(item, dict):
            raise ValueError(f"{column}: a message is not an object")
        role, text = read(cast(JsonObject, item))
        parts.append(Part(role, text, count(text), cast(JsonObject, item)))
    tools = row.get("tools") or ""
    return Conversation(column, parts, count(tools if isinstance(tools, str) else json.dumps(tools)) if tools else 0)


def _read_chat(item: JsonObject) -> tuple[str, str]:
    content = item.get("content")
    words = content if isinstance(content, str) else json.dumps(content or "", ensure_ascii=False)
    calls = item.get("tool_calls")
    more = (item.get("reasoning_content"), words, json.dumps(calls, ensure_ascii=False) if calls else "")
    return str(item.get("role")), "\n".join(str(text) for text in more if text)


def _read_sharegpt(item: JsonObject) -> tuple[str, str]:
    role = str(item.get("from"))
    return SHAREGPT_ROLES.get(role, role), str(item.get("value") or "")


# ---- deciding -----------------------------------------------------------------------------------------------------


def plan_cut(conversation: Conversation, rules: CompressionRules) -> Cut | None:
    """What to cut so that the rest fits; None if it fits as it is. A cut of nothing does not fit: all is protected."""
    excess = conversation.count(rules) - rules.tokens
    if excess <= 0:
        return None
    units = list_units([part.role for part in conversation.parts])
    start, end = _find_middle(conversation, units, rules)
    excess += rules.summary_tokens + rules.frame + rules.marks
    stop = start
    for first, last in units:
        if first < start or first >= end:
            continue
        if excess <= 0:
            break
        excess -= sum(part.tokens + rules.frame for part in conversation.parts[first:last])
        stop = last
    return Cut(start, stop, excess <= 0 and stop > start)


def list_units(roles: Sequence[str]) -> list[tuple[int, int]]:
    """Where the units of a conversation begin and end: a message, with the results of its calls."""
    starts = [place for place, role in enumerate(roles) if role != "tool" or place == 0]
    return list(zip(starts, [*starts[1:], len(roles)], strict=True))


def _find_middle(
    conversation: Conversation, units: Sequence[tuple[int, int]], rules: CompressionRules
) -> tuple[int, int]:
    """Where the middle begins and ends: after the first reply, and before the unit of the last messages."""
    parts = conversation.parts
    replies = (last for first, last in units if parts[first].role == "assistant")
    start, tail = next(replies, len(parts)), len(parts) - rules.keep_last
    return start, max((first for first, _ in units if first <= tail), default=0)


# ---- writing rows -------------------------------------------------------------------------------------------------


def replace_middle(row: Mapping[str, Any], conversation: Conversation, cut: Cut, summary: str) -> JsonObject:
    """The row with a summary in place of what is cut."""
    column, parts = conversation.column, conversation.parts
    before = [_add_notice(column, part) for part in parts[: cut.start]]
    after = [part.item for part in parts[cut.stop :]]
    words = f"{MARK} {summary}"
    if cut.stop < len(parts) and parts[cut.stop].role == "user":
        after[0] = _put_before(column, after[0], words)
    else:
        after.insert(
            0, {"role": "user", "content": words} if column == "messages" else {"from": "human", "value": words}
        )
    return {**row, column: [*before, *after]}


def _add_notice(column: str, part: Part) -> JsonObject:
    name = "content" if column == "messages" else "value"
    if part.role != "system" or not isinstance(part.item.get(name), str):
        return part.item
    return {**part.item, name: f"{part.item[name]}\n\n{NOTICE}"}


def _put_before(column: str, item: JsonObject, words: str) -> JsonObject:
    name = "content" if column == "messages" else "value"
    if isinstance(item.get(name), list):
        return {**item, name: [{"type": "text", "text": words}, *item[name]]}
    return {**item, name: f"{words}\n\n{item.get(name) or ''}"}


def shorten_text(text: str, count: CountTokens, most: int) -> str:
    """The beginning of a text that has at most so many tokens."""
    while (size := count(text)) > most and text:
        text = text[: max(0, min(len(text) - 1, len(text) * most // size))]
    return text


# ---- what a summary is made of ------------------------------------------------------------------------------------


def list_contents(parts: Iterable[Part]) -> str:
    """A summary without a model: what was done, counted. It claims nothing about what came of it."""
    parts = list(parts)
    roles = Counter(part.role for part in parts)
    calls = Counter(name for part in parts for name in _list_calls(part.item))
    said = ", ".join(f"{roles[role]} of the {role}" for role in ("user", "assistant", "tool") if roles[role])
    words = f"{len(parts)} messages are left out ({said})."
    if calls:
        words += (
            " Tools that were called there: "
            + ", ".join(f"{name} {times}" for name, times in calls.most_common())
            + "."
        )
    return words


def _list_calls(item: JsonObject) -> list[str]:
    """The names of the tools that a message calls."""
    if "tool_calls" in item:
        return [str(get_function(call).get("name")) for call in item["tool_calls"] or ()]
    found = str(item.get("value") or "").split("<tool_call>")[1:]
    return [name for text in found if (name := _read_name(text))]


def _read_name(text: str) -> str:
    try:
        call = json.loads(text.partition("</tool_call>")[0])
        return str(call["name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def show_parts(parts: Iterable[Part]) -> str:
    """The messages that are cut, for the model that sums them up. Of long ones, the beginning and the end."""
    return "\n\n".join(f"[{part.role}]\n{_abbreviate(part.text)}" for part in parts)


def _abbreviate(text: str) -> str:
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]}\n…\n{text[-TAIL:]}"
