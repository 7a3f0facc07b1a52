"""A night: one run of `ludus sleep`, and what it keeps.

    nights/
      state.json               which sessions were read, and which split each task is in
      lock                     held by the `ludus sleep` that is at work
      2026-11-18/
        night.json             what was read, what was left out and why
        my-skill/
          tasks.jsonl          the tasks that were made of sessions, masked
          mining/              the requests to the model that proposed checkers, and its replies
          run/                 a training run like any other: `ludus show`, `ludus view`
          proposed/            the skill as it would be
          base/                the skill that was trained
          change.diff          what would change
          receipt.json         hashes, claim, tasks, models, costs
          adoption.json        whether it was adopted, and what is under way
          backup/              the live skill as it was before

Only the user may read a night: it holds words of sessions. Files are replaced as a whole, so a process that is killed
leaves the old one or the new one.
"""

import hashlib
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from ludus.encoding import canonical, to_json
from ludus.errors import ConfigError, StoreError
from ludus.sleep.live_tree import TreeEntry
from ludus.stats import Interval
from ludus.whole_files import take_lock, write_whole

STATE, LOCK, NIGHT = "state.json", "lock", "night.json"
TASKS, MINING, RUN, PROPOSED, BASE, DIFF, RECEIPT, ADOPTION, BACKUP = (
    "tasks.jsonl",
    "mining",
    "run",
    "proposed",
    "base",
    "change.diff",
    "receipt.json",
    "adoption.json",
    "backup",
)
LATEST = "latest"
REVIEWED_MARK = "~reviewed-"
"""In the name of the folder of a patch that a person has reviewed. No name of a skill has it."""
T = TypeVar("T", bound=Struct)


# ---- what a night has seen ------------------------------------------------------------------------------------------


