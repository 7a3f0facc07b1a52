"""Transcripts in: the sessions of files and folders, of every format.

The format of a file is told by its first lines, not by its name. A folder is walked. No link is followed out of it, nor
within it, and only files that end in `.json` or `.jsonl` are opened; a run directory of Ludus is read as a whole. What
is left out is counted in the report. Nothing is read but what the paths name.
"""

import itertools
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from msgspec.structs import replace

from ludus.errors import ConfigError
from ludus.transcripts import claude_code, codex, own_runs, trajectories
from ludus.transcripts.chat_rows import matches_openai, matches_sharegpt, read_openai, read_sharegpt
from ludus.transcripts.own_runs import is_run, read_run
from ludus.transcripts.past_session import Counts, Format, PastSession
from ludus.transcripts.session_draft import drop_zeros, make_content_id
from ludus.transcripts.transcript_lines import IntakeLimits, open_plain_file, read_document, read_values

OTHER_FORMAT = "files of another format"
OTHER_FILES = "files that are not JSON"
LINKS = "links"
REPEATED = "sessions that were there before"
OTHER_SESSIONS = "sessions of another format"
EMPTY = "files without a session"
_ENDINGS = (".jsonl", ".ndjson", ".json")
_LINES = (".jsonl", ".ndjson")
_PEEKED = 50
"""How many lines tell the format of a file."""

Values = Iterable[Any]
Reader = Callable[[Values, str, "IntakeOptions", Counter[str]], Iterator[PastSession]]


@dataclass(frozen=True)
class IntakeOptions:
    """What is read."""

    format: Format | Literal["auto"] = "auto"
    """Only files of this format; `auto`: the format of each file is detected."""
    headless: bool = False
    """Read sessions of Claude Code and Codex that a program began (`claude -p`, `codex exec`). They are replays and
    jobs in which no user speaks."""
    limits: IntakeLimits = IntakeLimits()


@dataclass(frozen=True)
class ReadFile:
    """What became of one file, or of one run directory."""

    path: str
    format: Format | Literal[""]
    """Empty: none that is known."""
    sessions: int
    dropped: Counts = field(default_factory=dict[str, int])
    """What was left out of the file, apart from what its sessions say of themselves."""


@dataclass
class IntakeReport:
    """What was read, and what was left out. It grows while `read_sessions` goes on."""

    files: list[ReadFile] = field(default_factory=list[ReadFile])
    dropped: Counter[str] = field(default_factory=Counter[str])
    """What was left out of all files and sessions, by kind."""

    def add(self, file: ReadFile) -> None:
        self.files.append(file)
        self.dropped.update(file.dropped)


def read_sessions(
    paths: Sequence[Path], options: IntakeOptions = IntakeOptions(), report: IntakeReport | None = None
) -> Iterator[PastSession]:
    """The sessions of files and folders, one after the other. They are not masked.

    Raises:
        ConfigError: a path does not exist, or a file that is named cannot be read or has another format.
    """
    for path in paths:
        if not path.exists():
            raise ConfigError(
                f"{path}: there is no such file or folder; name a transcript, or a folder with transcripts"
            )
    report = report or IntakeReport()
    known: dict[str, str] = {}
    for path in paths:
        for session in _read_path(path, options, report):
            content = make_content_id(session.messages)
            if known.get(session.id) == content:
                report.dropped[REPEATED] += 1
                continue
            report.dropped.update(session.dropped)
            if session.id in known:
                session = replace(session, id=f"{session.id}~{content[:8]}")
            known[session.id] = content
            yield session


def _read_path(path: Path, options: IntakeOptions, report: IntakeReport) -> Iterator[PastSession]:
    if path.is_dir():
        yield from _read_folder(path, options, report)
        return
    try:
        file = open_plain_file(str(path))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    if file is None:
        raise ConfigError(f"{path} is no plain file: name a transcript, or a folder with transcripts")
    with file:
        found = _FileIntake(str(path), options, report)
        yield from found.read(file)
    if not found.format:
        what = "no transcript in a format that is known" if options.format == "auto" else f"not in {options.format}"
        raise ConfigError(f"{path}: {what}. The formats are {', '.join(get_args(Format))}; a run is read as a folder")


# ---- folders --------------------------------------------------------------------------------------------------------


