"""Stores of outcomes, and the run directory, which is one on disk.

    <run>/config.json      the settings, without secrets
          store.sqlite     every outcome, by content address: the truth; the files that agents left, by content; and a
                           row of facts for each outcome, for lists (`ludus.outcome_facts`)
          images/          pictures of messages, each once, by the hash of its content
          lock             held by the one process that may write; contains its pid
          …                derived files (`groups.jsonl`, `summary.json`, …), which can be made again from the store

The key of an outcome is the hash of everything that decides it (`ludus.engine.compute_outcome_key`), so resuming is
running the same loop again: what is found is not run. `put` has committed when it returns, so a process that is killed
after it loses nothing. A power cut may lose the last seconds, but not the consistency of the store. A scored outcome is
not changed by `put`; a failed one is replaced when the same job is run again. An outcome that nothing judges is a
result too (`UNJUDGED`), until a score takes its place. `replace` is for `ludus score --again`.

Files are replaced atomically. Lines are appended whole; readers ignore an incomplete last line, and the next writer
removes it. Secrets that are given at opening are masked in every byte that is written. Two machines that share a
network file system without working `flock` are not supported.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import socket
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from types import NoneType, TracebackType
from typing import Any, Protocol, Self, TypeVar

import msgspec

from ludus.encoding import to_json
from ludus.errors import StoreError
from ludus.images import FOLDER as IMAGES
from ludus.images import IMAGE_MARK, extract_images, restore_images
from ludus.outcome_facts import COLUMNS, CREATE, INDEX, INSERT, TEXTS, TRIGGER, OutcomeFacts, make_facts
from ludus.sandbox.file_tree import CollectedFiles, KeptSizes, join_files, measure_files, split_files
from ludus.types import Failure, Rollout
from ludus.whole_files import take_lock, write_whole

CONFIG = "config.json"
STORE = "store.sqlite"
LOCK = "lock"

REDACTED = b"[redacted]"
MIN_SECRET = 8
"""Shorter "secrets" are placeholders such as `EMPTY`. Masking them would damage transcripts."""

_APPLICATION = 0x4C756475
_VERSION = 1
_TABLES = f"""
BEGIN;
CREATE TABLE rollouts (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE outcomes (key TEXT PRIMARY KEY, score REAL, rollout INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE records (id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_FILES = "CREATE TABLE IF NOT EXISTS files (hash TEXT PRIMARY KEY, body BLOB NOT NULL)"
# Stores of earlier versions do not have it. It is made when a file is first kept. The table of facts is made when a
# store is opened to write; rollouts of earlier versions have no row in it.

# Two tables: bodies are appended in order whatever their keys are, and finding what is done reads no body.

_ROLLOUT = msgspec.json.Decoder(Rollout)
_INSERT_FACTS = INSERT.format("")
_NAME_MARK = f'"{IMAGES}/'.encode()
"""What JSON with the name of a stored picture in it contains."""


class Store(Protocol):
    """Where outcomes and records are kept and found again, by content address. `RunDir` is one on disk."""

    def get(self, key: str) -> Rollout | None: ...

    def put(self, key: str, rollout: Rollout) -> None:
        """Keep an outcome. A scored one under the same key stays as it is."""
        ...

    def keep(self, key: str, rollout: Rollout) -> Rollout:
        """Put an outcome, and return it as every later `get` will."""
        ...

    def read_scores(self) -> Mapping[str, float | None]:
        """The score of every outcome by key, None where it has none."""
        ...

    def list_done(self) -> Set[str]:
        """The keys of all outcomes that are results: they have a score, or nothing judges them. The others failed."""
        ...

    def keep_files(self, files: CollectedFiles, sizes: KeptSizes) -> str:
        """Keep the files that an agent left, each content once. Returns their hash; empty if they are too large, or if
        the store keeps none."""
        ...

    def get_record(self, key: str) -> bytes | None: ...

    def put_record(self, key: str, kind: str, body: bytes) -> bytes:
        """Keep a record and return what is kept: the first one under a key stays."""
        ...

    def read_records(self, kind: str) -> Iterable[tuple[str, bytes]]:
        """Every record of a kind with its key, in the order in which they were stored."""
        ...


UNJUDGED = "unjudged"
"""In the column of scores: the outcome is a result, and nothing judges it."""


def _mark(rollout: Rollout) -> float | str | None:
    """What the column of scores says of a rollout: its score, `UNJUDGED`, or None if it failed."""
    if rollout.score is not None:
        return rollout.score.value
    return UNJUDGED if rollout.failure is None else None


def _may_replace(before: float | str | None, now: float | str | None) -> bool:
    """Whether an outcome may take the place of another under its key: a result that of a failure, a score that of a
    result which was not judged. A score stays."""
    return before is None or (before == UNJUDGED and now is not None)


class MemoryStore:
    """A store that lasts as long as its process."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Rollout] = {}
        self.bodies: dict[str, tuple[str, bytes]] = {}

    def get(self, key: str) -> Rollout | None:
        return self.outcomes.get(key)

    def put(self, key: str, rollout: Rollout) -> None:
        self.keep(key, rollout)

    def keep(self, key: str, rollout: Rollout) -> Rollout:
        stored = self.outcomes.get(key)
        if stored is None or _may_replace(_mark(stored), _mark(rollout)):
            stored = self.outcomes[key] = rollout
        return stored

    def list_done(self) -> set[str]:
        return {key for key, rollout in self.outcomes.items() if rollout.failure is None}

    def read_scores(self) -> dict[str, float | None]:
        return {key: rollout.score.value if rollout.score else None for key, rollout in self.outcomes.items()}

    def keep_files(self, files: CollectedFiles, sizes: KeptSizes) -> str:
        return ""

    def get_record(self, key: str) -> bytes | None:
        found = self.bodies.get(key)
        return found[1] if found else None

    def put_record(self, key: str, kind: str, body: bytes) -> bytes:
        return self.bodies.setdefault(key, (kind, body))[1]

    def read_records(self, kind: str) -> Iterable[tuple[str, bytes]]:
        return ((key, body) for key, (its, body) in self.bodies.items() if its == kind)


class RunDir:
    """An open run directory, as a context manager. `open` opens it to write, with the lock; `read` opens it to read."""

    def __init__(self, path: Path, config: Mapping[str, Any], db: sqlite3.Connection, lock: int | None, mask: "_Mask"):
        self.path = path
        self.config = config
        self._db = db
        self._lock = lock
        self._mask = mask
        self._appending: dict[str, int] = {}
        self._kept: set[str] | None = None
        self._kept_bytes = 0

    @classmethod
    def open(
        cls,
        path: Path,
        config: Mapping[str, Any],
        *,
        resume: bool = False,
        ignore: frozenset[str] = frozenset(),
        secrets: Collection[str] = (),
    ) -> "RunDir":
        """Start a run. With `resume`, continue the run in the directory, or start one if there is none.

        `config` must not contain secrets. On resume it must equal the earlier one, except below the dotted prefixes in
        `ignore`: settings that decide how fast or how far a run goes, not what comes out.

        Raises:
            StoreError: the directory contains other files, another process writes to it, the config differs, or the
                disk is full. The message says what to do.
        """
        mask = _Mask(secrets)
        with _explain_errors(path):
            _refuse_foreign(path)
            path.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as undo:
                lock = _acquire_lock(path)
                undo.callback(os.close, lock)
                new = msgspec.json.decode(mask(to_json(config)), type=dict[str, Any])
                if (path / CONFIG).exists():
                    _check_resume(path, new, resume, ignore)
                _replace_file(path / CONFIG, [msgspec.json.format(to_json(new), indent=2), b"\n"])
                db = _connect(path)
                undo.pop_all()
        return cls(path, new, db, lock, mask)

    @classmethod
    def read(cls, path: Path) -> "RunDir":
        """Open a run to read it, without the lock. Another process may write to it meanwhile."""
        refuse_other_system(path)
        if not (path / CONFIG).is_file():
            raise StoreError(f"{path} is not a run directory: it has no {CONFIG}")
        with _explain_errors(path):
            config = _read_config(path)
            db = _connect_to_read(path)
        return cls(path, config, db, None, _Mask(()))

    def close(self) -> None:
        """Release the lock and the files. It is safe to call it twice."""
        for fd in self._appending.values():
            os.close(fd)
        self._appending.clear()
        if self._lock is not None:
            # Then a finished run is one plain file that can be copied. A reader at this moment only delays that.
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("PRAGMA journal_mode = DELETE")
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- outcomes -------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Rollout | None:
        with _explain_errors(self.path):
            row = self._db.execute(
                "SELECT body FROM outcomes JOIN rollouts ON id = rollout WHERE key = ?", (key,)
            ).fetchone()
        return None if row is None else self._decode(key, row[0])

    def put(self, key: str, rollout: Rollout) -> None:
        """Store an outcome. It is committed on return. A scored outcome under the same key stays as it is."""
        self._put(key, rollout)

    def keep(self, key: str, rollout: Rollout) -> Rollout:
        """Put an outcome, and return it as every later `get` will: masked, or the scored one that was already there."""
        return self._decode(key, self._put(key, rollout))

    def _clean(self, data: bytes) -> bytes:
        """Data as it is written: secrets are masked, and pictures are files of their own."""
        data = self._mask(data)
        return extract_images(data, self._save_image) if IMAGE_MARK in data else data

    def mask_text(self, text: str) -> str:
        """A text without the secrets that were given at opening."""
        return self._mask(text.encode(errors="replace")).decode()

    def _save_image(self, name: str, data: bytes) -> None:
        path = self._resolve_inside(name)
        if not path.exists():
            with _explain_errors(self.path):
                path.parent.mkdir(exist_ok=True)
                _replace_file(path, [data])

    def _put(self, key: str, rollout: Rollout) -> bytes:
        self._check_writable()
        body, score = self._clean(to_json(rollout)), _mark(rollout)
        with _explain_errors(self.path):
            with self._db as db:
                row = db.execute("INSERT INTO rollouts (body) VALUES (?)", (body,)).lastrowid
                added = db.execute("INSERT INTO outcomes VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (key, score, row))
                if added.rowcount:
                    db.execute(_INSERT_FACTS, self._make_facts(row or 0, key, rollout, body))
                    return body
                db.rollback()
            return self._put_again(key, rollout, body, score)

    def _make_facts(self, row: int, key: str, rollout: Rollout, body: bytes) -> OutcomeFacts:
        facts = make_facts(row, key, rollout, len(body))
        return self._mask.clean_facts(facts) if self._mask.is_needed else facts

    def _put_again(self, key: str, rollout: Rollout, body: bytes, score: float | str | None) -> bytes:
        """Put an outcome under a key that has one already. Returns what is stored under it afterwards."""
        with self._db as db:
            before, row = self._fetch("SELECT score, rollout FROM outcomes WHERE key = ?", key)
            if not _may_replace(before, score):
                return self._fetch("SELECT body FROM rollouts WHERE id = ?", row)[0]
            db.execute("UPDATE rollouts SET body = ? WHERE id = ?", (body, row))
            db.execute("UPDATE outcomes SET score = ? WHERE key = ?", (score, key))
            db.execute(_INSERT_FACTS, self._make_facts(row, key, rollout, body))
        return body

    def replace(self, key: str, rollout: Rollout) -> None:
        """Put an outcome in place of the one under the key, scored or not. It is committed on return."""
        self._check_writable()
        body = self._clean(to_json(rollout))
        with _explain_errors(self.path), self._db as db:
            (row,) = self._fetch("SELECT rollout FROM outcomes WHERE key = ?", key)
            db.execute("UPDATE rollouts SET body = ? WHERE id = ?", (body, row))
            db.execute("UPDATE outcomes SET score = ? WHERE key = ?", (_mark(rollout), key))
            db.execute(_INSERT_FACTS, self._make_facts(row, key, rollout, body))

    def _fetch(self, query: str, value: object) -> tuple[Any, ...]:
        """The one row of a query that must have one."""
        row = self._db.execute(query, (value,)).fetchone()
        if row is None:
            raise StoreError(_describe_damage(self.path, "a row is missing"))
        return row

    def read_scores(self) -> dict[str, float | None]:
        """The score of every outcome by key, None where it has none. Reads no rollout."""
        with _explain_errors(self.path):
            query = "SELECT key, nullif(score, ?) FROM outcomes"
            scores: dict[str, Any] = dict(self._db.execute(query, (UNJUDGED,)))
        if not {type(score) for score in scores.values()} <= {float, NoneType}:
            raise StoreError(_describe_damage(self.path, "a score is not a number"))
        return scores

    def list_done(self) -> set[str]:
        """The keys of all outcomes that are results: they have a score, or nothing judges them. Reads no rollout."""
        with _explain_errors(self.path):
            return {key for (key,) in self._db.execute("SELECT key FROM outcomes WHERE score IS NOT NULL")}

    def measure_scores(self) -> tuple[int, int, float | None]:
        """How many rollouts there are, how many have a score, and their mean. Reads no rollout."""
        with _explain_errors(self.path):
            query = "SELECT count(*), count(value), avg(value) FROM (SELECT nullif(score, ?) AS value FROM outcomes)"
            row = self._db.execute(query, (UNJUDGED,)).fetchone()
        return row[0], row[1], row[2]

    def query(self, sql: str, values: Iterable[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Rows of the database itself, for pages that read it by index (`ludus.view.facts`)."""
        with _explain_errors(self.path):
            yield from self._db.execute(sql, tuple(values))

    def read_body(self, row: int) -> bytes | None:
        """The record of the rollout with this number, as it was written."""
        with _explain_errors(self.path):
            found = self._db.execute("SELECT body FROM rollouts WHERE id = ?", (row,)).fetchone()
        return None if found is None else found[0]

    def read_failed(self) -> Iterator[tuple[str, Rollout]]:
        """The outcomes that failed."""
        with _explain_errors(self.path):
            rows = self._db.execute("SELECT key, body FROM outcomes JOIN rollouts ON id = rollout WHERE score IS NULL")
            for key, body in rows:
                yield key, self._decode(key, body)

    def read_failures(self) -> Iterator[Failure]:
        """The failures of the outcomes that have no score."""
        return (rollout.failure for _, rollout in self.read_failed() if rollout.failure)

    def read_outcomes(self) -> Iterator[tuple[str, Rollout]]:
        """Every outcome, in the order in which the jobs first ended."""
        with _explain_errors(self.path):
            rows = self._db.execute("SELECT key, body FROM rollouts JOIN outcomes ON id = rollout ORDER BY id")
            for key, body in rows:
                yield key, self._decode(key, body)

    def restore_images(self, rollout: Rollout) -> Rollout:
        """A rollout of this store with its pictures in place of the names of their files."""
        body = to_json(rollout)
        return _ROLLOUT.decode(restore_images(body, self._load_image)) if _NAME_MARK in body else rollout

    def _load_image(self, name: str) -> bytes:
        with _explain_errors(self.path):
            return self._resolve_inside(name).read_bytes()

    def _decode(self, key: str, body: bytes) -> Rollout:
        try:
            return decode_rollout(body)
        except (ValueError, TypeError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise StoreError(f"{self.path / STORE}: outcome {key} cannot be read ({error}). {_ADVICE}") from error

    # ---- files of agents ------------------------------------------------------------------------------------------

    def keep_files(self, files: CollectedFiles, sizes: KeptSizes) -> str:
        """Keep the files that an agent left, each content once. They are committed on return. Returns their hash; empty
        if they, or the files of the run with them, are larger than `sizes`."""
        if measure_files(files) > sizes.rollout:
            return ""
        self._check_writable()
        tree = split_files(files, self._mask)
        with _explain_errors(self.path):
            kept = self._kept = self._list_kept() if self._kept is None else self._kept
            added = {name: body for name, body in tree.contents.items() if name not in kept}
            size = sum(map(len, added.values()))
            if self._kept_bytes + size > sizes.run:
                return ""
            if added:
                with self._db as db:
                    db.executemany("INSERT INTO files VALUES (?, ?)", added.items())
                kept.update(added)
                self._kept_bytes += size
        return tree.tree

    def read_files(self, tree: str) -> CollectedFiles:
        """The files that were kept under a hash. Raises `StoreError` if they are not there."""
        try:
            return join_files(self._read_content(tree), self._read_content)
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise StoreError(_describe_damage(self.path, f"the files {tree}: {error}")) from error

    def _list_kept(self) -> set[str]:
        """The hashes of all contents that are kept. Counts their bytes."""
        self._db.execute(_FILES)
        sizes: dict[str, int] = dict(self._db.execute("SELECT hash, length(body) FROM files"))
        self._kept_bytes = sum(sizes.values())
        return set(sizes)

    def _read_content(self, name: str) -> bytes:
        with _explain_errors(self.path):
            return self._fetch("SELECT body FROM files WHERE hash = ?", name)[0]

    # ---- records --------------------------------------------------------------------------------------------------

    def get_record(self, key: str) -> bytes | None:
        with _explain_errors(self.path):
            row = self._db.execute("SELECT body FROM records WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put_record(self, key: str, kind: str, body: bytes) -> bytes:
        """Store any other value that a loop must find again. It is committed on return. Returns what is stored, with
        secrets masked: the first record under a key stays."""
        self._check_writable()
        with _explain_errors(self.path), self._db as db:
            kept = self._mask(body)
            added = db.execute(
                "INSERT INTO records (key, kind, body) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (key, kind, kept)
            )
            return kept if added.rowcount else self._fetch("SELECT body FROM records WHERE key = ?", key)[0]

    def read_records(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Every record of a kind with its key, in the order in which they were stored."""
        with _explain_errors(self.path):
            yield from self._db.execute("SELECT key, body FROM records WHERE kind = ? ORDER BY id", (kind,))

    # ---- derived files --------------------------------------------------------------------------------------------

    def write(self, name: str, data: bytes | Iterable[bytes]) -> Path:
        """Replace a file atomically: readers see the old one or the new one. Chunks must be whole records."""
        self._check_writable()
        path = self._resolve_inside(name)
        with _explain_errors(self.path):
            if name in self._appending:
                os.close(self._appending.pop(name))
            _replace_file(path, map(self._clean, [data] if isinstance(data, bytes) else data))
        return path

    def append(self, name: str, line: bytes) -> None:
        """Append one line, given without its newline. An incomplete line at the end is removed first."""
        self._check_writable()
        if b"\n" in line:
            raise ValueError("append: the line contains a newline; pass one line without it")
        with _explain_errors(self.path):
            fd = self._appending.get(name)
            if fd is None:
                self.repair(name)
                fd = os.open(self._resolve_inside(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
                self._appending[name] = fd
            _write_all(fd, self._clean(line) + b"\n")

    def repair(self, name: str) -> int:
        """Remove an incomplete last line. Returns its length in bytes."""
        self._check_writable()
        path = self._resolve_inside(name)
        if not path.exists():
            return 0
        with _explain_errors(self.path), path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            whole = _find_last_line_end(file.fileno(), size)
            file.truncate(whole)
        return size - whole

    def read_lines(self, name: str) -> Iterator[bytes]:
        """The complete lines of a file, without newlines. A file that does not exist has no lines."""
        path = self._resolve_inside(name)
        if not path.exists():
            return
        with _explain_errors(self.path), path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line[:-1]

    def _resolve_inside(self, name: str) -> Path:
        pure = PurePosixPath(name)
        if not name or "\0" in name or pure.is_absolute() or ".." in pure.parts:
            raise ValueError(f"{name!r} is not a file name inside the run directory; see make_safe_name")
        return self.path / pure

    def _check_writable(self) -> None:
        if self._lock is None:
            raise StoreError(f"{self.path} is open for reading only")


T = TypeVar("T")


def decode_record(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """The value of a record of a store. Raises `StoreError` if the record is damaged."""
    try:
        return decoder.decode(body)
    except (ValueError, TypeError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreError(f"a record of the run cannot be read ({error}). {_ADVICE}") from error


_ADVICE = "It was written by another version of Ludus or is damaged: put back a copy, or start again with another --out"


def decode_rollout(body: bytes) -> Rollout:
    """A rollout as `to_json` wrote it."""
    try:
        return _ROLLOUT.decode(body)
    except RecursionError:  # it was written with fewer frames on the stack: a new thread has none
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_ROLLOUT.decode, body).result()


# ---- opening ------------------------------------------------------------------------------------------------------


def _refuse_foreign(path: Path) -> None:
    """Refuse a folder with other files in it. Nothing is written there, not even a lock."""
    if not path.exists():
        return
    if not path.is_dir():
        raise StoreError(f"{path} is a file; name a directory with --out")
    refuse_other_system(path)
    others = sorted(p.name for p in path.iterdir() if p.name != LOCK and not p.name.startswith("."))
    if others and CONFIG not in others:
        raise StoreError(
            f"{path} is not empty ({', '.join(others[:3])}) and not a run directory: name another one with --out"
        )


def refuse_other_system(path: Path) -> None:
    """Raise `StoreError` for a run of SkillOpt, which has a `config.json` too."""
    if (path / STORE).exists() or not all((path / name).is_file() for name in ("runtime_state.json", "history.json")):
        return
    raise StoreError(
        f"{path} is a run of SkillOpt, which Ludus can neither show nor resume. Use its skill with --agent.skill "
        f"{path / 'best_skill.md'}, or train with its settings: ludus train --skillopt {path / CONFIG} --out ANOTHER"
    )


def _acquire_lock(path: Path) -> int:
    """Take the lock. It is an open file, so it is released when the process ends for any reason."""
    fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    if not take_lock(fd):
        owner = os.read(fd, 300).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise StoreError(
            f"{path} is in use by another process (pid {owner}): wait for it or end it, or name another --out"
        )
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return fd


def _check_resume(path: Path, new: Mapping[str, Any], resume: bool, ignore: frozenset[str]) -> None:
    if not resume:
        raise StoreError(f"{path} already holds a run: continue it with --resume, or name another --out")
    old, now = flatten_settings(_read_config(path)), flatten_settings(new)
    changed = [
        f"  {key}: {_format_value(old, key)} → {_format_value(now, key)}"
        for key in sorted(old.keys() | now.keys())
        if (key in old, old.get(key)) != (key in now, now.get(key)) and not _is_below(key, ignore)
    ]
    if changed:
        raise StoreError(
            f"{path} was run with other settings; to resume, use the same ones, or name another --out:\n"
            + "\n".join(changed)
        )


def flatten_settings(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= flatten_settings(value, f"{prefix}{name}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            flat[prefix + name] = value
    return flat


def _format_value(flat: Mapping[str, object], key: str) -> str:
    return json.dumps(flat[key], ensure_ascii=False) if key in flat else "(not set)"


def _is_below(key: str, prefixes: frozenset[str]) -> bool:
    return any(key == prefix or key.startswith(prefix + ".") for prefix in prefixes)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode((path / CONFIG).read_bytes(), type=dict[str, Any])
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreError(f"{path / CONFIG} is damaged ({error}): restore it, or name another --out") from error


def _connect(path: Path) -> sqlite3.Connection:
    with contextlib.ExitStack() as undo:
        db = sqlite3.connect(path / STORE)
        undo.callback(db.close)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA wal_autocheckpoint = 4000")  # fewer fsyncs, which stop the event loop, for 16 MB of disk
        if _is_empty(db):
            db.executescript(_TABLES)
        _check_format(db, path)
        db.execute(CREATE.format(""))
        db.execute(INDEX.format(""))
        db.execute(TRIGGER)
        db.commit()
        undo.pop_all()
    return db


def _connect_to_read(path: Path) -> sqlite3.Connection:
    if not (path / STORE).exists():
        raise StoreError(f"{path}: nothing was run there yet")
    try:
        return _open_reader(path, "mode=ro")
    except sqlite3.OperationalError as error:
        if not getattr(error, "sqlite_errorname", "").startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN")):
            raise
    if os.access(path, os.W_OK):
        return _open_reader(path, "mode=rw")  # a writer was killed during a change: undoing it writes to the file
    # The disk is read-only, and SQLite wants to write beside the file. Nothing can change there, so it need not. What a
    # writer that was killed had only in its log is not seen.
    return _open_reader(path, "mode=ro&immutable=1")


def _open_reader(path: Path, how: str) -> sqlite3.Connection:
    with contextlib.ExitStack() as undo:
        db = sqlite3.connect(f"{(path / STORE).absolute().as_uri()}?{how}", uri=True, check_same_thread=False)
        undo.callback(db.close)
        db.execute("PRAGMA query_only = ON")
        if _is_empty(db):
            raise StoreError(f"{path}: nothing was run there yet")
        _check_format(db, path)
        undo.pop_all()
    return db


def _is_empty(db: sqlite3.Connection) -> bool:
    """Whether the database has no tables: it was just made, or a process was killed before it made them."""
    return db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0


def _check_format(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise StoreError(f"{path / STORE} is the database of another program: name another --out")
    if version != _VERSION:
        raise StoreError(
            f"{path / STORE} has format {version}, this Ludus reads {_VERSION}: use the Ludus that wrote it"
        )


# ---- files --------------------------------------------------------------------------------------------------------


def _replace_file(path: Path, chunks: Iterable[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, chunks)


def _write_all(fd: int, data: bytes) -> None:
    """Write all of the data. On an error the file is restored; if that fails too, an incomplete line remains."""
    start = os.fstat(fd).st_size
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, start)
        raise


def _find_last_line_end(fd: int, size: int, step: int = 1 << 16) -> int:
    """The offset after the last newline."""
    end = size
    while end > 0:
        start = max(0, end - step)
        at = os.pread(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0


_PLAIN = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_RESERVED = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")


def make_safe_name(id: str) -> str:
    """Make a file name from any id. Different ids have different names, also on file systems that ignore case.

    A short id of lower-case letters, digits, `-` and `_` is its own name. Any other id becomes its readable part and a
    hash, joined by `~`, which no plain name contains.
    """
    if _PLAIN.fullmatch(id) and not _RESERVED.fullmatch(id):
        return id
    readable = re.sub(r"[^a-z0-9_-]+", "-", id.lower()).strip("-")[:40]
    digest = hashlib.sha256(id.encode(errors="surrogatepass")).hexdigest()[:32]
    return f"{readable or 'id'}~{digest}"


_TEXTS = [(place, name) for place, name in enumerate(COLUMNS) if name in TEXTS]


class _Mask:
    """Replaces secrets in bytes, both plain and as they are escaped inside JSON text."""

    def __init__(self, secrets: Collection[str]) -> None:
        spellings = {s for secret in secrets if len(secret) >= MIN_SECRET for s in _list_spellings(secret)}
        self._patterns = sorted((s.encode() for s in spellings), key=len, reverse=True)
        self.is_needed = bool(self._patterns)

    def clean_facts(self, facts: OutcomeFacts) -> OutcomeFacts:
        """A row of facts without secrets."""
        texts = {name: self(str(facts[place]).encode()).decode() for place, name in _TEXTS}
        return facts._replace(**texts)

    def __call__(self, data: bytes) -> bytes:
        for pattern in self._patterns:
            if pattern in data:
                data = data.replace(pattern, REDACTED)
        return data


def _list_spellings(secret: str) -> set[str]:
    """The ways a secret may be written. Tool arguments are JSON text inside JSON, so a quote or an umlaut in it may be
    escaped twice."""

    def escape(texts: set[str]) -> set[str]:
        return {json.dumps(text, ensure_ascii=ascii)[1:-1] for text in texts for ascii in (True, False)}

    once = escape({secret})
    return {secret} | once | escape(once)


# ---- errors -------------------------------------------------------------------------------------------------------


class _explain_errors:  # a class and not a generator, because it is entered for every outcome
    """Raises errors of the disk or the database as a `StoreError` that says what to do."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, sqlite3.Error):
            raise StoreError(_explain_sqlite(self._path, error)) from error
        if isinstance(error, UnicodeDecodeError):  # SQLite's message quotes damaged bytes
            raise StoreError(_describe_damage(self._path, error.object.decode(errors="replace"))) from error
        if isinstance(error, OSError):
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(_describe_full_disk(self._path)) from error
            raise StoreError(f"{error.filename or self._path}: {error.strerror or error}") from error


def _explain_sqlite(path: Path, error: sqlite3.Error) -> str:
    store, code = path / STORE, getattr(error, "sqlite_errorname", "")
    if code == "SQLITE_FULL":
        return _describe_full_disk(path)
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or str(error).startswith(_DAMAGE):
        return _describe_damage(path, str(error))
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"{store} is in use by another process ({error}): close the program that has it open, then --resume"
    if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return f"{store} cannot be opened ({error}): check the permissions of the folder"
    return f"{store} cannot be used ({error}): check the disk and its quota, then --resume"


_DAMAGE = ("no such table", "no such column", "Could not decode to UTF-8")
"""How SQLite's messages begin when the file has other contents than Ludus wrote."""


def _describe_damage(path: Path, what: str) -> str:
    return (
        f"{path / STORE} is damaged or not a Ludus store ({what}): put back a copy, or start again with another --out"
    )


def _describe_full_disk(path: Path) -> str:
    return f"disk full while writing {path}: all finished work is kept; free some space, then --resume"