class SessionNote(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of a session. None of its words are here."""

    id: str
    format: str
    digest: str
    """A hash of the masked session."""
    used: str = ""
    """The version of the skill that was in use, if it is recorded."""
    tasks: tuple[str, ...] = ()
    """The tasks that were made of it."""
    reason: str = ""
    """Why it was left out, or made no task."""
    masked: Mapping[str, int] = field(default_factory=dict[str, int])
    dropped: Mapping[str, int] = field(default_factory=dict[str, int])


NightStatus = Literal["begun", "staged", "nothing", "left"]
"""`nothing`: there was nothing to propose. `left`: it did not end, and a later night took its place."""


class Night(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A night as a whole."""

    name: str
    begun: float
    ended: float | None = None
    status: NightStatus = "begun"
    skill: str = ""
    """The name of the skill."""
    live: str = ""
    """The path of the live skill, without links."""
    settings: str = ""
    """A hash of the settings and of the skill. An unfinished night goes on only with the same ones."""
    sessions: tuple[SessionNote, ...] = ()
    files: Mapping[str, int] = field(default_factory=dict[str, int])
    """What was left out of the files, by kind."""
    message: str = ""
    """The result, in words."""
    staged: Mapping[str, str] = field(default_factory=dict[str, str])
    """What was staged: folder of the skill → hash of its receipt. A receipt that was changed later is not adopted."""


class SleepState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known from earlier nights. Skills are named by their live path."""

    read: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """For each skill: session id → digest."""
    waiting: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """For each skill, the sessions that wait for others because a night had too few tasks: session id → digest."""
    splits: Mapping[str, str] = field(default_factory=dict[str, str])
    """The split of each task, by the hash of its request. A sealed task stays sealed."""
    open: Mapping[str, str] = field(default_factory=dict[str, str])
    """For each skill: the night that has not ended."""


# ---- what a night proposes ------------------------------------------------------------------------------------------


class TaskDelta(Struct, frozen=True, kw_only=True):
    """What a sealed or a selection task scored with the skill as it was, and as it is proposed."""

    task: str
    split: str
    before: float
    after: float


class ModelUse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that was shown past work."""

    role: str
    name: str
    place: str
    """Where it runs: `this process`, `this machine`, or the address of its server."""
    gets: str
    """What it is shown, in words."""
    remote: bool = False


class Receipt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a staged patch is, and what speaks for it."""

    night: str
    skill: str
    live: str
    """The path of the live skill, without links."""
    base: str
    """The hash of the skill that the sessions used and that was trained (`Skill.hash`)."""
    proposal: str
    """The hash of the proposed skill."""
    base_files: Mapping[str, TreeEntry]
    """The files of the live skill that the patch is for."""
    proposed_files: Mapping[str, TreeEntry]
    changes: tuple[str, ...]
    measured: bool
    """False: nothing was measured; the proposal comes from reading sessions only."""
    claim: str
    difference: float | None = None
    interval: Interval | None = None
    tasks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tasks by split."""
    sealed: int = 0
    """Sealed tasks of the claim."""
    deltas: tuple[TaskDelta, ...] = ()
    evidence: tuple[str, ...] = ()
    """The ids of the sessions that it was made of."""
    invalid: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sessions and checkers that made no task, by reason."""
    models: tuple[ModelUse, ...] = ()
    version: str = ""
    """That of Ludus."""
    rollouts: int = 0
    tokens: int = 0
    dollars: float = 0.0
    run: str = ""
    warnings: tuple[str, ...] = ()
    time: float = 0.0


# ---- files ----------------------------------------------------------------------------------------------------------


def read_struct(path: Path, kind: type[T]) -> T | None:
    """The value in a file; None if there is no file.

    Raises:
        StoreError: the file cannot be read.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreError(f"{path} cannot be read ({error}): put back a copy of it, or move it away") from None


def write_struct(path: Path, value: Struct) -> None:
    write_private(path, msgspec.json.format(to_json(value), indent=2) + b"\n")


def hash_receipt(receipt: Receipt) -> str:
    return hash_text(canonical(receipt).decode())


def write_receipt(folder: Path, receipt: Receipt) -> None:
    """Write the receipt of a staged patch, and its hash to the night. The receipt is last: without it, nothing is
    staged."""
    place = folder.parent / NIGHT
    night = read_struct(place, Night)
    assert night is not None, f"{place} is not there"
    write_struct(place, replace(night, staged={**night.staged, folder.name: hash_receipt(receipt)}))
    write_struct(folder / RECEIPT, receipt)


def find_receipt_fault(folder: Path, receipt: Receipt) -> str:
    """Why a receipt is not what was staged; empty if it is."""
    night = read_struct(folder.parent / NIGHT, Night)
    if night is None or night.staged.get(folder.name) != hash_receipt(receipt):
        return (
            f"{folder / RECEIPT} is not the receipt that was staged ({folder.parent / NIGHT} has another hash of "
            "it): put it back, or sleep again"
        )
    if not Path(receipt.live).is_absolute() or os.path.normpath(receipt.live) != receipt.live:
        return f"{folder / RECEIPT}: live: {receipt.live!r} should be an absolute path without .. in it"
    return ""


def write_private(path: Path, data: bytes) -> None:
    """Replace a file that only the user may read: after a kill it is the old one or the new one."""
    make_private(path.parent)
    try:
        write_whole(path, [data], 0o600)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None


def make_private(folder: Path) -> None:
    """Make a folder that only the user may read, if it is not there."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error.strerror or error}") from None


@contextmanager
def lock_nights(folder: Path) -> Generator[bool]:
    """Hold the lock of a folder of nights. False: another process holds it. The lock ends with its process."""
    make_private(folder)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not take_lock(handle):
            yield False
            return
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield True
    finally:
        os.close(handle)


def find_lock_owner(folder: Path) -> str:
    """The process that holds the lock, for a message."""
    try:
        return (folder / LOCK).read_text().strip() or "unknown"
    except OSError:
        return "unknown"


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def list_nights(folder: Path) -> list[tuple[Path, Night]]:
    """The nights of a folder, in the order of their names."""
    if not folder.is_dir():
        return []
    paths = sorted((path for path in folder.iterdir() if (path / NIGHT).is_file()), key=_order)
    return [(path, night) for path in paths if (night := read_struct(path / NIGHT, Night)) is not None]


def _order(path: Path) -> tuple[str, int]:
    """The day of a night, and its number on that day."""
    day, number = path.name[:10], path.name[11:]
    return day, int(number) if number.isdecimal() else 1


def find_night(folder: Path, name: str) -> Path:
    """The folder of a night: a path, a name in the folder of nights, or `latest` for the last one that has staged.

    Raises:
        ConfigError: there is none.
    """
    if name == LATEST:
        staged = [path for path, night in list_nights(folder) if night.status == "staged"]
        if not staged:
            raise ConfigError(f"no night in {folder} has staged anything; see: ludus sleep --list")
        return max(staged, key=_order)
    for path in (Path(name), folder / name):
        if (path / NIGHT).is_file():
            return path
    known = ", ".join(path.name for path, _ in list_nights(folder)[-5:]) or "none"
    raise ConfigError(f"there is no night {name} (the last ones in {folder}: {known}); see: ludus sleep --list")


def find_staged(night: Path, names: tuple[str, ...] = ()) -> list[tuple[Path, Receipt]]:
    """The staged skills of a night, or those with these names.

    Raises:
        ConfigError: one is not staged.
    """
    paths = sorted(path for path in night.glob(f"*/{RECEIPT}") if REVIEWED_MARK not in path.parent.name)
    receipts = ((path.parent, read_struct(path, Receipt)) for path in paths)
    found = {receipt.skill: (path, receipt) for path, receipt in receipts if receipt is not None}
    missing = [name for name in names if name not in found]
    if missing or not found:
        staged = ", ".join(found) or "nothing"
        what = f"--skill {missing[0]} is not staged" if missing else "nothing to adopt"
        raise ConfigError(f"{night}: {what}; staged in this night: {staged}")
    return [found[name] for name in names or found]
