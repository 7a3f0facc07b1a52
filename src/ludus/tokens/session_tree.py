"""The tree of a session: its messages, the ids that each added, and the record that they make.

A node is a part of a conversation. It is *given* (one or more messages rendered by the template, with the generation
prompt) or *sampled* (one reply of the engine). A node holds only the ids that it added. The ids of a prompt are those
of all nodes from the root down. A node with ids does not change, with one exception: the `shape` of a reply, which is
how the template shows it, is set when the conversation first continues after it.

`Tree.add_reply` returns for each reply which ids are new and where they go (`Completion.tokens`, `Completion.splice`),
so that a record of completions holds each id once.
"""

import math
from collections.abc import Iterator, Sequence

from ludus.errors import ModelError
from ludus.tokens import Generation
from ludus.tokens.sequences import TokenSequence, TokenStep, build_sequences
from ludus.types import Message, Splice, Tokens, ToolSpec

MAX_ID = 2**31
"""Ids are below this in every vocabulary."""


class Node:
    """A part of a conversation."""

    __slots__ = (
        "answered",
        "calls",
        "children",
        "depth",
        "end",
        "ended",
        "has_system",
        "has_thinking",
        "ids",
        "messages",
        "parent",
        "sampled",
        "shape",
        "step",
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
        """Its text as the template renders it, with a stand-in for a sampled reply. None: not known yet."""
        self.ended = ended
        """Whether the last id is a stop token."""
        self.tools = tools
        """The tools that are offered: the same in the whole branch."""
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.end: int = len(self.ids) + (0 if parent is None else parent.end)
        """The number of ids up to the end of this node."""
        self.has_system: bool = False if parent is None else parent.has_system
        """Whether there is a system message up to here."""
        self.answered: bool = False if parent is None else parent.answered
        """Whether there is a tool result up to here."""
        self.calls: int = 0 if parent is None else parent.calls
        """The number of tool calls up to here."""
        self.has_thinking: bool = False if parent is None else parent.has_thinking
        """Whether a reply since the last user message has reasoning."""
        self.step: int | None = None
        """The first completion whose sequence contains this node."""
        self.children: list[Node] = []
        for message in messages:
            self._note_message(message)

    def _note_message(self, message: Message) -> None:
        role = message.role
        self.calls += len(message.calls)
        self.has_system = self.has_system or role == "system"
        self.answered = self.answered or role == "tool"
        self.has_thinking = (
            (self.has_thinking or message.reasoning is not None)
            if self.sampled
            else self.has_thinking and role == "tool"
        )

    @property
    def follows_answer(self) -> bool:
        """Whether it directly follows a tool result."""
        return self.parent is not None and bool(self.parent.messages) and self.parent.messages[-1].role == "tool"

    def walk_up(self) -> "Iterator[Node]":
        """Yield this node, its parent, and so on, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def collect_path(self) -> "list[Node]":
        """The nodes from the root to this node, without the root."""
        return list(self.walk_up())[::-1]

    def collect_ids(self) -> list[int]:
        """All ids up to the end of this node."""
        ids: list[int] = []
        for node in self.collect_path():
            ids += node.ids
        return ids

    def collect_messages(self) -> tuple[Message, ...]:
        """All messages up to the end of this node."""
        return tuple(message for node in self.collect_path() for message in node.messages)


class Tree:
    """Prompts and the replies that were sampled after them."""

    def __init__(self) -> None:
        self.root = Node(None, ())
        self._steps: list[TokenStep] = []
        self._leaves: list[Node] = []
        """The reply of each step."""

    @property
    def steps(self) -> Sequence[TokenStep]:
        """What each completion added, in the order in which they came."""
        return self._steps

    def build_sequences(self) -> list[TokenSequence]:
        """The rows of all replies so far."""
        return build_sequences(self._steps)

    def add_given(
        self, parent: Node, messages: Sequence[Message], ids: Sequence[int], shape: str, tools: Sequence[ToolSpec]
    ) -> Node:
        """Add a node of given messages."""
        node = Node(parent, tuple(messages), ids, shape=shape, tools=tools)
        parent.children.append(node)
        return node

    def add_reply(self, given: Node, message: Message, generated: Generation, *, ended: bool) -> tuple[Node, TokenStep]:
        """Add a reply that was sampled after a given node."""
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
        """Where the ids of a reply's prompt continue the record (None: after the last reply), and which are new."""
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


def check_columns(generated: Generation) -> None:
    """Check that every id has a logprob and is a possible id."""
    ids = generated.ids
    if len(ids) != len(generated.logprobs):
        raise ModelError(f"the engine returned {len(generated.logprobs)} logprobs for {len(ids)} ids")
    if ids and (min(ids) < 0 or max(ids) >= MAX_ID):
        raise ModelError(f"the engine returned an id that no vocabulary has: {min(ids) if min(ids) < 0 else max(ids)}")


def _make_tokens(given: Sequence[int], generated: Generation) -> Tokens:
    return Tokens(
        (*given, *generated.ids),
        (False,) * len(given) + (True,) * len(generated.ids),
        (None,) * len(given) + drop_infinite(generated.logprobs),
    )


def drop_infinite(values: tuple[float | None, ...]) -> tuple[float | None, ...]:
    """Replace values that are not finite by None."""
    if None not in values and math.isfinite(sum(values)):  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownArgumentType]
        return values
    return tuple(value if value is not None and math.isfinite(value) else None for value in values)


def count_common(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix of two sequences."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
