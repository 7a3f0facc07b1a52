"""What is asked and how it is judged: the `Env` contract.

An environment is a small typed recipe: its fields are its options (they appear as `--env.<field>`), its methods say
what the tasks are, how a slot is prepared, which tools the agent has and how the result is judged. Only `tasks` and
`verify` must be written. An environment never runs a model and never decides how many rollouts there are.

What it can rely on: `setup` runs in a clean slot; when `verify` runs, every process that the agent started is dead, and
by default the slot is a new one, set up again, into which only the agent's files in /workspace were carried;
`Task.answer` has not been near the agent. What it must keep: `setup` and `verify` are deterministic, and `verify`
raises when it cannot judge. It does not return 0 for that: a failure is not a zero.
"""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

from msgspec import Struct

from ludus.sandbox import Sandbox, SandboxSpec
from ludus.tools import Tool
from ludus.types import Message, Rollout, Score, Task


class Env(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of environments. See `ludus.envs.terminal_test` for a whole one."""

    name: ClassVar[str] = ""
    version: ClassVar[str] = "1"
    """Raise it when scores stop being comparable with earlier ones; it is on every record."""
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec()
    """The slot that a rollout needs; None for tasks of pure text."""
    verify_in: ClassVar[Literal["fresh", "same"]] = "fresh"
    """Where `verify` runs. `same`: in the agent's own slot, for tasks about more than files in /workspace (a database
    in home, say); then nothing there can be trusted but what the agent could not write to."""
    protected: ClassVar[tuple[str, ...]] = ()
    """Patterns of files that are the environment's: in a fresh slot, `verify` finds them as `setup` makes them,
    whatever the agent did to them (`tests/*`, `*.toml`; see `sandbox.carry`)."""
    toolsets: ClassVar[tuple[str, ...]] = ()
    """Toolsets offered when the user names none."""
    system: ClassVar[str] = ""
    """System text that comes with the environment; a skill is added to it, not put in its place."""

    def tasks(self, split: str) -> Iterable[Task]:
        """The tasks of a split, with ids that are unique within it. Called once per run."""
        raise NotImplementedError(f"{type(self).__name__} does not define tasks(split)")

    def opening(self, task: Task) -> tuple[Message, ...]:
        """The conversation before the first turn, without system text."""
        return (Message("user", task.prompt),)

    def slot(self, task: Task) -> SandboxSpec:
        """The slot for one task: by default `sandbox`. Tasks may differ in their base, or name one of the user's
        profiles (`sandbox.profiles`). Not called when `sandbox` is None."""
        assert self.sandbox is not None
        return self.sandbox

    async def setup(self, task: Task, box: Sandbox) -> None:
        """Prepare the slot. By default: write `task.files`. Not called when `sandbox` is None."""
        for path, text in task.files.items():
            await box.write(path, text.encode())

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        """Tools of the environment's own, beside those of the toolsets: `ludus.tools.tool` makes one of a function."""
        return ()

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        """Judge a finished rollout. `rollout.answer` is what the agent said last; /workspace is as it left it,
        except for `protected` files. Hidden tests enter only here. The score is what this returns, in the driver:
        nothing in the slot is a place where a reward could be written."""
        raise NotImplementedError(f"{type(self).__name__} does not define verify(rollout, box)")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        """Do the task perfectly, as proof that it can be scored: change the slot, return the final answer.
        `ludus validate` runs it; no agent ever does."""
        raise NotImplementedError(f"{type(self).__name__} does not define solve(task, box)")
