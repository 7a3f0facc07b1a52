"""The environment of past work: requests that users made, and checkers that hold for what they accepted.

`ludus sleep` writes the tasks to a file and runs a training on them. It is an environment like any other, so the run
can be shown, resumed and evaluated again. A task knows its checkers, the accepted answer and what the user objected to;
the agent sees none of it. What the user objected to is told to analysts of train tasks only.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec import Struct, field

from ludus.env import Env, EnvFacts
from ludus.errors import ConfigError
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.sleep.checkers import Checker, check_text
from ludus.types import Rollout, Score, Task
from ludus.whole_files import read_whole

TRAIN, SELECTION, SEALED = "train", "selection", "test"


class PastAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about a past request, in `Task.answer`."""

    checkers: tuple[Checker, ...]
    reference: str = ""
    """The answer that the user accepted."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Files as they were when it was accepted."""
    objections: tuple[str, ...] = ()
    """What the user said against earlier answers."""


class PastWork(Env, frozen=True):
    """Requests of past sessions, with checkers that hold for what was accepted."""

    name: ClassVar[str] = "past-work"
    facts: ClassVar[EnvFacts] = EnvFacts(
        tasks="made of sessions by `ludus sleep`",
        licence="that of your sessions",
        runs="agent and commands in slots, if a task has files; texts are compared here",
        scored="all checkers of the request hold; soft: the share",
        speed="that of a slot and of the checkers",
    )

    path: str = ""
    """The file of tasks that `ludus sleep` has written: `NIGHT/SKILL/tasks.jsonl`."""
    slots: bool = False
    """The agent works in a slot, with the files of the task."""
    check_seconds: float = 10.0
    """The time limit of one checker."""

    @property
    def sandbox(self) -> SandboxSpec | None:  # pyright: ignore[reportIncompatibleVariableOverride]  # an option decides
        return SandboxSpec() if self.slots else None

    @property
    def toolsets(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("terminal", "file") if self.slots else ()

    def tasks(self, split: str) -> Iterator[Task]:
        if not self.path:
            raise ConfigError("env.path: which tasks? Name a tasks.jsonl of a night (see: ludus sleep --list)")
        for task in read_tasks(Path(self.path)):
            if task.split == split:
                yield task

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        known = read_answer(rollout.task)
        passed = [await self._check(checker, rollout.answer, box) for checker in known.checkers]
        parts = {str(place): float(each) for place, each in enumerate(passed)}
        if not rollout.answer.strip() and not any(
            each and checker.is_positive for each, checker in zip(passed, known.checkers, strict=True)
        ):
            return Score(0.0, False, 0.0, "The reply is empty.", parts)
        wrong = [f"Not so: {c.describe()}." for c, each in zip(known.checkers, passed, strict=True) if not each]
        if wrong and rollout.task.split == TRAIN:
            wrong += [f"To such an answer the user said: {text}" for text in known.objections]
        done = not wrong
        return Score(float(done), done, sum(passed) / len(passed), "\n".join(wrong), parts)

    async def _check(self, checker: Checker, answer: str, box: Sandbox | None) -> bool:
        if checker.kind != "command":
            return await check_text(checker, answer, self.check_seconds)
        if box is None:
            raise ConfigError("env.slots: a task has a command, which runs in a slot: set it to true")
        done = await box.exec(f"timeout -k 1 {self.check_seconds:g} bash -c {shlex.quote(checker.text)} </dev/null")
        return done.exit_code == 0

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        known = read_answer(task)
        if box is not None:
            for path, text in known.files.items():
                await box.write(path, text.encode())
        return known.reference


def read_answer(task: Task) -> PastAnswer:
    return msgspec.convert(task.answer, PastAnswer)


def read_tasks(path: Path) -> list[Task]:
    """The tasks in a file.

    Raises:
        ConfigError: it cannot be read, or a line is no task with checkers.
    """
    try:
        tasks = msgspec.json.Decoder(Task).decode_lines(read_whole(path))
        for task in tasks:
            if not read_answer(task).checkers:
                raise ValueError(f"task {task.id} has no checkers")
    except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise ConfigError(f"env.path: cannot read tasks from {path}: {error}") from None
    return tasks
