"""What happened to a run while it ran: lines of `events.jsonl` in its directory.

An event is something that its outcomes do not show: somebody paused it, changed how many rollouts run at a time or
asked for one again; or nothing moved for a while. `ludus show` prints the last ones.
"""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ludus.encoding import to_json
from ludus.store import RunDir

EVENTS = "events.jsonl"
EventKind = Literal["control", "quiet", "ended", "review"]
"""Somebody changed the run; nothing moved for a while; it ended itself, because of one of its limits; or somebody
reviewed its skill."""


class RunEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    time: float
    """Seconds since 1970."""
    kind: EventKind
    text: str
    """What happened, in words."""
    who: str = ""
    """Who did it, if somebody did."""
    facts: dict[str, Any] = {}


_DECODER = msgspec.json.Decoder(RunEvent)


def append_event(directory: RunDir, kind: EventKind, text: str, *, who: str = "", facts: object = None) -> None:
    plain: dict[str, Any] = msgspec.to_builtins(facts) if facts is not None else {}
    directory.append(EVENTS, to_json(RunEvent(time=time.time(), kind=kind, text=text, who=who, facts=plain)))


def read_events(directory: RunDir) -> Iterator[RunEvent]:
    """The events of a run, in their order. Damaged lines are left out."""
    for line in directory.read_lines(EVENTS):
        with suppress(ValueError, RecursionError):  # msgspec's errors are ValueErrors
            yield _DECODER.decode(line)
