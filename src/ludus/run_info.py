"""What a run says of itself: `run.json` in its directory.

It is written when the run opens and when it ends, so that nobody has to guess from settings what a directory holds. A
process that was killed leaves `running` behind; `read_state` tells that from a run that goes on.
"""

import os
import shlex
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ludus import __version__
from ludus.errors import ConfigError, StoreError
from ludus.models.ledger import Totals
from ludus.stats import UNSCORED, FailureLedger, ScoreCell, make_failure_ledger
from ludus.store import RunDir

INFO = "run.json"
REPORT = "report.html"
"""Its pages in one file, written when it ends (`ludus.view.report`)."""
LEDGER = "ledger.jsonl"
"""What each role has spent: a line after each rollout. The last line counts."""

Tell = Callable[[str], None]
"""Takes a message for the user."""

State = Literal["running", "finished", "drained", "failed", "killed"]
"""`drained`: stopped by the user or by a spent budget, and resumable. `killed`: its process ended without a word."""


class RunInfo(Struct, frozen=True, kw_only=True):
    """What a run is, and how it goes."""

    kind: str
    """The kind of the run, such as `evaluate` or `train`: `ludus.run.RunKind`."""
    command: str = ""
    """The command line that opened it last."""
    version: str = __version__
    """Of Ludus."""
    state: State = "running"
    message: str = ""
    """Why it was drained or failed."""
    pid: int = 0
    born: str = ""
    """When its process was started, by the kernel's clock: a number of a process is used again."""
    host: str = ""
    """Where it runs, while it runs."""
    started: float = 0.0
    """Seconds since 1970, when it was first opened."""
    resumed: float = 0.0
    """The same, when it was last opened, if it was resumed."""
    ended: float = 0.0
    parent: str = ""
    """The run that it was made of."""
    planned: int = 0
    """How many rollouts it has when it is complete, as far as is known. 0: not known."""
    code: dict[str, str] = {}
    """The digests of the environment's files, if they are the user's (`ludus.env_code`)."""
    changes: tuple[str, ...] = ()
    """What had changed of them when it was resumed, each time that the user accepted it."""


_DECODER = msgspec.json.Decoder(RunInfo)


def open_info(
    directory: RunDir,
    kind: str,
    command: str = "",
    parent: str = "",
    code: Mapping[str, str] | None = None,
    change: str = "",
) -> RunInfo:
    """Write that a run is running, in this process. A resumed run keeps its start. `code`: the digests of the
    environment's files; `change`: what the user has accepted of their changes."""
    before, now = read_info(directory.path), time.time()
    info = RunInfo(
        kind=kind,
        command=command,
        pid=os.getpid(),
        born=_read_birth(os.getpid()),
        host=socket.gethostname(),
        started=before.started if before and before.started else now,
        resumed=now if before else 0.0,
        parent=parent or (before.parent if before else ""),
        code=dict(code or {}),
        changes=(*(before.changes if before else ()), *([change] if change else ())),
    )
    write_info(directory, info)
    return info


def note_planned(directory: RunDir, rollouts: int) -> None:
    """Write how many rollouts a run has when it is complete."""
    info = read_info(directory.path)
    if info is not None and info.planned != rollouts:
        write_info(directory, msgspec.structs.replace(info, planned=rollouts))


def close_info(directory: RunDir, info: RunInfo, state: State, message: str = "") -> None:
    """Write how a run ended."""
    info = read_info(directory.path) or info  # its plan was noted while it ran
    ended = msgspec.structs.replace(info, state=state, message=message, pid=0, born="", host="", ended=time.time())
    write_info(directory, ended)


@contextmanager
def keep_info(
    directory: RunDir,
    kind: str,
    command: str = "",
    parent: str = "",
    code: Mapping[str, str] | None = None,
    change: str = "",
) -> Generator["RunEnd"]:
    """Record that a run is running, and how it ends: as the block says, or failed if it raises."""
    info, end = open_info(directory, kind, command, parent, code, change), RunEnd()
    try:
        yield end
    except BaseException as error:
        with suppress(StoreError):  # the error itself says more than a second one
            close_info(directory, info, "failed", str(error) or type(error).__name__)
        raise
    close_info(directory, info, end.state, end.message)


