"""A session while its transcript is read: what every format has in common is put together here."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from ludus.chat_form import decode_arguments
from ludus.encoding import canonical
from ludus.transcripts.past_session import Counts, Format, PastSession, PastSkill
from ludus.transcripts.sightings import find_files, find_skills
from ludus.types import Call, JsonObject, Message, Score, Usage

_TIME_LIMIT = 4_102_444_800.0
"""The year 2100. A later time is one in milliseconds, or none."""


@dataclass
class SessionDraft:
    """What was read so far."""

    format: Format
    path: str
    id: str = ""
    agent: str = ""
    project: str = ""
    model: str = ""
    usage: Usage = Usage()
    score: Score | None = None
    messages: list[Message] = field(default_factory=list[Message])
    said: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """What the user said: the place of the message, and the text without what a program added."""
    skills: list[PastSkill] = field(default_factory=list[PastSkill])
    """Skills that the transcript names outside its messages."""
    dropped: Counter[str] = field(default_factory=Counter[str])
    begun: float | None = None
    ended: float | None = None

    def add(self, message: Message, said: str | None = "") -> None:
        """Add a message. `said`: the words of the user in it; "" if they are the whole message; None if there are
        none."""
        if message.role == "user" and said is not None and (words := (said or message.content).strip()):
            self.said.append((len(self.messages), words))
        self.messages.append(message)

    def note_time(self, value: Any) -> None:
        """Note the time of an entry: ISO 8601, or seconds or milliseconds since 1970."""
        time = read_time(value)
        if time is not None:
            self.begun = time if self.begun is None else min(self.begun, time)
            self.ended = time if self.ended is None else max(self.ended, time)

    def finish(self) -> PastSession | None:
        """The session; None if nothing was said in it."""
        if not any(message.role in ("user", "assistant") for message in self.messages):
            return None
        messages = tuple(self.messages)
        first = next((place for place, message in enumerate(messages) if message.role == "assistant"), len(messages))
        return PastSession(
            id=self.id or make_content_id(messages),
            format=self.format,
            path=self.path,
            agent=self.agent,
            project=self.project,
            begun=self.begun,
            ended=self.ended,
            messages=messages,
            request=self.said[0][1] if self.said else "",
            feedback=tuple(words for place, words in self.said if place > first),
            skills=find_skills(messages, self.skills),
            files=find_files(messages),
            score=self.score,
            model=self.model,
            usage=self.usage,
            dropped=drop_zeros(self.dropped),
        )


def make_content_id(messages: tuple[Message, ...]) -> str:
    return hashlib.sha256(canonical(messages)).hexdigest()[:16]


def drop_zeros(counts: Counts) -> Counts:
    return {kind: count for kind, count in counts.items() if count}


def read_time(value: Any) -> float | None:
    """Seconds since 1970; None if the value is no time."""
    if isinstance(value, str):
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            return None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _TIME_LIMIT * 1000:
        return None
    return value / 1000 if value > _TIME_LIMIT else float(value)


# ---- values of foreign JSON -----------------------------------------------------------------------------------------


def as_object(value: Any) -> JsonObject:
    """The value if it is an object, else an empty one."""
    return cast(JsonObject, value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def list_arguments(call: Call) -> JsonObject:
    return decode_arguments(call.arguments) or {}
