"""What can go wrong, by who has to act.

    LudusError
    ├── ConfigError        the user: a setting is wrong; the message names the field and the fix
    ├── BudgetExhausted    the user: a budget is spent; the run stops cleanly and can be resumed
    ├── StoreError         the user: the run directory cannot be written, is locked or is damaged
    └── RolloutError       nobody's answer is wrong, the world broke: the rollout is retried, then recorded as failed
        ├── ModelError     the model server
        ├── SandboxError   the slot or its backend
        ├── SetupError     the environment's `setup`
        ├── ToolBroken     a tool's own machinery (not its arguments: those mistakes go back to the model)
        ├── VerifierError  the environment's `verify`
        └── HarnessError   a command-line agent that did not get as far as asking the model

Foreign exceptions become one of these at a `boundary(...)`, once; `rollout.run` is the only place that turns a
`RolloutError` into a recorded `Failure`. Anything else is a bug in Ludus and stops the run loudly.
"""

import sysconfig
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Literal

from ludus.types import Failure

Boundary = Literal["model", "sandbox", "setup", "tool", "verifier", "agent"]


class LudusError(Exception):
    """Base of everything Ludus raises on purpose."""


class ConfigError(LudusError):
    """A setting is wrong. The message names the field and says what to do."""


class BudgetExhausted(LudusError):
    """A budget is spent: stop cleanly; the run can be resumed with a larger one."""


class StoreError(LudusError):
    """The run directory cannot be used as asked."""


class RolloutError(LudusError):
    """The world broke during a rollout."""

    boundary: ClassVar[Boundary]

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable

    def as_failure(self) -> Failure:
        return Failure(self.boundary, str(self), self.retryable)


class ModelError(RolloutError):
    boundary = "model"
    too_long = False
    """The server refused the conversation because it does not fit the model's context."""


class SandboxError(RolloutError):
    boundary = "sandbox"


class SetupError(RolloutError):
    boundary = "setup"


class ToolBroken(RolloutError):
    boundary = "tool"


class VerifierError(RolloutError):
    boundary = "verifier"


class HarnessError(RolloutError):
    boundary = "agent"


class boundary:  # a class and not a generator, because every rollout goes through several
    """Attribute whatever foreign code raises inside to `kind`. Our own errors pass through as they are.

    A `TimeoutError` without a text is named as such. What an environment's own code raises is told with
    its file and line.
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
        words = "timed out" if isinstance(error, TimeoutError) and not str(error) else told(error)
        raise self._kind(f"{self._what}: {words}") from error


LONGEST = 2_000
"""Characters that are kept of what foreign code raised: some put all of their data into the text."""


def told(error: Exception) -> str:
    """What foreign code raised: its kind, its words, and the last line of the user's own code that led there."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_users(frame.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    words = str(error)
    return f"{type(error).__name__}: {words if len(words) <= LONGEST else f'{words[:LONGEST]}…'}{where}"


def _is_users(file: str) -> bool:
    """Whether a file of code is neither ours, nor Python's, nor an installed package's."""
    others = (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    return not file.startswith("<") and not any(Path(file).is_relative_to(place) for place in others)


def suggest(name: str, known: list[str]) -> str:
    """The tail of an "unknown name" message: the nearest known name, or all of them."""
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known: {', '.join(sorted(known)) or 'none'}"
