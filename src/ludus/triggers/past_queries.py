"""Queries from past sessions: what users asked for when an agent loaded a skill of the catalogue.

A row says what was loaded then, whether that was right or not, so its source is `transcript` until a person has checked
it. Only skills that were loaded before the user spoke again count: later ones are for other requests. Sessions are
masked before anything of them is used.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ludus.catalogue import Catalogue
from ludus.envs.triggers import TRANSCRIPT
from ludus.transcripts.past_session import PastSession
from ludus.transcripts.sightings import find_skills
from ludus.triggers.query_proposals import QUERY_CHARS, ProposedQuery, fold_words, measure_overlap
from ludus.types import Message


@dataclass(frozen=True)
class PastQueries:
    """The rows of past sessions, and what became of the others."""

    rows: list[ProposedQuery] = field(default_factory=list[ProposedQuery])
    left_out: Counter[str] = field(default_factory=Counter[str])


def make_past_queries(
    sessions: Iterable[PastSession], catalogue: Catalogue, known: Collection[str] = ()
) -> PastQueries:
    """A row for each session whose first request made the agent load one skill of the catalogue. `known`: queries that
    there are already.

    Raises:
        ValueError: a session is not masked.
    """
    found, seen = PastQueries(), {fold_words(text) for text in known}
    for session in sessions:
        if session.masked is None:
            raise ValueError(f"session {session.id} is not masked")
        text, used = " ".join(session.request.split()), list_used_first(session, catalogue)
        if why := _find_fault(text, used, seen):
            found.left_out[why] += 1
            continue
        seen.add(fold_words(text))
        overlap = measure_overlap(text, catalogue.get(used[0]).description)
        found.rows.append(ProposedQuery(query=text, skill=used[0], source=TRANSCRIPT, overlap=overlap))
    return found


def _find_fault(text: str, used: Sequence[str], seen: Collection[str]) -> str:
    """Why a session gives no query; empty if it does."""
    if not used:
        return "no skill of the catalogue was loaded for the first request"
    if len(used) > 1:
        return "several skills were loaded for it"
    if not fold_words(text):
        return "no request of a user"
    if len(text) > QUERY_CHARS:
        return f"a request above {QUERY_CHARS:,} characters"
    return "a query that is there already" if fold_words(text) in seen else ""


def list_used_first(session: PastSession, catalogue: Catalogue) -> list[str]:
    """The skills of the catalogue that were loaded before the user spoke again."""
    skills = find_skills(cut_at_feedback(session)) if session.feedback else session.skills
    return [skill.name for skill in skills if skill.used and skill.name in catalogue.names]


def cut_at_feedback(session: PastSession) -> Sequence[Message]:
    """The messages before the user's second one."""
    replied = False
    for number, message in enumerate(session.messages):
        replied = replied or message.role == "assistant"
        if replied and message.role == "user" and session.feedback[0] in message.content:
            return session.messages[:number]
    return session.messages
