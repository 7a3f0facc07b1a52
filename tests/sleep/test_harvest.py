"""Which sessions count for a skill."""

import pytest

from ludus.skill import Skill
from ludus.sleep.harvest import harvest, list_read, summarize_reasons
from ludus.transcripts.past_session import PastSession, PastSkill
from ludus.types import Message

SKILL = Skill("# Reports\n\nSay the number of the order and its state, in one line.\n")


def make_session(id: str = "a", *skills: PastSkill, system: str = "", ended: float | None = None) -> PastSession:
    messages = (Message("system", system), Message("user", "hello"), Message("assistant", "hi"))
    return PastSession(id=id, format="openai", path="x", messages=messages, request="hello", skills=skills, ended=ended)


def find_reason(session: PastSession) -> str:
    found = harvest([session], "reports", SKILL, read={})
    return found.notes[session.id].reason


@pytest.mark.parametrize(
    ("skills", "system", "reason"),
    [
        ((PastSkill(name="reports", seen=("read",)),), "", ""),
        ((PastSkill(name="reports", seen=("listed", "called")),), "", ""),
        ((PastSkill(name="other", hash=SKILL.hash, seen=("recorded",)),), "", ""),
        ((), f"You are an agent.\n{SKILL.text}", ""),
        ((PastSkill(name="reports", seen=("listed",)),), "", "the skill was listed and not read"),
        ((PastSkill(name="pdf", seen=("read",)),), "", "other skills were in use: pdf"),
        ((), "You are an agent.", "no skill was in use"),
    ],
)
def test_a_session_counts_if_the_skill_was_in_use(skills: tuple[PastSkill, ...], system: str, reason: str):
    assert find_reason(make_session("a", *skills, system=system)) == reason


def test_sessions_with_an_earlier_version_of_the_skill_count():
    earlier = Skill("# Reports\n\nSay the number of the order, and that you are glad to help.\n")
    session = make_session("a", system=f"You are an agent.\n{earlier.text}")
    assert find_reason(session) == "no skill was in use"
    found = harvest([session], "reports", SKILL, read={}, earlier=[earlier])
    assert found.notes["a"].reason == "" and found.versions == {earlier.hash: 1}


def test_the_latest_sessions_are_kept_and_the_others_are_read_later():
    sessions = [make_session(f"s{n}", system=SKILL.text, ended=float(n)) for n in range(5)]
    found = harvest(sessions, "reports", SKILL, read={}, most=2)
    assert [session.id for session in found.sessions] == ["s4", "s3"]
    assert set(list_read({}, list(found.notes.values()))) == {"s3", "s4"}
    assert sum(summarize_reasons(found.notes.values()).values()) == 3


def test_a_session_that_went_on_is_read_again():
    one = make_session("a", system=SKILL.text)
    read = list_read({}, list(harvest([one], "reports", SKILL, read={}).notes.values()))
    assert harvest([one], "reports", SKILL, read=read).sessions == []
    longer = PastSession(
        id="a", format="openai", path="x", messages=(*one.messages, Message("user", "more")), request="hello"
    )
    assert len(harvest([longer], "reports", SKILL, read=read).sessions) == 1


def test_sessions_before_a_day_are_left_out():
    sessions = [make_session("old", system=SKILL.text, ended=10.0), make_session("no-time", system=SKILL.text)]
    found = harvest(sessions, "reports", SKILL, read={}, since=20.0)
    assert [session.id for session in found.sessions] == ["no-time"]


def test_versions_are_counted_where_they_are_recorded():
    sessions = [make_session("a", PastSkill(name="reports", hash="old", seen=("recorded",)))]
    assert harvest(sessions, "reports", SKILL, read={}).versions == {"old": 1}
