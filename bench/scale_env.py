"""The rollouts of `scale.py`: one reply of 20 kB, at once. Nodes load this file too."""

from collections.abc import Iterable, Sequence
from typing import ClassVar

from ludus.env import Env
from ludus.models.scripted import say
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Message, Rollout, Sampling, Score, Task, ToolSpec

SIZE = 20_000
REPLY = ("The quick brown fox jumps over the lazy dog. " * (SIZE // 45 + 1))[:SIZE]


class Letters(Env, frozen=True):
    """Write many letters."""

    name: ClassVar[str] = "bench-letters"
    sandbox: ClassVar[SandboxSpec | None] = None
    count: int = 1000

    def tasks(self, split: str) -> Iterable[Task]:
        return (Task(id=f"t{number}", prompt=f"Write {number}.", split=split) for number in range(self.count))

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        return Score.of(float(len(rollout.answer) == SIZE))


def write(messages: Sequence[Message], tools: Sequence[ToolSpec], sampling: Sampling) -> Message:
    return say(REPLY)
