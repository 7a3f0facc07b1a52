"""Finds the session of a conversation by the message objects in it.

A model gets whole conversations, not sessions. The replies among the messages are objects that the model itself
returned. As long as the caller holds such an object, it leads back to its session. When no object is left, the session
is freed. For that, a session must not hold the objects that were returned: callers get a copy of the session's message,
and `find` replaces copies by originals. Messages are found by identity, not by value: two rollouts with equal messages
are two conversations.
"""

import copy
import weakref
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from ludus.types import Message

S = TypeVar("S")


class _Entry(NamedTuple, Generic[S]):
    reference: weakref.ref[Message]
    own: Message
    session: S


class SessionIndex(Generic[S]):
    """Sessions by the message objects that callers hold."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[S]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, messages: Sequence[Message]) -> tuple[S | None, list[Message]]:
        """The session of the last known reply, and the messages with every copy replaced by its original."""
        session: S | None = None
        own = list(messages)
        for index, message in enumerate(messages):
            entry = self._entries.get(id(message))
            if entry is not None:
                own[index], session = entry.own, entry.session
        return session, own

    def register_copy(self, message: Message, session: S) -> Message:
        """Copy a session's message for a caller. The copy leads back to the session."""
        copied = copy.copy(message)
        key, entries = id(copied), self._entries
        entries[key] = _Entry(weakref.ref(copied, lambda _: entries.pop(key, None)), message, session)
        return copied
