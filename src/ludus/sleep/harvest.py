"""Harvest: which sessions a night works with, and why others are left out.

Only sessions in which the skill was in use count: its text was read, called or given to the agent. They are matched by
the skill's text in a system message, also one that earlier nights have known, by its hash if it is recorded, else by
its name. The paths in a transcript are
words of others: nothing is opened there. A session that an earlier night has read is left out unless it went on since
then.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from ludus.encoding import to_json
from ludus.skill import Skill
from ludus.sleep.night import SessionNote
from ludus.transcripts.masking import mask_session
from ludus.transcripts.past_session import PastSession

SHORTEST_SKILL = 40
"""A skill of fewer characters may stand in a system text by chance."""
READ_BEFORE = "read in an earlier night"
TOO_EARLY = "before --since"


@dataclass
class Harvest:
    """The sessions of a night, masked, the latest first; and a note about every session."""

    sessions: list[PastSession] = field(default_factory=list[PastSession])
    notes: dict[str, SessionNote] = field(default_factory=dict[str, SessionNote])

    def note(self, id: str, *, reason: str = "", tasks: tuple[str, ...] = ()) -> None:
        self.notes[id] = replace(self.notes[id], reason=reason, tasks=tasks)

    @property
    def versions(self) -> dict[str, int]:
        """How many sessions used which version of the skill, where it is recorded."""
        found: dict[str, int] = {}
        for session in self.sessions:
            if used := self.notes[session.id].used:
                found[used] = found.get(used, 0) + 1
        return found


def find_use(session: PastSession, name: str, skill: Skill, earlier: Sequence[Skill] = ()) -> tuple[str, str]:
    """The version of the skill that the session used (empty if it is not recorded), and why it does not count."""
    hash = skill.hash
    if held := next((each for each in (skill, *earlier) if _holds(session, each)), None):
        return held.hash, ""
    mine = [skill for skill in session.skills if skill.name == name or (skill.hash and skill.hash == hash)]
    if used := [skill for skill in mine if skill.used]:
        return next((skill.hash for skill in used if skill.hash), ""), ""
    if mine:
        return "", "the skill was listed and not read"
    others = sorted({skill.name for skill in session.skills if skill.used})
    return "", f"other skills were in use: {', '.join(others[:3])}" if others else "no skill was in use"


def _holds(session: PastSession, skill: Skill) -> bool:
    """Whether a system text has the whole skill in it, as programs that call a model by themselves do it."""
    words = " ".join(skill.body.split())
    systems = (message.content for message in session.messages if message.role == "system")
    return len(words) >= SHORTEST_SKILL and any(words in " ".join(text.split()) for text in systems)


def harvest(
    sessions: Iterable[PastSession],
    name: str,
    skill: Skill,
    *,
    read: Mapping[str, str],
    since: float | None = None,
    most: int = 200,
    earlier: Sequence[Skill] = (),
) -> Harvest:
    """Choose and mask the sessions of a night. `read`: what earlier nights have read, id → digest. `earlier`: versions
    of the skill that were there before, which older sessions have in their system texts."""
    found = Harvest()
    for session in sessions:
        used, reason = find_use(session, name, skill, earlier)
        latest = session.ended or session.begun
        if not reason and since is not None and latest is not None and latest < since:
            reason = TOO_EARLY
        if reason:
            found.notes[session.id] = SessionNote(id=session.id, format=session.format, digest="", reason=reason)
            continue
        masked, counts = mask_session(session)
        digest = hash_session(masked)
        reason = READ_BEFORE if read.get(masked.id) == digest else ""
        found.notes[masked.id] = SessionNote(
            id=masked.id,
            format=session.format,
            digest=digest,
            used=used,
            reason=reason,
            masked=counts,
            dropped=session.dropped,
        )
        if not reason:
            found.sessions.append(masked)
            _drop_oldest(found, most)
    found.sessions.sort(key=lambda each: (-(each.ended or 0.0), each.id))
    return found


def _drop_oldest(found: Harvest, most: int) -> None:
    """Keep the latest sessions: a folder of years does not fit into memory."""
    if len(found.sessions) > most:
        oldest = min(found.sessions, key=lambda each: (each.ended or 0.0, each.id))
        found.sessions.remove(oldest)
        found.note(oldest.id, reason="more than sleep.sessions; it is read in a later night")


def hash_session(session: PastSession) -> str:
    """A hash of what was said, wherever the transcript is."""
    return hashlib.sha256(to_json((session.id, session.messages))).hexdigest()[:16]


def summarize_reasons(notes: Iterable[SessionNote]) -> dict[str, int]:
    """How many sessions were left out, by reason."""
    found: dict[str, int] = {}
    for note in notes:
        if note.reason:
            found[note.reason] = found.get(note.reason, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def find_new(found: Harvest, waiting: Mapping[str, str]) -> list[PastSession]:
    """The sessions that do not wait since an earlier night, or that went on since then."""
    return [session for session in found.sessions if waiting.get(session.id) != found.notes[session.id].digest]


def list_waiting(found: Harvest) -> dict[str, str]:
    """The sessions of a night that had too few tasks: the next one works with them, too."""
    return {session.id: found.notes[session.id].digest for session in found.sessions}


def list_read(before: Mapping[str, str], notes: Sequence[SessionNote]) -> dict[str, str]:
    """What was read, with this night. Sessions that are kept for a later night are not."""
    later = "later night"
    return {**before, **{note.id: note.digest for note in notes if note.digest and later not in note.reason}}
