"""The index of a run: a row of numbers for each rollout, read page by page.

    store.sqlite: facts  ──────────────────────┐
    cache/<run>.sqlite: facts of older rollouts ┴──> RunFacts ──> pages, sums and groups, by SQL

A store of this version has a row of facts beside each rollout (`ludus.outcome_facts`). Rollouts that an earlier version
wrote have none. Their rows are made once, in pieces, in a file of the cache folder: never in the run, which may be on a
read-only disk or belong to somebody else. Until that is done, pages count what the index has, and say how much it has
not (`missing`). The cache is bounded: when it is full, the files that were used least recently are removed.

A connection is open for one request only. A writer that ends its run while somebody looks is not kept from it.
"""

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ludus.errors import StoreError
from ludus.outcome_facts import COLUMNS, CREATE, INDEX, INSERT, TABLE, OutcomeFacts, make_facts
from ludus.store import STORE, UNJUDGED, RunDir, decode_rollout

CACHE_BYTES = 1_000_000_000
"""The most that the files of the cache take together."""
PIECE = 200
"""Rollouts that are read for the index in one transaction."""
PAGE_CACHE_KB = 48_000
"""Memory of a connection for pages of the database: sums read the same pages several times."""
DAMAGED = "damaged"
"""The stop reason of a rollout whose record cannot be read."""


T = TypeVar("T")
StoreMarks = tuple[tuple[int, int], ...]


class SumShelf:
    """Sums over the index, kept as long as the files of the store do not change. Bounded."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[str, str], tuple[StoreMarks, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, path: Path, name: str, marks: StoreMarks, make: Callable[[], T]) -> T:
        """A value that was computed for these files, or the value that `make` computes now."""
        place = (str(path), name)
        with self._lock:
            found = self._kept.get(place)
            if found is not None and found[0] == marks:
                self._kept.move_to_end(place)
                return found[1]
        value = make()
        with self._lock:
            self._kept[place] = (marks, value)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return value


def mark_store(path: Path, *others: Path) -> StoreMarks:
    """The times and sizes of the files of a store. They are read before the store is: what is kept for them is at worst
    newer than they are, and is made again."""
    marks: list[tuple[int, int]] = []
    for file in (path / STORE, path / f"{STORE}-wal", *others):
        try:
            found = file.stat()
            marks.append((found.st_mtime_ns, found.st_size))
        except OSError:
            marks.append((0, 0))
    return tuple(marks)


class RunFacts:
    """The index of one run, open to read."""

    shelf: SumShelf | None = None
    marks: StoreMarks = ()

    def __init__(self, directory: RunDir, source: str, missing: int) -> None:
        self.directory = directory
        self.source = source
        """What rows are selected from: a table, or a query in brackets."""
        self.missing = missing
        """How many rollouts have no row."""

    def select(self, what: str, rest: str = "", values: Iterable[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of the index. `what` and `rest` are SQL, never texts of users."""
        return self.directory.query(f"SELECT {what} FROM {self.source} {rest}", values)

    def select_one(self, what: str, rest: str = "", values: Iterable[object] = ()) -> tuple[Any, ...] | None:
        return next(self.select(what, rest, values), None)

    def get(self, id: int) -> OutcomeFacts | None:
        row = self.select_one("*", "WHERE id = ?", (id,))
        return None if row is None else OutcomeFacts(*row)

    def list_rows(self, rest: str, values: Iterable[object] = ()) -> list[OutcomeFacts]:
        return [OutcomeFacts(*row) for row in self.select("*", rest, values)]

    def count(self, rest: str = "", values: Iterable[object] = ()) -> int:
        row = self.select_one("count(*)", rest, values)
        return row[0] if row else 0

    def remember(self, name: str, make: Callable[[], T]) -> T:
        """A sum that is computed once for each state of the store."""
        return make() if self.shelf is None else self.shelf.remember(self.directory.path, name, self.marks, make)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.directory.close()


