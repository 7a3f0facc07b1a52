"""Sessions are found by the message objects that callers hold."""

import gc

from ludus.tokens.session_index import SessionIndex
from ludus.types import Message


def test_a_copy_leads_to_its_session_and_back_to_the_original():
    index = SessionIndex[str]()
    kept = Message("assistant", "Hi.")
    copied = index.register_copy(kept, "one")
    assert copied == kept and copied is not kept
    user = Message("user", "And?")
    session, messages = index.find((copied, user))
    assert session == "one"
    assert messages[0] is kept and messages[1] is user


def test_the_last_known_reply_decides():
    index = SessionIndex[str]()
    one = index.register_copy(Message("assistant", "One."), "first")
    two = index.register_copy(Message("assistant", "Two."), "second")
    assert index.find((one, two))[0] == "second"
    assert index.find((two, one))[0] == "first"


def test_equal_messages_are_not_the_same_conversation():
    index = SessionIndex[str]()
    kept = Message("assistant", "Hi.")
    copied = index.register_copy(kept, "one")
    again = index.register_copy(kept, "two")
    assert index.find((copied,))[0] == "one"
    assert index.find((again,))[0] == "two"
    assert index.find((Message("assistant", "Hi."),)) == (None, [kept])
    assert index.find((kept,))[0] is None


def test_an_entry_ends_with_the_copy():
    index = SessionIndex[str]()
    copied = index.register_copy(Message("assistant", "Hi."), "one")
    assert len(index) == 1
    del copied
    gc.collect()
    assert len(index) == 0
