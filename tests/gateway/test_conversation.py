"""The tree of conversations."""

from ludus.gateway.conversation import Conversations
from ludus.types import Call, Message

SYSTEM, HI, MORE = Message("system", "Add."), Message("user", "hi"), Message("user", "more")


def test_known_messages_are_found_and_new_ones_added():
    conversations = Conversations()
    first = conversations.follow([SYSTEM, HI])
    assert conversations.follow([SYSTEM, HI]) is first
    assert first.list_messages() == [SYSTEM, HI]
    assert conversations.follow([MORE], first).list_messages() == [SYSTEM, HI, MORE]
    assert [node.message for node in first.walk_up()] == [HI, SYSTEM]
    assert len(conversations.root.children) == 1


def test_a_reply_is_found_however_the_agent_writes_it_back():
    conversations = Conversations()
    prompt = conversations.follow([HI])
    reply = conversations.add_reply(prompt, Message("assistant", "", (Call("1", "add", '{"a": 1, "b": 2}'),)), 0)
    again = Message("assistant", "", (Call("1", "add", '{"b":2,"a":1}'),))
    assert conversations.follow([HI, again]) is reply
    other = Message("assistant", "", (Call("1", "add", '{"a": 7}'),))
    assert conversations.follow([HI, other]) is not reply


def test_the_latest_of_equal_replies_is_continued():
    conversations = Conversations()
    prompt = conversations.follow([HI])
    conversations.add_reply(prompt, Message("assistant", "ok"), 0)
    second = conversations.add_reply(prompt, Message("assistant", "ok"), 1)
    assert conversations.follow([HI, Message("assistant", "ok")]) is second


def test_a_conversation_is_split_at_its_last_reply():
    conversations = Conversations()
    start = conversations.follow([SYSTEM, HI])
    assert start.split_at_reply() == (None, (SYSTEM, HI))
    reply = conversations.add_reply(start, Message("assistant", "ok"), 3)
    assert reply.split_at_reply() == (3, ())
    assert conversations.follow([MORE], reply).split_at_reply() == (3, (MORE,))
    foreign = conversations.follow([Message("assistant", "not ours"), MORE], start)
    assert foreign.split_at_reply() == (None, (SYSTEM, HI, Message("assistant", "not ours"), MORE))
