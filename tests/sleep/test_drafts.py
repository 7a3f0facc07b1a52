"""Drafts of tasks: what was accepted, which files belong to it, and the split that a task is in for good."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.sleep.drafts import assign_splits, draft_task, find_accepted, judge_mood, list_objections, recover_files
from ludus.transcripts.past_session import PastSession
from ludus.types import Call, Message, Score


def make_session(*turns: tuple[str, str], **fields) -> PastSession:
    messages = tuple(Message(role, text) for role, text in turns)  # pyright: ignore[reportArgumentType]
    users = [text for role, text in turns if role == "user"]
    return PastSession(
        id="s", format="openai", path="x", messages=messages, request=users[0], feedback=tuple(users[1:]), **fields
    )


@pytest.mark.parametrize(
    ("text", "mood"),
    [
        ("No, use ISO dates", "objection"),
        ("that's wrong", "objection"),
        ("the total is missing", "objection"),
        ("You forgot the unit", "objection"),
        ("We always sign with Ops", "objection"),
        ("Thanks!", "praise"),
        ("great, that works", "praise"),
        ("Now add a column for tax", "request"),
        ("What about Peru?", "request"),
    ],
)
def test_moods(text: str, mood: str):
    assert judge_mood(text) == mood


def test_the_accepted_answer_is_the_last_one_that_nobody_refused():
    session = make_session(
        ("user", "Sum it"), ("assistant", "4"), ("user", "No, in kg"), ("assistant", "4 kg"), ("user", "Thanks!"),
        ("assistant", "You are welcome."),
    )  # fmt: skip
    assert find_accepted(session) == "4 kg" and list_objections(session) == ("No, in kg",)


def test_a_new_request_accepts_the_answer_before_it():
    session = make_session(
        ("user", "Sum it"),
        ("assistant", "4"),
        ("user", "Now plot a chart"),
        ("assistant", "Here."),
        ("user", "No, red"),
    )
    assert find_accepted(session) == "4" and list_objections(session) == ()


def test_a_session_that_ends_with_an_objection_makes_no_task():
    session = make_session(("user", "Sum it"), ("assistant", "4"), ("user", "still wrong"))
    assert draft_task(session) == "no answer that the user accepted"


def test_a_rollout_that_did_not_pass_makes_no_task():
    session = make_session(("user", "Sum it"), ("assistant", "4"), score=Score.of(0.0))
    assert draft_task(session) == "its rollout did not pass"


# ---- files ----------------------------------------------------------------------------------------------------------


def make_work(*calls: tuple[str, dict, str], files: tuple[str, ...] = (), project: str = "/p") -> PastSession:
    messages = [Message("user", "Fix it")]
    for number, (name, arguments, result) in enumerate(calls):
        call = Call(str(number), name, json.dumps(arguments))
        messages += [Message("assistant", "", (call,)), Message("tool", result, call_id=str(number))]
    messages.append(Message("assistant", "Done."))
    return PastSession(
        id="s", format="claude-code", path="x", project=project, messages=tuple(messages), request="Fix it", files=files
    )


def test_files_are_followed_through_reads_edits_and_writes():
    session = make_work(
        ("Read", {"file_path": "/p/a.py"}, "     1\tx = 1\n     2\ty = 2"),
        ("Edit", {"file_path": "/p/a.py", "old_string": "x = 1", "new_string": "x = 3"}, "ok"),
        ("Write", {"file_path": "/p/sub/b.txt", "content": "new"}, "ok"),
        files=("/p/a.py", "/p/sub/b.txt"),
    )
    assert recover_files(session) == ({"a.py": "x = 1\ny = 2\n"}, {"a.py": "x = 3\ny = 2\n", "sub/b.txt": "new"})
    draft = draft_task(session)
    assert not isinstance(draft, str) and draft.results == {"a.py": "x = 3\ny = 2\n", "sub/b.txt": "new"}


@pytest.mark.parametrize("path", ["/etc/passwd", "~/.ssh/id", "/p/../etc/x", "../x"])
def test_files_outside_of_the_project_make_no_task(path: str):
    assert recover_files(make_work(("Read", {"file_path": path}, "x"))) == "it touches files outside of its project"


def test_files_that_are_not_known_make_no_task():
    edit = make_work(("Edit", {"file_path": "/p/a", "old_string": "x", "new_string": "y"}, "ok"))
    assert recover_files(edit) == "an edit of a file whose content is not in the session"
    assert "such as c.txt" in str(recover_files(make_work(files=("/p/c.txt",))))


# ---- splits ---------------------------------------------------------------------------------------------------------


def make_drafts(count: int) -> list[tuple[str, str, str]]:
    return [(f"{random.Random(n).getrandbits(64):016x}", f"s{n}", f"order {n} of {n * 7}") for n in range(count)]


def test_splits_have_their_shares():
    found = list(assign_splits(make_drafts(40), {}).values())
    assert [found.count(split) for split in ("train", "selection", "test")] == [20, 10, 10]


@settings(max_examples=30)
@given(st.integers(0, 20), st.integers(0, 20), st.randoms())
def test_splits_stay_and_do_not_depend_on_the_order(first: int, more: int, order: random.Random):
    drafts = make_drafts(first + more)
    before = assign_splits(drafts[:first], {})
    shuffled = order.sample(drafts, len(drafts))
    after = assign_splits(shuffled, before)
    assert before.items() <= after.items() and len(after) == len(drafts)
    assert after == assign_splits(drafts, before)


def test_what_belongs_together_is_in_one_split():
    drafts = make_drafts(12)
    drafts += [(f"a{n}", "s1", f"another request {n} of that session") for n in range(3)]
    drafts.append(("b", "other", "Order 2 of 14!"))  # the same words as in another session
    found = assign_splits(drafts, {})
    assert len({found[key] for key, session, _ in drafts if session == "s1"}) == 1
    assert found["b"] == found[drafts[2][0]]


def test_a_new_request_like_a_sealed_one_is_sealed():
    drafts = [("a", "s1", "total of march"), ("b", "s2", "Total of March")]
    assert assign_splits(drafts, {"a": "test"}) == {"a": "test", "b": "test"}
