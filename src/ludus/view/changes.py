"""What has changed in runs on disk, while somebody looks.

Runs belong to other processes. A change shows in the times and sizes of a few files: `run.json`, the store and its log,
`events.jsonl`, `view.json`. They are looked at twice a second while a page listens, and never else. With many runs,
those that no page shows are looked at less often. Pages never ask by themselves.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from ludus.run_events import EVENTS
from ludus.run_info import INFO, LEDGER
from ludus.store import STORE
from ludus.view.model import ChangeEvent
from ludus.view.run_folder import NOTES

WATCHED: Mapping[str, tuple[str, ...]] = {
    "info": (INFO, "summary.json"),
    "store": (STORE, f"{STORE}-wal", LEDGER),
    "events": (EVENTS,),
    "notes": (NOTES,),
}
RunMarks = dict[str, tuple[tuple[int, int], ...]]


def mark_run(path: Path) -> RunMarks:
    """The times and sizes of the files of a run, by what they say."""
    return {what: tuple(_mark_file(path / name) for name in names) for what, names in WATCHED.items()}


def _mark_file(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


class ChangeWatch:
    """Compares the files of runs with how they were at the last look."""

    def __init__(self) -> None:
        self._marks: dict[str, RunMarks] = {}

    def look(self, paths: Mapping[str, Path], *, listed: bool) -> ChangeEvent | None:
        """What has changed since the last look; None if nothing has. `listed`: `paths` are all runs of the folder, so
        one that is new or gone is a change of the list."""
        changed: dict[str, set[str]] = {}
        for id, path in paths.items():
            now, before = mark_run(path), self._marks.get(id)
            if before is None:
                if listed and self._marks:
                    changed[id] = {"list"}
            elif now != before:
                changed[id] = {what for what in now if now[what] != before[what]}
            self._marks[id] = now
        if listed:
            for id in [id for id in self._marks if id not in paths]:
                del self._marks[id]
                changed[id] = {"list"}
        return _make_event(changed) if changed else None


def _make_event(changed: Mapping[str, Iterable[str]]) -> ChangeEvent:
    what = sorted({each for kinds in changed.values() for each in kinds})
    return ChangeEvent(runs=tuple(sorted(changed)), what=tuple(what))