def _read_folder(path: Path, options: IntakeOptions, report: IntakeReport) -> Iterator[PastSession]:
    """The sessions of a folder and of those in it. Files are opened by the descriptor of their folder, so that a folder
    that is replaced by a link meanwhile leads nowhere."""
    opened = 0
    for place, folders, names, fd in os.fwalk(path, follow_symlinks=False):
        folders.sort()
        links = [name for name in (*folders, *names) if _is_link(name, fd)]
        report.dropped[LINKS] += len(links)
        if is_run(Path(place)):
            folders.clear()
            yield from _read_run(Path(place), options, report)
            continue
        for name in sorted(set(names).difference(links)):
            if not name.endswith(_ENDINGS):
                report.dropped[OTHER_FILES] += 1
            elif opened >= options.limits.files:
                report.dropped["files beyond the limit"] += 1
            else:
                opened += 1
                yield from _read_inside(str(Path(place) / name), name, fd, options, report)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _read_inside(
    path: str, name: str, folder: int, options: IntakeOptions, report: IntakeReport
) -> Iterator[PastSession]:
    """The sessions of a file in a folder."""
    try:
        file = open_plain_file(name, folder)
    except OSError:
        file = None
    if file is None:
        report.dropped["files that cannot be opened"] += 1
        return
    with file:
        yield from _FileIntake(path, options, report).read(file)


def _read_run(path: Path, options: IntakeOptions, report: IntakeReport) -> Iterator[PastSession]:
    dropped, count, format = Counter[str](), 0, ""
    for session in read_run(path, dropped):
        if options.format in ("auto", session.format):
            count, format = count + 1, session.format
            yield session
        else:
            dropped[OTHER_SESSIONS] += 1
    report.add(ReadFile(str(path), format or "ludus", count, drop_zeros(dropped)))


# ---- one file -------------------------------------------------------------------------------------------------------


class _FileIntake:
    """Reads one file."""

    def __init__(self, path: str, options: IntakeOptions, report: IntakeReport) -> None:
        self._path = path
        self._options = options
        self._report = report
        self._dropped = Counter[str]()
        self.format: Format | Literal[""] = ""

    def read(self, file: BinaryIO) -> Iterator[PastSession]:
        """Its sessions. The report gets a line for it."""
        values = self._detect(file)
        count = 0
        if self.format:
            for session in _READERS[self.format](values, self._path, self._options, self._dropped):
                count += 1
                yield session
            if not count and not self._dropped:
                self._dropped[EMPTY] += 1
        else:
            self._dropped[OTHER_FORMAT] += 1
        self._report.add(ReadFile(self._path, self.format, count, drop_zeros(self._dropped)))

    def _detect(self, file: BinaryIO) -> Values:
        """The values of the file; its format is known then."""
        limits = self._options.limits
        if os.fstat(file.fileno()).st_size > limits.file_bytes:
            self._dropped["files that are too long"] += 1
            return ()
        if not self._path.endswith(_LINES):
            dropped = Counter[str]()
            values = self._tell(_list_rows(read_document(file, limits, dropped)))
            if self.format:
                self._dropped.update(dropped)
                return values
            file.seek(0)
        return self._tell(read_values(file, limits, self._dropped))

    def _tell(self, values: Values) -> Values:
        """The same values, after the format was told by the first of them."""
        stream = iter(values)
        head: list[Any] = []
        for value in itertools.islice(stream, _PEEKED):
            head.append(value)
            if found := detect_format(value):
                if self._options.format in ("auto", found):
                    self.format = found
                break
        return itertools.chain(head, stream)


def _list_rows(values: Values) -> Iterator[Any]:
    """A document that is a list of rows, as its rows."""
    for value in values:
        if isinstance(value, list) and not matches_openai(value):  # pyright: ignore[reportUnknownArgumentType]
            yield from value
        else:
            yield value


def detect_format(value: Any) -> Format | None:
    """The format of a file with this value in it; None if the value does not tell."""
    for format, matches in _MARKS.items():
        if matches(value):
            return format
    return None


_MARKS: dict[Format, Callable[[Any], bool]] = {
    "codex": codex.matches,
    "atif": trajectories.matches,
    "sharegpt": matches_sharegpt,
    "gateway": own_runs.matches,
    "openai": matches_openai,
    "claude-code": claude_code.matches,
}
"""In the order in which they are asked: the last is the least particular."""


def _read_claude_code(
    values: Values, path: str, options: IntakeOptions, dropped: Counter[str]
) -> Iterator[PastSession]:
    if session := claude_code.read_file(values, path, options.headless, dropped):
        yield session


def _read_codex(values: Values, path: str, options: IntakeOptions, dropped: Counter[str]) -> Iterator[PastSession]:
    if session := codex.read_file(values, path, options.headless, dropped):
        yield session


_READERS: dict[Format, Reader] = {
    "claude-code": _read_claude_code,
    "codex": _read_codex,
    "openai": lambda values, path, options, dropped: read_openai(values, path, dropped),
    "sharegpt": lambda values, path, options, dropped: read_sharegpt(values, path, dropped),
    "atif": lambda values, path, options, dropped: trajectories.read_trajectories(values, path, dropped),
    "gateway": lambda values, path, options, dropped: own_runs.read_records(values, path, dropped),
}
