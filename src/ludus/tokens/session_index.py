"""Which session a conversation belongs to, found by the messages in it.

A model is handed whole conversations and no session. The replies among the messages are objects that the model itself
gave out; as long as somebody holds such an object, it leads back to its session, and when nobody does any more, the
session is gone too. For that to work a session must not hold what was given out: callers get a twin of the message that
the session keeps, and `find` turns twins back. Nothing is looked up by value: two rollouts that say the same are two
conversations.
"""

import copy
import weakref
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from ludus.types import Message

S = TypeVar("S")


class _Entry(NamedTuple, Generic[S]):
    twin: weakref.ref[Message]
    own: Message
    session: S


class SessionIndex(Generic[S]):
    """Sessions by the message objects that were given out, as long as these live."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry[S]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, messages: Sequence[Message]) -> tuple[S | None, list[Message]]:
        """The session of the last known reply, and the messages with every twin turned back."""
        session: S | None = None
        own = list(messages)
        for index, message in enumerate(messages):
            held = self._entries.get(id(message))
            if held is not None:
                own[index], session = held.own, held.session
        return session, own

    def register_copy(self, message: Message, session: S) -> Message:
        """A twin of a session's message, that leads back to it."""
        twin = copy.copy(message)
        key, held = id(twin), self._entries
        held[key] = _Entry(weakref.ref(twin, lambda _: held.pop(key, None)), message, session)
        return twin
