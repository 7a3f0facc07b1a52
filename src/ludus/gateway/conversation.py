"""The conversations of a session, as a tree of messages.

Agents send the whole conversation with every request. `Conversations` stores each message once: it follows the messages
of a request down the tree and adds the new ones. Replies are added below their prompt. The next request finds them by
their meaning (`ludus.tokens.same_message`), not by how the agent wrote them back, and the model gets the same message
objects that it returned. An agent that edits or compacts its history, starts a sub-agent or repeats a request creates a
branch.
"""

from collections.abc import Iterator, Sequence

from ludus.tokens.same_message import same_message
from ludus.types import Message


class MessageNode:
    """A message in the tree of conversations."""

    __slots__ = ("children", "message", "parent", "reply")

    def __init__(self, parent: "MessageNode | None", message: Message, reply: int | None = None) -> None:
        self.parent = parent
        self.message = message
        self.reply = reply
        """The number of the reply; None for a message of the agent."""
        self.children: list[MessageNode] = []

    def walk_up(self) -> "Iterator[MessageNode]":
        """This node and all nodes above it, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def list_messages(self) -> list[Message]:
        """The conversation up to this message, which is included."""
        found: list[Message] = []
        node = self
        while node.parent is not None:
            found.append(node.message)
            node = node.parent
        found.reverse()
        return found

    def split_at_reply(self) -> tuple[int | None, tuple[Message, ...]]:
        """The number of the last reply in the conversation, and the messages after it."""
        after: list[Message] = []
        for node in self.walk_up():
            if node.reply is not None:
                return node.reply, tuple(after[::-1])
            after.append(node.message)
        return None, tuple(after[::-1])


class Conversations:
    """All messages of a session."""

    def __init__(self) -> None:
        self.root = MessageNode(None, Message("system"))

    def follow(self, messages: Sequence[Message], start: MessageNode | None = None) -> MessageNode:
        """The node of the last message. New messages are added."""
        at = start or self.root
        for message in messages:
            at = _find_child(at, message) or _add_child(at, message)
        return at

    def add_reply(self, at: MessageNode, message: Message, number: int) -> MessageNode:
        return _add_child(at, message, number)


def _find_child(at: MessageNode, message: Message) -> MessageNode | None:
    """The latest child with the same message."""
    for child in reversed(at.children):
        if child.message == message or (message.role == "assistant" and same_message(child.message, message)):
            return child
    return None


def _add_child(at: MessageNode, message: Message, reply: int | None = None) -> MessageNode:
    node = MessageNode(at, message, reply)
    at.children.append(node)
    return node
