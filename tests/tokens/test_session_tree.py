"""The tree of a session, and what it records for each reply."""

import math

import pytest

from ludus.tokens import Generation
from ludus.tokens.session_tree import Node, Tree, count_common, drop_infinite
from ludus.types import Call, Finish, Message, Reasoning, Splice

SYSTEM, USER = Message("system", "Be brief."), Message("user", "Where?")
CALLED = Message("assistant", "I look.", (Call("1", "look", "{}"),), reasoning=Reasoning("hm", "think"))
RESULT = Message("tool", "There.", call_id="1")


def drawn(*ids):
    return Generation(ids=ids, logprobs=tuple(-number / 10 for number in ids), finish=Finish.STOP)


def test_a_node_sums_up_what_is_above_it():
    root = Node(None, ())
    opening = Node(root, (SYSTEM, USER), [1, 2, 3])
    reply = Node(opening, (CALLED,), [4, 5], sampled=True)
    result = Node(reply, (RESULT,), [6])
    assert (root.end, opening.end, reply.end, result.end) == (0, 3, 5, 6)
    assert (root.depth, result.depth) == (0, 3)
    assert (opening.has_system, opening.answered, opening.has_thinking, opening.calls) == (True, False, False, 0)
    assert (reply.has_thinking, reply.calls, reply.follows_answer) == (True, 1, False)
    assert (result.answered, result.has_thinking) == (True, True)
    assert Node(result, (CALLED,), sampled=True).follows_answer
    assert not Node(reply, (USER,)).has_thinking  # a user message ends the round


def test_a_path_is_read_from_the_root_down():
    opening = Node(Node(None, ()), (USER,), [1, 2])
    reply = Node(opening, (CALLED,), [3], sampled=True)
    assert list(reply.walk_up()) == [reply, opening]
    assert reply.collect_path() == [opening, reply]
    assert reply.collect_ids() == [1, 2, 3]
    assert reply.collect_messages() == (USER, CALLED)


def test_replies_that_follow_each_other_need_no_splice():
    tree = Tree()
    opening = tree.add_given(tree.root, (USER,), [1, 2], "", ())
    reply, first = tree.add_reply(opening, CALLED, drawn(3), ended=True)
    assert (first.tokens.ids, first.tokens.sampled, first.splice) == ((1, 2, 3), (False, False, True), None)
    assert first.tokens.logprobs == (None, None, -0.3)
    result = tree.add_given(reply, (RESULT,), [4], "", ())
    _, second = tree.add_reply(result, Message("assistant", "There."), drawn(5), ended=True)
    assert (second.tokens.ids, second.splice) == ((4, 5), None)
    assert [row.tokens.ids for row in tree.build_sequences()] == [(1, 2, 3, 4, 5)]


def test_a_branch_records_where_it_starts_and_only_new_ids():
    tree = Tree()
    opening = tree.add_given(tree.root, (USER,), [1, 2], "", ())
    tree.add_reply(opening, CALLED, drawn(3, 4), ended=True)
    _, second = tree.add_reply(opening, CALLED, drawn(5), ended=True)
    assert (second.splice, second.tokens.ids) == (Splice(0, 2), (5,))
    rewritten = tree.add_given(tree.root, (USER,), [1, 9], "", ())
    _, third = tree.add_reply(rewritten, CALLED, drawn(3), ended=True)
    assert (third.splice, third.tokens.ids) == (Splice(1, 1), (9, 3))
    assert [row.tokens.ids for row in tree.build_sequences()] == [(1, 2, 3, 4), (1, 2, 5), (1, 9, 3)]
    assert len(tree.steps) == 3


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ((-1.0, -2.0), (-1.0, -2.0)),
        ((-1.0, None, -math.inf, math.nan), (-1.0, None, None, None)),
        ((), ()),
    ],
)
def test_values_that_are_not_finite_are_none(values, kept):
    assert drop_infinite(values) == kept


@pytest.mark.parametrize(
    ("one", "other", "count"), [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 9, 3], 1), ([5], [6], 0)]
)
def test_the_common_prefix_of_two_sequences(one, other, count):
    assert count_common(one, other) == count
