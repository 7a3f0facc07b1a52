"""The conversations of a session, as a tree of messages.

Agents send the whole conversation with every request. A `Conversations` keeps each message once: a request is followed
down the tree as far as its messages are known, and only what is new is added. Replies are put where they belong, so
the next request finds them again, by what they mean (`ludus.tokens.same_message`) and not by how the agent wrote
them back; the model then gets the very message objects that it gave out. An agent that edits its past, compacts it,
starts a sub-agent or asks twice simply branches.
"""

from collections.abc import Iterator, Sequence

from ludus.tokens.same_message import same_message
from ludus.types import Message


class Said:
    """A message at its place in a conversation."""

    __slots__ = ("children", "message", "parent", "reply")

    def __init__(self, parent: "Said | None", message: Message, reply: int | None = None) -> None:
        self.parent = parent
        self.message = message
        self.reply = reply
        """The number of the reply that it is; None for a message that the agent brought."""
        self.children: list[Said] = []

    def upward(self) -> "Iterator[Said]":
        """This message, the one before it, and so on, without the root."""
        said = self
        while said.parent is not None:
            yield said
            said = said.parent

    def messages(self) -> list[Message]:
        """The conversation up to and with this message."""
        found: list[Message] = []
        said = self
        while said.parent is not None:
            found.append(said.message)
            said = said.parent
        found.reverse()
        return found

    def since_reply(self) -> tuple[int | None, tuple[Message, ...]]:
        """The last reply in the conversation, and what came after it."""
        after: list[Message] = []
        for said in self.upward():
            if said.reply is not None:
                return said.reply, tuple(after[::-1])
            after.append(said.message)
        return None, tuple(after[::-1])


class Conversations:
    """Everything that was said in a session."""

    def __init__(self) -> None:
        self.root = Said(None, Message("system"))

    def follow(self, messages: Sequence[Message], start: Said | None = None) -> Said:
        """The place of the last message; what is not known yet is added."""
        at = start or self.root
        for message in messages:
            at = _child(at, message) or _grown(at, message)
        return at

    def add_reply(self, at: Said, message: Message, number: int) -> Said:
        return _grown(at, message, number)


def _child(at: Said, message: Message) -> Said | None:
    """The latest child that says the same."""
    for child in reversed(at.children):
        if child.message == message or (message.role == "assistant" and same_message(child.message, message)):
            return child
    return None


def _grown(at: Said, message: Message, reply: int | None = None) -> Said:
    said = Said(at, message, reply)
    at.children.append(said)
    return said
