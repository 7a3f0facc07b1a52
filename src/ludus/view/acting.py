"""Change runs from a page: control one that runs, write tags and notes, review a skill, start a command.

Each action goes the way that the command line goes (`ludus ctl`, `ludus review`, `ludus evaluate`, …), so it is checked
and recorded there. A command is started as a process of its own, in its own process group, with its output in a file:
it does not end with the server.
"""

import getpass
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from ludus.config import assemble
from ludus.config.reading import Layer
from ludus.config.secrets import list_secrets
from ludus.config.tree import SECTIONS
from ludus.control_client import ControlReply, ControlRequest, NoteRequest, StatusRequest, ask_run
from ludus.errors import ConfigError, StoreError
from ludus.reflact.review import ReviewAction, ReviewDecision, find_result, open_review
from ludus.run_events import append_event
from ludus.run_info import read_info, read_state
from ludus.store import RunDir
from ludus.view.model import ActionReply, CommandPreview, LogTail, StartedCommand
from ludus.view.run_folder import NOTES, RunFolder, RunNotes
from ludus.view.training import read_train_settings

VIA = "ludus view"
MOST_TAGS, LONGEST_TAG, LONGEST_NOTE = 50, 100, 20_000
LOG_BYTES = 64 * 1024
_REQUEST = msgspec.json.Decoder(ControlRequest)


def control_run(path: Path, body: bytes) -> ActionReply:
    """Ask a run that runs: pause, resume, stop, set or requeue."""
    try:
        request = _REQUEST.decode(body)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"the body: {error}") from None
    if isinstance(request, StatusRequest):
        raise ConfigError("do: pause, resume, stop, set or requeue")
    reply: ControlReply = ask_run(path, msgspec.structs.replace(request, via=VIA))
    return ActionReply(reply.ok, reply.text)


def write_notes(path: Path, body: bytes) -> RunNotes:
    """Replace the tags and the note of a run."""
    try:
        given = msgspec.json.decode(body, type=RunNotes)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"the body: {error}") from None
    tags = tuple(dict.fromkeys(tag.strip() for tag in given.tags if tag.strip()))
    if len(tags) > MOST_TAGS or any(len(tag) > LONGEST_TAG for tag in tags):
        raise ConfigError(f"tags: at most {MOST_TAGS}, each of at most {LONGEST_TAG} characters")
    if len(given.note) > LONGEST_NOTE:
        raise ConfigError(f"note: at most {LONGEST_NOTE:,} characters")
    notes = RunNotes(tags=tags, note=given.note)
    data = msgspec.json.format(msgspec.json.encode(notes), indent=2) + b"\n"
    try:
        fd, name = tempfile.mkstemp(dir=path, prefix=f".{NOTES}.")
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path / NOTES)
    except OSError as error:
        raise StoreError(f"{path / NOTES} cannot be written: {error.strerror or error}") from None
    with suppress(StoreError):  # of a run on another machine or a damaged one, `view.json` itself is the record
        _note_event(path, f"tags: {', '.join(tags) or 'none'}; {'a note' if given.note else 'no note'}")
    return notes


def _note_event(path: Path, text: str) -> None:
    """Record what a person did: a run that runs writes it itself, because it has the lock."""
    text = text[:1000]
    info = read_info(path)
    if info is not None and read_state(info) == "running":
        ask_run(path, NoteRequest(text=text, via=VIA))
        return
    with RunDir.read(path) as directory:
        recorded, secrets = directory.config, read_run_secrets(directory)
    with RunDir.open(path, recorded, resume=True, secrets=secrets) as directory:
        append_event(directory, "control", text, who=f"{VIA}, {getpass.getuser()}")


# ---- review -------------------------------------------------------------------------------------------------------


class _LineDecision(Struct, forbid_unknown_fields=True):
    line: str
    decision: ReviewAction
    reason: str = ""
    text: str = ""


class _ReviewBody(Struct, forbid_unknown_fields=True):
    decisions: list[_LineDecision]
    by: str = ""
    version: str = "shipped"
    finish: bool = True
    """Whether a new version is made now; else the decisions are only kept."""


def review_skill(path: Path, body: bytes) -> ActionReply:
    """Keep what a person decided about lines, and make a new version of the skill."""
    try:
        given = msgspec.json.decode(body, type=_ReviewBody)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"the body: {error}") from None
    with RunDir.read(path) as directory:
        settings, secrets = read_train_settings(directory), read_run_secrets(directory)
    who = given.by.strip()[:200] or VIA
    with open_review(path, settings, secrets, given.version) as review:
        for each in given.decisions:
            review.decide(
                ReviewDecision(change=each.line, action=each.decision, reason=each.reason, text=each.text, who=who)
            )
        if not given.finish:
            return ActionReply(True, f"{len(given.decisions)} decisions are kept")
        made = review.finish(who)
    place = find_result(path, made).relative_to(path)
    return ActionReply(True, f"review {made.number}: the new version {made.skill.hash} is in {place}")


def read_run_secrets(directory: RunDir) -> tuple[str, ...]:
    """The values of the variables that a run names as secrets, so that a person's words are masked as its own are."""
    sections = {name: value for name, value in directory.config.items() if name in SECTIONS and name != "env"}
    return list_secrets(assemble([Layer("the run's settings", sections)]))


# ---- starting -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Started:
    process: "subprocess.Popen[bytes]"
    line: str
    log: Path


class StartedCommands:
    """The commands that were started from the page."""

    def __init__(self, logs: Path, folder: Path) -> None:
        """`logs`: where output goes; `folder`: the folder that commands run in."""
        self._logs = logs
        self._folder = folder
        self._started: dict[str, _Started] = {}
        self._lock = threading.Lock()

    def start(self, preview: CommandPreview, runs: RunFolder) -> StartedCommand:
        """Start a command. It goes on when the server ends."""
        if preview.problem:
            raise ConfigError(preview.problem)
        self._logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd, name = tempfile.mkstemp(dir=self._logs, prefix="start-", suffix=".log")
        words = [sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())", *preview.words[1:]]
        try:
            process = subprocess.Popen(
                words, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=fd, stderr=fd, start_new_session=True
            )
        except OSError as error:
            raise ConfigError(f"the command cannot be started: {error.strerror or error}") from None
        finally:
            os.close(fd)
        with self._lock:
            self._started[str(process.pid)] = _Started(process, preview.line, Path(name))
        return StartedCommand(line=preview.line, pid=process.pid, log=name, run=_name_run(preview, self._folder, runs))

    def get(self, pid: str) -> LogTail:
        """How a command goes that was started here."""
        with self._lock:
            found = self._started.get(pid)
        if found is None:
            raise ConfigError(f"no command with the number {pid[:20]} was started from this page")
        code = found.process.poll()
        with found.log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read().decode(errors="replace")
        return LogTail(found.process.pid, found.line, code is None, code, text)


def _name_run(preview: CommandPreview, folder: Path, runs: RunFolder) -> str:
    """The id that the run of a command will have."""
    words = list(preview.words)
    out = words[words.index("--out") + 1] if "--out" in words else ""
    if not out or len(runs.roots) != 1:
        return ""
    try:
        return (folder / out).resolve().relative_to(runs.roots[0].resolve()).as_posix()
    except ValueError:
        return ""
