"""The runs of folders: found at once, read in pieces, and read again only when their files have changed.

Finding runs reads names alone. What a run is and how it goes (`RunCard`) is read from its small files, the index of its
store and its ledger. Cards are kept by the times and sizes of these files, in memory and in a file of the cache folder.
So a folder of a thousand runs is listed at once, and the first time in pieces: what was not read yet is `pending`.

The id of a run is its path below the folder that is shown. Only ids that were found name a directory: no id leads out
of the folders.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from ludus.encoding import to_json
from ludus.errors import ConfigError, StoreError
from ludus.models.ledger import Totals
from ludus.run_info import INFO, LEDGER, ONE_POLICY, find_kind, read_info, read_spent, read_state
from ludus.stats import compute_interval
from ludus.store import CONFIG, STORE
from ludus.view.facts import FactCache, RunFacts
from ludus.view.model import RunCard, RunPage
from ludus.view.paging import DEFAULT, MOST, Parameters, get_section, read_cursor, write_cursor
from ludus.view.training import RunScore, find_reached_reward, find_reached_score

DEPTH = 3
"""How many folders deep runs are looked for: `evaluate --models` puts several into one folder."""
NOTES = "view.json"
"""Tags and a note, in the run directory."""
SCAN_SECONDS = 1.0
"""How long a list of names is used."""
WAIT_SECONDS = 0.15
"""How long a request waits for cards that were not read yet."""
_SIGNED = (INFO, STORE, f"{STORE}-wal", LEDGER, NOTES, "summary.json", "headroom.json")
Signature = tuple[tuple[int, int], ...]


class RunNotes(Struct, frozen=True, kw_only=True):
    """What a person wrote about a run: `view.json` in its directory."""

    tags: tuple[str, ...] = ()
    note: str = ""


def read_notes(path: Path) -> RunNotes:
    """The tags and the note of a run; none if there are none, or the file is damaged."""
    try:
        return msgspec.json.decode((path / NOTES).read_bytes(), type=RunNotes)
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return RunNotes()


def find_runs(folder: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The run directories in a folder. A run has no runs within it."""
    if (folder / CONFIG).is_file():
        yield folder
    elif depth:
        with contextlib.suppress(PermissionError), os.scandir(folder) as entries:
            below = sorted(entry.path for entry in entries if entry.is_dir() and not entry.name.startswith("."))
            for path in below:
                yield from find_runs(Path(path), depth - 1)


def sign_run(path: Path) -> Signature:
    """The times and sizes of the files that a card is read from."""
    return tuple(_sign_file(path / name) for name in _SIGNED)


