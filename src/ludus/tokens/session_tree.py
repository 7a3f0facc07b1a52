"""The tree of a session: who said what, the ids that it added, and what that comes to as a record.

A node is a stretch of a conversation: one or more messages that were *given* (rendered by the template, the opening of
the model's reply included), or one reply that was *sampled* by the engine. A node holds only what it added; the ids of
a prompt are those of all nodes from the root down. Nodes are never changed once they have ids, except that a reply
learns how a template shows it (`shape`) when the conversation first goes on behind it.

A `Tree` adds replies and says for each, as `Completion.tokens` and `Completion.splice`, which ids are new and where they
go, so that a record of completions holds each id once.
"""

import math
from collections.abc import Iterator, Sequence

from ludus.tokens import Generation
from ludus.tokens.sequences import TokenSequence, TokenStep, build_sequences
from ludus.types import Message, Splice, Tokens, ToolSpec


class Node:
    """A stretch of a conversation."""

    __slots__ = (
        "answered",
        "calls",
        "children",
        "depth",
        "end",
        "ended",
        "ids",
        "messages",
        "parent",
        "sampled",
        "shape",
        "step",
        "system",
        "thinks",
        "tools",
    )

    def __init__(
        self,
        parent: "Node | None",
        messages: tuple[Message, ...],
        ids: Sequence[int] = (),
        *,
        sampled: bool = False,
        shape: str | None = None,
        ended: bool = False,
        tools: Sequence[ToolSpec] = (),
    ) -> None:
        self.parent = parent
        self.messages = messages
        self.ids = tuple(ids)
        self.sampled = sampled
        self.shape = shape
        """The text that a template makes of it, with a stand-in for what was sampled. None: not known yet."""
        self.ended = ended
        """Whether the last id ends the turn."""
        self.tools = tools
        """What the conversation offers; the same in the whole branch."""
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.end: int = len(self.ids) + (0 if parent is None else parent.end)
        """How many ids the sequence has up to and with this node."""
        self.system: bool = False if parent is None else parent.system
        """Whether there is system text up to here."""
        self.answered: bool = False if parent is None else parent.answered
        """Whether a tool has answered up to here."""
        self.calls: int = 0 if parent is None else parent.calls
        """How many tool calls there are up to here."""
        self.thinks: bool = False if parent is None else parent.thinks
        """Whether a reply since the last user message came with reasoning."""
        self.step: int | None = None
        """The first completion whose sequence passes through here."""
        self.children: list[Node] = []
        for message in messages:
            self._note_message(message)

    def _note_message(self, message: Message) -> None:
        role = message.role
        self.calls += len(message.calls)
        self.system = self.system or role == "system"
        self.answered = self.answered or role == "tool"
        self.thinks = (self.thinks or message.reasoning is not None) if self.sampled else self.thinks and role == "tool"

    @property
    def follows_answer(self) -> bool:
        """Whether it comes right behind the answer of a tool."""
        return self.parent is not None and bool(self.parent.messages) and self.parent.messages[-1].role == "tool"

    def walk_up(self) -> "Iterator[Node]":
        """This node, its parent, and so on, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def collect_path(self) -> "list[Node]":
        """From below the root down to this node."""
        return list(self.walk_up())[::-1]

    def collect_ids(self) -> list[int]:
        """The whole sequence up to and with this node."""
        ids: list[int] = []
        for node in self.collect_path():
            ids += node.ids
        return ids

    def collect_messages(self) -> tuple[Message, ...]:
        return tuple(message for node in self.collect_path() for message in node.messages)


class Tree:
    """Replies, each behind the prompt that it was drawn for."""

    def __init__(self) -> None:
        self.root = Node(None, ())
        self._steps: list[TokenStep] = []
        self._leaves: list[Node] = []
        """The reply of each step."""

    @property
    def steps(self) -> Sequence[TokenStep]:
        """What each completion added, in order."""
        return self._steps

    def build_sequences(self) -> list[TokenSequence]:
        """The rows that the replies come to so far."""
        return build_sequences(self._steps)

    def add_given(
        self, parent: Node, messages: Sequence[Message], ids: Sequence[int], shape: str, tools: Sequence[ToolSpec]
    ) -> Node:
        """Add what was given."""
        node = Node(parent, tuple(messages), ids, shape=shape, tools=tools)
        parent.children.append(node)
        return node

    def add_reply(self, given: Node, message: Message, generated: Generation, *, ended: bool) -> tuple[Node, TokenStep]:
        """Add what was sampled behind a given node."""
        node = Node(given, (message,), generated.ids, sampled=True, ended=ended, tools=given.tools)
        given.children.append(node)
        splice, new = self._find_splice(given)
        step = TokenStep(_make_tokens(new, generated), splice)
        for passed in node.walk_up():
            if passed.step is not None:
                break
            passed.step = len(self._steps)
        self._leaves.append(node)
        self._steps.append(step)
        return node, step

    def _find_splice(self, given: Node) -> tuple[Splice | None, Sequence[int]]:
        """Where a reply's ids join on, and the given ones among them that are new."""
        if not self._steps:
            return None, given.collect_ids()
        last = len(self._steps) - 1
        if given.parent is self._leaves[last]:
            return None, given.ids
        known = next((node for node in given.walk_up() if node.step is not None), None)
        turn = last if known is None or known.step is None else known.step
        start = 0 if known is None else known.end
        ids = given.collect_ids()
        kept = start + count_common(ids[start:], self._leaves[turn].collect_ids()[start:])
        return Splice(turn, kept), ids[kept:]


def _make_tokens(given: Sequence[int], generated: Generation) -> Tokens:
    return Tokens(
        (*given, *generated.ids),
        (False,) * len(given) + (True,) * len(generated.ids),
        (None,) * len(given) + drop_infinite(generated.logprobs),
    )


def drop_infinite(values: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """The values, with None for those that are not finite."""
    if None not in values and math.isfinite(sum(values)):  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownArgumentType]
        return values
    return tuple(value if value is not None and math.isfinite(value) else None for value in values)


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences begin with in common."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