class FactCache:
    """The folder with the rows of older rollouts. None of its files is needed: each can be made again."""

    def __init__(self, folder: Path | None, most: int = CACHE_BYTES) -> None:
        """`folder`: None: there is no cache, and older rollouts are not listed."""
        self._folder = folder
        self._most = most
        self._shelf = SumShelf()

    def open(self, path: Path) -> RunFacts:
        """Open the index of a run for one request.

        Raises:
            StoreError: the run cannot be read.
        """
        cached = self.name_file(path)
        marks = mark_store(path, *([cached] if cached else []))
        directory = RunDir.read(path)
        with contextlib.ExitStack() as undo:
            undo.callback(directory.close)
            list(directory.query(f"PRAGMA cache_size = -{PAGE_CACHE_KB}"))
            stored, own = self._shelf.remember(path, "counts", marks, lambda: _count_all(directory))
            facts = RunFacts(directory, f"main.{TABLE}" if own >= 0 else _NOTHING, stored - max(0, own))
            if facts.missing > 0 and cached is not None and cached.exists():
                facts = _attach(directory, cached, own, stored)
            undo.pop_all()
        facts.shelf, facts.marks = self._shelf, marks
        return facts

    def name_file(self, path: Path) -> Path | None:
        """The file with the rows of a run's older rollouts."""
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]}.sqlite"

    def build(self, path: Path, seconds: float = 1.0) -> int:
        """Make rows of older rollouts for so long. Returns how many are still missing; call it again until it is 0.

        Raises:
            StoreError: the run cannot be read.
        """
        cached = self.name_file(path)
        with RunDir.read(path) as directory:
            (stored,) = next(directory.query("SELECT count(*) FROM outcomes"))
            own = _count_rows(directory, "main")
            if cached is None or stored <= own:
                return 0 if cached is not None else stored - max(0, own)
            with _open_cache(cached) as cache:
                _drop_stale(directory, cache)
                left = _fill(directory, cache, own >= 0, time.monotonic() + seconds)
        self._bound(cached)
        return left

    def _bound(self, keep: Path) -> None:
        """Remove what was used least recently, if the cache is too large."""
        found = [
            (entry.stat(), Path(entry.path)) for entry in os.scandir(keep.parent) if entry.name.endswith(".sqlite")
        ]
        size = sum(stat.st_size for stat, _ in found)
        for stat, file in sorted(found, key=lambda each: each[0].st_mtime):
            if size <= self._most or file == keep:
                continue
            file.unlink(missing_ok=True)
            size -= stat.st_size


_NOTHING = f"(SELECT {', '.join(f'NULL AS {name}' for name in COLUMNS)} LIMIT 0)"


def _count_all(directory: RunDir) -> tuple[int, int]:
    """How many outcomes a store has, and how many rows of facts."""
    return next(directory.query("SELECT count(*) FROM outcomes"))[0], _count_rows(directory, "main")


def _count_rows(directory: RunDir, schema: str) -> int:
    """How many rows a table of facts has; -1 if there is none, or one of another version."""
    names = [name for (name,) in directory.query(f"SELECT name FROM pragma_table_info('{TABLE}', '{schema}')")]
    if tuple(names) != COLUMNS:
        return -1
    return next(directory.query(f"SELECT count(*) FROM {schema}.{TABLE}"))[0]


def _attach(directory: RunDir, cached: Path, own: int, stored: int) -> RunFacts:
    """The index of a run with rows in the cache."""
    try:
        list(directory.query("ATTACH ? AS cache", (f"{cached.absolute().as_uri()}?mode=ro",)))
        rows = _count_rows(directory, "cache")
    except StoreError:  # a file of the cache may be damaged: then it is not used, and is made again
        cached.unlink(missing_ok=True)
        rows = -1
    if rows < 0:
        return RunFacts(directory, f"main.{TABLE}" if own >= 0 else _NOTHING, stored - max(0, own))
    if own < 0:
        return RunFacts(directory, f"cache.{TABLE}", max(0, stored - rows))
    rest = f"SELECT * FROM cache.{TABLE} WHERE id NOT IN (SELECT id FROM main.{TABLE})"
    facts = RunFacts(directory, f"(SELECT * FROM main.{TABLE} UNION ALL {rest})", 0)
    facts.missing = max(0, stored - facts.count())
    return facts


