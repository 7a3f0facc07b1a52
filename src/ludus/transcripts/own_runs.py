"""What Ludus itself recorded: rollouts of a run directory, and sessions of its gateway.

A run directory is read as one value, without its lock: another process may write to it meanwhile. A `sessions.jsonl` of
a gateway can also be read by itself, as a file of lines.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ludus.errors import StoreError
from ludus.gateway.session import SessionRecord, make_turns
from ludus.store import CONFIG, STORE, RunDir
from ludus.transcripts.past_session import Format, PastSession, PastSkill
from ludus.transcripts.session_draft import SessionDraft, as_object, as_text
from ludus.types import Message, Rollout, StopReason

_SESSION = "session"
"""The key of a session's name in `Rollout.details` (`ludus.session_runs`)."""
_FAILED = "rollouts that failed (no fault of the agent)"
_DAMAGED = "run directories that cannot be read"


def is_run(path: Path) -> bool:
    """Whether a folder is a run directory."""
    return all((path / name).is_file() and not (path / name).is_symlink() for name in (CONFIG, STORE))


def read_run(path: Path, dropped: Counter[str]) -> Iterator[PastSession]:
    """The rollouts of a run directory that an agent took part in."""
    try:
        with RunDir.read(path) as run:
            for key, rollout in run.read_outcomes():
                if rollout.failure is not None:
                    dropped[_FAILED] += 1
                elif session := _read_rollout(key, rollout, str(path)):
                    yield session
    except StoreError:
        dropped[_DAMAGED] += 1


def _read_rollout(key: str, rollout: Rollout, path: str) -> PastSession | None:
    origin = rollout.provenance
    format: Format = "gateway" if _SESSION in (rollout.details or {}) else "ludus"
    draft = SessionDraft(format, path, id=key, model=origin.model, usage=rollout.usage, score=rollout.score)
    draft.agent = (
        origin.versions.get("agent", "").replace("@", " ") or f"ludus {origin.versions.get('ludus', '')}".strip()
    )
    if rollout.times is not None:
        draft.note_time(rollout.times.began)
        draft.note_time(rollout.times.began + rollout.seconds)
    for message in (*rollout.opening, *(m for turn in rollout.turns for m in turn.messages)):
        draft.add(message)
    if origin.skill:
        loaded = rollout.skill_use is None or rollout.skill_use.loaded is not False
        draft.skills.append(PastSkill(name="skill", hash=origin.skill, seen=("recorded",) if loaded else ("listed",)))
    return draft.finish()


# ---- the file of a gateway ------------------------------------------------------------------------------------------


def matches(value: Any) -> bool:
    """Whether a line is a session of the gateway."""
    line = as_object(value)
    return bool(as_text(line.get("name"))) and "model" in line and ("exchanges" in line or "requests" in line)


def read_records(values: Iterable[Any], path: str, dropped: Counter[str]) -> Iterator[PastSession]:
    """The sessions of a `sessions.jsonl`."""
    for value in values:
        try:
            record = msgspec.convert(value, SessionRecord)
        except (ValueError, TypeError, RecursionError):  # msgspec's errors are ValueErrors
            dropped["lines of another format"] += 1
            continue
        if not record.exchanges:
            dropped["sessions without a reply"] += 1
        elif session := _read_record(record, path):
            yield session


def _read_record(record: SessionRecord, path: str) -> PastSession | None:
    draft = SessionDraft("gateway", path, model=record.model, usage=record.usage, score=record.score)
    draft.id = f"{record.name}@{record.started:.0f}" if record.started else record.name
    draft.note_time(record.started)
    draft.note_time(record.started + record.seconds)
    for message in _list_messages(record):
        draft.add(message)
    return draft.finish()


def _list_messages(record: SessionRecord) -> list[Message]:
    turns = make_turns(record, StopReason.FINISHED)
    return [*record.opening, *(message for turn in turns for message in turn.messages)]