@contextmanager
def make_run(
    out: Path, kind: str, record: Mapping[str, Any], secrets: Collection[str], parent: Path, command: str = ""
) -> Generator[RunDir]:
    """A run that is made of another one, from its first file to its last. It is made beside its place and moved there
    at the end: half of one would look like a whole one."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} already holds a run or other files: name another --out")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        making = Path(temporary, out.name)
        with RunDir.open(making, record, secrets=secrets) as new:
            info = open_info(new, kind, command, parent=str(parent.resolve()))
            yield new
            close_info(new, info, "finished")
        making.replace(out)


@dataclass
class RunEnd:
    """How a run ended."""

    state: State = "finished"
    message: str = ""


def write_info(directory: RunDir, info: RunInfo) -> None:
    directory.write(INFO, msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")


def read_info(path: Path) -> RunInfo | None:
    """What a run says of itself; None if it is older than this file."""
    try:
        return _DECODER.decode((path / INFO).read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreError(f"{path / INFO} is damaged ({error}): remove it; the run itself is not affected") from None


def read_state(info: RunInfo) -> State:
    """How a run goes now. One on another host is believed."""
    if info.state != "running" or info.host != socket.gethostname():
        return info.state
    return "running" if info.born == _read_birth(info.pid) and _is_alive(info.pid) else "killed"


def describe_state(info: RunInfo | None, rollouts: int) -> str:
    """How a run that is not finished goes, in a line; empty if it is finished or too old to know."""
    if info is None or (state := read_state(info)) == "finished":
        return ""
    done = f"{rollouts} of {info.planned} rollouts" if info.planned else f"{rollouts} rollouts so far"
    why = f": {info.message.splitlines()[0]}" if info.message else ""
    return f"{state}, {done}{why}"


_ENDED = "ZX"
"""States of processes that have ended and for which nobody has waited."""


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read_birth(pid: int) -> str:
    """When a process was started; empty if there is none, if it has ended, or if there is no /proc."""
    try:
        state, *facts = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "" if state in _ENDED else facts[18]
    except (OSError, ValueError, IndexError):
        return ""


def read_spent(out: Path) -> dict[str, Totals]:
    """What each role had spent, by the last line of the ledger's file."""
    try:
        lines = (out / LEDGER).read_bytes().split(b"\n")[:-1]  # without a last line that was not finished
    except FileNotFoundError:
        return {}
    try:
        return msgspec.json.decode(lines[-1], type=dict[str, Totals]) if lines else {}
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise StoreError(
            f"{out / LEDGER} is damaged ({error}): cut off its last line, or raise the budget and remove it"
        ) from None


def read_failure_ledger(directory: RunDir) -> FailureLedger:
    """What a run has lost so far, over all its rollouts. Reads those alone that have no score."""
    rollouts, scored, mean = directory.measure_scores()
    boundaries = Counter(failure.boundary for failure in directory.read_failures())
    boundaries[UNSCORED] = rollouts - scored - boundaries.total()
    return make_failure_ledger([ScoreCell((mean or 0.0) * scored, scored, rollouts - scored)], +boundaries)


# ---- kinds --------------------------------------------------------------------------------------------------------

_TASKS = "a run of evaluate or process"
BATCH = "batch"
"""The kind of a batch of prompts."""
_WORDS: Mapping[str, str] = {
    "train": "a training run",
    "headroom": "a headroom run",
    "audit-skill": "an audit of a skill",
    "rl": "an RL run",
    "evaluate": _TASKS,
    "process": _TASKS,
    "plan": "a calibration of plan",
    BATCH: "a batch of prompts",
    "serve": "a run of serve",
    "gateway": "a record of gateway sessions",
    "replay": "a replayed rollout",
    "fork": "a run of fork",
    "triggers": "a measurement of triggers",
    "library": "a measurement of a library",
}
BATCHES = ("evaluate", "process", "plan")
"""Kinds with the same outcomes. A plan's calibration is the begin of a run."""
ONE_POLICY = (*BATCHES, "gateway", "replay", "fork")
"""Kinds whose rollouts are of one policy, so that their mean says something."""


def describe_kind(kind: str) -> str:
    """What a run of a kind is called in a sentence."""
    return _WORDS.get(kind, f"a run of {kind}")


def list_resuming(kind: str) -> tuple[str, ...]:
    """The commands that resume runs of a kind."""
    if kind in ("gateway", "replay"):
        return ()
    if kind == "plan":
        return BATCHES
    return ("evaluate", "process") if kind in BATCHES else (kind,)


def refuse_other_kind(path: Path, recorded: Mapping[str, Any], command: str) -> None:
    """Raise `ConfigError` if the command cannot resume the run, because another command made it."""
    info = read_info(path)
    kind = info.kind if info is not None else guess_kind(recorded, path)
    others = list_resuming(kind)
    if command in others:
        return
    resume = " or ".join(shlex.join(["ludus", name, "--resume", "--out", str(path)]) for name in others)
    instead = f"resume it with {resume}, or name another --out" if others else "name another --out"
    raise ConfigError(f"{path} is {describe_kind(kind)}, which `ludus {command}` cannot resume: {instead}")


# ---- runs of earlier versions -------------------------------------------------------------------------------------


def find_kind(directory: RunDir) -> str:
    """The kind of a run: what it says, or for runs of 0.1 what its recorded settings tell."""
    info = read_info(directory.path)
    return info.kind if info is not None else guess_kind(directory.config, directory.path)


def guess_kind(recorded: Mapping[str, Any], path: Path) -> str:
    """The kind of a run of 0.1, by the sections that it recorded."""
    if "content" in recorded:
        return "headroom" if recorded["content"].get("command") == "headroom" else "train"
    if {"train", "data", "optimizer"} & recorded.keys():
        return "gateway"
    if "rl" in recorded:
        return "rl"
    if "serve" in recorded:
        return "serve"
    return "process" if (path / "groups.jsonl").exists() else "evaluate"