@contextmanager
def _open_cache(file: Path) -> Generator[sqlite3.Connection]:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        db = sqlite3.connect(file, timeout=10.0)
    except sqlite3.Error as error:
        raise StoreError(f"{file}: the cache cannot be used ({error}); remove the file") from error
    try:
        db.execute("PRAGMA synchronous = OFF")  # it can be made again
        db.execute(CREATE.format(""))
        names = tuple(name for (name,) in db.execute(f"SELECT name FROM pragma_table_info('{TABLE}')"))
        if names != COLUMNS:
            db.execute(f"DROP TABLE {TABLE}")
            db.execute(CREATE.format(""))
        db.execute(INDEX.format(""))
        yield db
        db.commit()
    except sqlite3.Error as error:
        file.unlink(missing_ok=True)
        raise StoreError(f"{file}: the cache was damaged ({error}) and is made again") from error
    finally:
        db.close()


def _drop_stale(directory: RunDir, cache: sqlite3.Connection) -> None:
    """Remove rows of rollouts that have changed since, or are gone: failures that were run again, scores of a corrected
    verifier, another run in the same place."""
    cached = list(cache.execute(f"SELECT id, key, score FROM {TABLE}"))
    if not cached:
        return
    now = {
        id: (key, score)
        for key, score, id in directory.query(
            "SELECT key, CASE WHEN score = ? THEN NULL ELSE score END, rollout FROM outcomes", (UNJUDGED,)
        )
    }
    stale = [(id,) for id, key, score in cached if now.get(id) != (key, score)]
    cache.executemany(f"DELETE FROM {TABLE} WHERE id = ?", stale)
    cache.commit()


def _fill(directory: RunDir, cache: sqlite3.Connection, has_own: bool, end: float) -> int:
    """Make rows until all are there, or the time is over. Returns how many are missing."""
    known = {id for (id,) in cache.execute(f"SELECT id FROM {TABLE}")}
    if has_own:
        known |= {id for (id,) in directory.query(f"SELECT id FROM main.{TABLE}")}
    missing = [(id, key) for key, id in directory.query("SELECT key, rollout FROM outcomes") if id not in known]
    missing.sort()
    done = 0
    insert = INSERT.format("")
    while done < len(missing) and (done == 0 or time.monotonic() < end):
        piece = missing[done : done + PIECE]
        cache.executemany(insert, _make_rows(directory, piece))
        cache.commit()
        done += len(piece)
    return len(missing) - done


def _make_rows(directory: RunDir, piece: Sequence[tuple[int, str]]) -> Iterator[OutcomeFacts]:
    for id, key in piece:
        body = directory.read_body(id)
        try:
            if body is None:
                raise ValueError("the record is gone")
            yield make_facts(id, key, decode_rollout(body), len(body))
        except (ValueError, TypeError, RecursionError) as error:  # msgspec's errors are ValueErrors
            yield _make_damaged(id, key, str(error), len(body or b""))


def _make_damaged(id: int, key: str, reason: str, size: int) -> OutcomeFacts:
    """The row of a rollout that cannot be read: it is listed with its reason."""
    texts = dict.fromkeys(("split", "kind", "asked", "model", "policy", "skill", "tools", "phases"), "")
    counts = dict.fromkeys(("answered", "replicate", "turns", "calls", "errors", "prompt", "completion", "sampled"), 0)
    return OutcomeFacts(
        id=id,
        key=key,
        task=DAMAGED,
        attempt=1,
        score=None,
        passed=None,
        soft=None,
        stop=DAMAGED,
        failure=DAMAGED,
        reason=reason[:300],
        dollars=0.0,
        seconds=0.0,
        began=0.0,
        suspect=0,
        exact=0,
        size=size,
        **texts,
        **counts,
    )