def _sign_file(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


# ---- one run ------------------------------------------------------------------------------------------------------


def read_card(path: Path, id: str, cache: FactCache) -> RunCard:
    """What is known of a run without reading its rollouts. A run that cannot be read says why."""
    notes = read_notes(path)
    try:
        with cache.open(path) as facts:
            return _read_card(facts, path, id, notes)
    except StoreError as error:
        return _read_unstarted(path, id, notes, str(error))


def _read_unstarted(path: Path, id: str, notes: RunNotes, why: str) -> RunCard:
    """The card of a run without a store: one that has just begun, or is damaged."""
    info = None
    with contextlib.suppress(StoreError):
        info = read_info(path)
    begun = info is not None and not (path / STORE).exists()
    state = read_state(info) if info is not None and begun else "damaged"
    return RunCard(
        id=id,
        path=str(path),
        kind=info.kind if info else "",
        state=state,
        message=why,
        started=info.started if info else _sign_file(path / CONFIG)[0] / 1e9,
        tags=notes.tags,
        note=notes.note,
    )


def _read_card(facts: RunFacts, path: Path, id: str, notes: RunNotes) -> RunCard:
    directory = facts.directory
    info, kind = read_info(path), find_kind(directory)
    rollouts, scored, mean = directory.measure_scores()
    reached = find_score(facts, kind, mean)
    env, model = name_parts(directory.config)
    spent, suspects = _read_totals(path, facts), facts.count("WHERE suspect = 1")
    return RunCard(
        id=id,
        path=str(path),
        kind=kind,
        state=read_state(info) if info else "",
        message=info.message if info else "",
        env=env,
        model=model,
        rollouts=rollouts,
        scored=scored,
        planned=info.planned if info else 0,
        score=reached.value,
        interval=reached.interval,
        measure=reached.measure if reached.value is not None else "",
        mean=reached.value if reached.measure == "mean" else None,
        suspects=suspects,
        mean_without_suspects=_leave_out_suspects(facts) if suspects and kind in ONE_POLICY else None,
        dollars=spent.usage.dollars,
        tokens=spent.usage.tokens,
        budget_dollars=get_section(directory.config, "budget").get("dollars"),
        started=info.started if info else _sign_file(path / CONFIG)[0] / 1e9,
        ended=info.ended if info else 0.0,
        version=info.version if info else "",
        parent=info.parent if info else "",
        tags=notes.tags,
        note=notes.note,
    )


def find_score(facts: RunFacts, kind: str, mean: float | None) -> RunScore:
    """The number that says most about a run: its mean over tasks, or what training has reached."""
    if kind in ONE_POLICY:
        if facts.missing or mean is None:
            return RunScore(mean, "mean")
        means = [value for (value,) in facts.select("avg(score)", "WHERE score IS NOT NULL GROUP BY split, task")]
        low, high = facts.select_one("min(0.0, min(score)), max(1.0, max(score))") or (0.0, 1.0)
        return RunScore(sum(means) / len(means), "mean", compute_interval(means, low, high))
    if kind == "train":
        return find_reached_score(facts.directory)
    if kind == "rl":
        return find_reached_reward(facts.directory)
    if kind == "headroom":
        return _read_headroom(facts.directory.path)
    return RunScore(None)


def _leave_out_suspects(facts: RunFacts) -> float | None:
    means = [
        value for (value,) in facts.select("avg(score)", "WHERE score NOTNULL AND suspect = 0 GROUP BY split, task")
    ]
    return sum(means) / len(means) if means else None


class _HeadroomFile(Struct):
    score: float | None = None


def _read_headroom(path: Path) -> RunScore:
    try:
        found = msgspec.json.decode((path / "headroom.json").read_bytes(), type=_HeadroomFile)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return RunScore(None)
    return RunScore(found.score, "selection")


def _read_totals(path: Path, facts: RunFacts) -> Totals:
    """What a run has spent: by its ledger, or as far as its rollouts say."""
    try:
        spent = sum(read_spent(path).values(), Totals())
    except StoreError:
        spent = Totals()
    if spent.calls:
        return spent
    prompt, completion, dollars = facts.select_one("sum(prompt), sum(completion), sum(dollars)") or (0, 0, 0.0)
    usage = msgspec.structs.replace(
        spent.usage, prompt_tokens=prompt or 0, completion_tokens=completion or 0, dollars=dollars or 0.0
    )
    return msgspec.structs.replace(spent, usage=usage)


def name_parts(recorded: Mapping[str, Any]) -> tuple[str, str]:
    """The names of the environment and of the model."""
    env: dict[str, Any] = get_section(recorded, "env")
    model: dict[str, Any] = recorded.get("model") or recorded.get("trainer") or {}
    return str(env.get("name", "")), str(model.get("name") or model.get("type") or "")


# ---- all runs -----------------------------------------------------------------------------------------------------


class _Kept(Struct, frozen=True):
    signature: Signature
    card: RunCard


class RunFolder:
    """The runs of some folders, as a context manager: it reads them in a thread of its own."""

    def __init__(self, roots: Sequence[Path], cache: Path | None = None) -> None:
        """`cache`: a folder for what can be made again; None: nothing is kept between processes."""
        self.roots = tuple(roots)
        self.facts = FactCache(cache / "facts" if cache else None)
        self._cards = _CardFile(cache / "cards.sqlite" if cache else None)
        self._kept: dict[str, _Kept] = {}
        self._paths: dict[str, Path] = {}
        self._scanned = 0.0
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(1, "ludus-view-cards")
        self._reading = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.shutdown(wait=True, cancel_futures=True)
        self._cards.close()

    def scan(self, *, again: bool = False) -> dict[str, Path]:
        """The directories of all runs by id. Only names are read."""
        with self._lock:
            if again or not self._scanned or time.monotonic() - self._scanned > SCAN_SECONDS:
                self._paths = dict(_name_runs(self.roots))
                self._scanned = time.monotonic()
            return self._paths

    def find(self, id: str) -> Path:
        """The directory of a run. Raises `UnknownRun`."""
        found = self._paths.get(id) or self.scan(again=id not in self._paths).get(id)
        if found is None:
            raise UnknownRun(f"there is no run '{id[:200]}' in {', '.join(map(str, self.roots))}")
        return found

    def get_card(self, id: str) -> RunCard:
        """The card of a run, as its files are now."""
        path = self.find(id)
        signature = sign_run(path)
        kept = self._kept.get(id)
        if kept is None or kept.signature != signature:
            kept = self._kept[id] = _Kept(signature, read_card(path, id, self.facts))
            self._cards.put(path, kept)
        return _refresh(kept.card, path)

    def list_cards(self, wait: float = WAIT_SECONDS) -> list[RunCard]:
        """The cards of all runs. Those that could not be read within `wait` seconds are pending."""
        end, cards = time.monotonic() + wait, list[RunCard]()
        unread = 0
        for id, path in self.scan().items():
            kept, signature = self._kept.get(id), sign_run(path)
            if kept is None and (found := self._cards.get(path, id)) is not None:
                kept = self._kept[id] = found
            if kept is not None and kept.signature == signature:
                cards.append(_refresh(kept.card, path))
            elif time.monotonic() < end:
                cards.append(self.get_card(id))
            else:
                unread += 1
                old = kept.card if kept else RunCard(id=id, path=str(path), started=_sign_file(path / CONFIG)[0] / 1e9)
                cards.append(msgspec.structs.replace(old, pending=True))
        if unread:
            self._read_rest()
        return cards

    def _read_rest(self) -> None:
        """Read the cards that are pending, beside everything else."""
        with self._lock:
            if self._reading:
                return
            self._reading = True
        self._reader.submit(self._read_all)

    def _read_all(self) -> None:
        try:
            for id in list(self.scan()):
                with contextlib.suppress(UnknownRun):  # it was removed meanwhile
                    self.get_card(id)
        finally:
            self._reading = False

    def list_runs(self, given: Parameters | None = None, wait: float = WAIT_SECONDS) -> RunPage:
        """A page of the list."""
        given = given or Parameters()
        cards = self.list_cards(wait)
        chosen = [card for card in cards if _keeps(card, given)]
        sort = given.get("sort") or "-started"
        name, descending = sort.removeprefix("-"), sort.startswith("-")
        if name not in _SORTS:
            raise ConfigError(f"sort: there is no column '{name[:40]}'; known: {', '.join(_SORTS)}")
        known = [card for card in chosen if getattr(card, name) is not None]
        known.sort(key=lambda card: (getattr(card, name), card.id), reverse=descending)
        ordered = known + sorted((card for card in chosen if getattr(card, name) is None), key=lambda card: card.id)
        query = ("runs", sort, [given.get_all(each) for each in ("q", *_FILTERS)])
        limit, start = given.get_whole("limit", DEFAULT, 1, MOST), given.get_whole("offset", 0)
        if (place := read_cursor(given.get("cursor"), query)) is not None:
            start = 1 + next((n for n, card in enumerate(ordered) if card.id == place[1]), len(ordered))
        rows = ordered[start : start + limit]
        more = start + limit < len(ordered)
        return RunPage(
            rows=tuple(rows),
            total=len(chosen),
            next=write_cursor(query, 0, rows[-1].id) if more and rows else "",
            pending=sum(card.pending for card in cards),
            choices=_count_choices(cards),
        )


class UnknownRun(StoreError):
    """There is no run with this id."""


_SORTS = (
    *("started", "id", "kind", "state", "env", "model", "score", "dollars", "tokens", "rollouts", "ended", "suspects"),
)
_FILTERS = ("kind", "state", "env", "model", "tag")


def _keeps(card: RunCard, given: Parameters) -> bool:
    for name in _FILTERS:
        wanted = given.get_all(name)
        values = card.tags if name == "tag" else (getattr(card, name),)
        if wanted and not set(wanted) & set(values):
            return False
    text = f"{card.id} {card.kind} {card.env} {card.model} {card.state} {card.note} {' '.join(card.tags)}".lower()
    return all(word in text for word in given.get("q").lower().split())


def _count_choices(cards: Sequence[RunCard]) -> dict[str, dict[str, int]]:
    counts: dict[str, Counter[str]] = {name: Counter() for name in _FILTERS}
    for card in cards:
        for name in _FILTERS[:-1]:
            if value := getattr(card, name):
                counts[name][value] += 1
        counts["tag"].update(card.tags)
    return {name: dict(count.most_common(100)) for name, count in counts.items()}


def _refresh(card: RunCard, path: Path) -> RunCard:
    """The card with the state of now: a process that was killed changes no file."""
    if card.state != "running":
        return card
    with contextlib.suppress(StoreError):
        info = read_info(path)
        if info is not None:
            return msgspec.structs.replace(card, state=read_state(info))
    return card


def _name_runs(roots: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Runs with their ids. With several folders, an id begins with the name of its folder."""
    names: Counter[str] = Counter()
    for root in roots:
        if not root.is_dir():
            continue
        own = root.resolve().name or "runs"
        names[own] += 1
        prefix = own if names[own] == 1 else f"{own}-{names[own]}"
        for path in find_runs(root):
            below = path.relative_to(root).as_posix()
            if below == ".":
                yield prefix, path
            else:
                yield (f"{prefix}/{below}" if len(roots) > 1 else below), path


class _CardFile:
    """Cards of earlier processes, by the path of the run. Whatever is wrong with the file, it is not used."""

    def __init__(self, file: Path | None) -> None:
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        if file is None:
            return
        with contextlib.suppress(sqlite3.Error, OSError):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(file, check_same_thread=False, timeout=1.0, isolation_level=None)
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.execute("CREATE TABLE IF NOT EXISTS cards (path TEXT PRIMARY KEY, body BLOB, used REAL)")
            self._db.execute("DELETE FROM cards WHERE used < ?", (time.time() - 90 * 86400,))

    def get(self, path: Path, id: str) -> _Kept | None:
        if self._db is None:
            return None
        try:
            with self._lock:
                row = self._db.execute("SELECT body FROM cards WHERE path = ?", (str(path.resolve()),)).fetchone()
            kept = msgspec.json.decode(row[0], type=_Kept) if row else None
        except (sqlite3.Error, ValueError):  # msgspec's errors are ValueErrors
            return None
        return kept and _Kept(kept.signature, msgspec.structs.replace(kept.card, id=id, path=str(path)))

    def put(self, path: Path, kept: _Kept) -> None:
        if self._db is None:
            return
        with contextlib.suppress(sqlite3.Error), self._lock:
            row = (str(path.resolve()), to_json(kept), time.time())
            self._db.execute("INSERT OR REPLACE INTO cards VALUES (?, ?, ?)", row)

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
