"""The nodes of a session's tree: who said what, and the ids that it added.

A node is a stretch of a conversation: one or more messages that were *given* (rendered by the template, the opening of
the model's reply included), or one reply that was *sampled* by the engine. A node holds only what it added; the ids of a
prompt are those of all nodes from the root down. Nodes are never changed once they have ids, except that a reply learns
how a template shows it (`shape`) when the conversation first goes on behind it.
"""

from collections.abc import Iterator, Sequence

from ludus.types import Message, Role, ToolSpec


def _has(messages: Sequence[Message], role: Role) -> bool:
    return any(message.role == role for message in messages)


class Node:
    """A stretch of a conversation."""

    __slots__ = (
        "answered",
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
        self.system: bool = _has(messages, "system") or (parent is not None and parent.system)
        """Whether there is system text up to here."""
        self.answered: bool = _has(messages, "tool") or (parent is not None and parent.answered)
        """Whether a tool has answered up to here."""
        self.thinks = self._thinks()
        """Whether a reply since the last user message came with reasoning."""
        self.step: int | None = None
        """The first completion whose sequence passes through here."""
        self.children: list[Node] = []

    def _thinks(self) -> bool:
        before = self.parent is not None and self.parent.thinks
        if self.sampled:
            return before or any(message.reasoning is not None for message in self.messages)
        return before and all(message.role == "tool" for message in self.messages)

    def upward(self) -> "Iterator[Node]":
        """This node, its parent, and so on, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def path(self) -> "list[Node]":
        """From below the root down to this node."""
        return list(self.upward())[::-1]

    def all_ids(self) -> list[int]:
        """The whole sequence up to and with this node."""
        ids: list[int] = []
        for node in self.path():
            ids += node.ids
        return ids

    def all_messages(self) -> tuple[Message, ...]:
        return tuple(message for node in self.path() for message in node.messages)
