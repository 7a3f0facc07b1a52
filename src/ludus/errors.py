"""The errors that Ludus raises, by who has to act.

    LudusError
    ├── ConfigError        the user: a setting is wrong; the message names the field and the fix
    │   └── Unsupported    the user, or a client of the gateway: the model cannot do what a request asks for
    ├── BudgetExhausted    the user: a budget is spent; the run stops cleanly and can be resumed
    ├── RunStalled         the user: nothing moved for too long; the run stops and can be resumed
    ├── StoreError         the user: the run directory cannot be written, is locked or is damaged
    ├── EngineLost         the user: the cluster that rollouts run on is gone; the run stops and can be resumed
    └── RolloutError       nobody: something broke; unless the agent did it, it is retried, then recorded as failed
        ├── ModelError     the model server
        │   └── ModelUnusable  the user: wrong key, unknown model, no server; the run stops and can be resumed
        ├── SandboxError   the slot or its backend
        ├── SetupError     the environment's `setup`
        ├── ToolBroken     a tool itself (not wrong arguments: the model sees those mistakes)
        ├── VerifierError  the environment's `verify`
        └── HarnessError   a command-line agent that ended before it sent a request to the model

A `boundary(...)` turns foreign exceptions into one of these. `rollout.run` is the only place that turns a
`RolloutError` into a recorded `Failure`; `ludus.causes` decides before that whether the agent is at fault. A
`SandboxError` carries what the backend knows about the end of the slot. Any other exception in a rollout is a bug in
Ludus: `describe_bug` makes the `Failure` of it, the run goes on, and the command ends with a non-zero exit code. The
other `LudusError`s stop the run.
"""

import errno
import os
import resource
import sysconfig
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal

from msgspec import Struct

from ludus.types import Failure

Boundary = Literal["model", "sandbox", "setup", "tool", "verifier", "agent"]
BUG = "bug"
"""The boundary of a `Failure` that is an unexpected exception."""
TRACEBACK = "\nTraceback"
"""Where the traceback begins in the message of such a failure."""


class LudusError(Exception):
    """Base class of the errors that Ludus raises."""


class ConfigError(LudusError):
    """A setting is wrong. The message names the field and says what to do."""


class Unsupported(ConfigError):
    """The model cannot do what a request asks for. The message names the field. Other requests can succeed."""


class BudgetExhausted(LudusError):
    """A budget is spent. The run stops cleanly and can be resumed with a larger budget."""


class RunStalled(LudusError):
    """Nothing has moved for `limits.stall_seconds`. What was under way is dropped; the run can be resumed."""


class StoreError(LudusError):
    """The run directory cannot be used."""


class EngineLost(LudusError):
    """What rollouts run on is gone as a whole, such as a cluster without its head."""


class RolloutError(LudusError):
    """Something broke during a rollout."""

    boundary: ClassVar[Boundary]

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable

    def as_failure(self) -> Failure:
        return Failure(self.boundary, name_open_files(str(self)), self.retryable)


class ModelError(RolloutError):
    boundary = "model"
    too_long = False
    """The server refused the conversation because it does not fit the model's context."""


class ModelUnusable(ModelError):
    """No request to the model can succeed until the user acts: the key, the model's name or the address is wrong, or
    the account has no credit. The run stops at once and can be resumed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=False)


class SlotEvidence(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a backend knows about the end of a slot. `ludus.causes` decides from it whose fault that was."""

    inside: str = ""
    """What the slot's own processes or files did, in words: "its processes used all of sandbox.memory_mb"."""
    outside: str = ""
    """What happened outside of the slot, in words: "the connection to the host broke". No process of the slot could
    have done it."""


class SandboxError(RolloutError):
    boundary = "sandbox"

    def __init__(self, message: str, *, retryable: bool = True, evidence: SlotEvidence = SlotEvidence()) -> None:
        super().__init__(message, retryable=retryable)
        self.evidence = evidence


class SetupError(RolloutError):
    boundary = "setup"


class ToolBroken(RolloutError):
    boundary = "tool"


class VerifierError(RolloutError):
    boundary = "verifier"


class HarnessError(RolloutError):
    boundary = "agent"


class boundary:  # a class and not a generator, because every rollout goes through several
    """Raise exceptions of foreign code as `kind`. Errors of Ludus pass through unchanged.

    A `TimeoutError` without a text becomes "timed out". An error in an environment's own code is reported with its file
    and line.
    """

    __slots__ = ("_kind", "_what")

    def __init__(self, kind: type[RolloutError], what: str) -> None:
        self._kind = kind
        self._what = what

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or isinstance(error, LudusError):
            return
        words = "timed out" if isinstance(error, TimeoutError) and not str(error) else describe_error(error)
        raise self._kind(f"{self._what}: {words}") from error


@contextmanager
def raise_first() -> Generator[None]:
    """Raise the first error of an exception group in place of the group: tasks that fail together have one cause."""
    try:
        yield
    except BaseExceptionGroup as group:
        first = find_first(group)  # pyright: ignore[reportUnknownArgumentType]
        raise first from first.__cause__


LONGEST = 2_000
"""The maximum length of a foreign error message: some contain all of their data."""


def comes_from_user(error: BaseException) -> bool:
    """Whether an exception was raised in, or below, a file of the user's own."""
    return any(_is_user_code(frame.filename) for frame in traceback.extract_tb(error.__traceback__))


def describe_error(error: BaseException) -> str:
    """Describe an exception of foreign code: its type, its message, and the last line of the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_user_code(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    words = str(error)
    return f"{type(error).__name__}: {words if len(words) <= LONGEST else f'{words[:LONGEST]}…'}{where}"


def describe_bug(error: BaseException) -> Failure:
    """The failure of a rollout that met an unexpected exception: what it was, and the end of its traceback."""
    lines = traceback.format_exception(error, limit=-_FRAMES)
    text = "".join(lines).strip()
    text = text if len(text) <= 2 * LONGEST else f"{text[:LONGEST]}\n…\n{text[-LONGEST:]}"
    text = text if text.startswith("Traceback") else f"Traceback:\n{text}"
    return Failure(BUG, f"{name_open_files(describe_error(error))}\n{text}", retryable=False)


_FRAMES = 10
"""The number of innermost frames in the traceback of a bug."""


OPEN_FILES = "EMFILE"
"""In the message of a failure: this process had no file descriptor left."""


def name_open_files(message: str) -> str:
    """The message; with the limit and what to do, if it says that too many files were open."""
    if os.strerror(errno.EMFILE) not in message or OPEN_FILES in message:
        return message
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"{message} ({OPEN_FILES}: this process may have {most:,} open files; raise the limit with `ulimit -n`, or "
        "lower run.concurrency)"
    )


def find_first(error: BaseException) -> BaseException:
    """The first error of an exception group; any other error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return error  # pyright: ignore[reportUnknownVariableType]


def _is_user_code(file: str) -> bool:
    """Whether a source file belongs neither to Ludus, nor to Python, nor to an installed package."""
    others = (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    return not file.startswith("<") and not any(Path(file).is_relative_to(place) for place in others)


def explain_not_async(method: str) -> str:
    """What is wrong with a method of the user's class that returns no awaitable."""
    return f"{method} must be written as `async def`"


def suggest(name: str, known: list[str]) -> str:
    """The end of an "unknown name" message: the nearest known name, or all of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(sorted(known)) or 'none'}"
