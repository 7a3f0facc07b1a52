"""Tasks that ask who is responsible, by rules that only feedback tells: the names say nothing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from splits import cut

from ludus.env import Env
from ludus.sandbox import Sandbox, SandboxSpec
from ludus.types import Rollout, Score, Task


class Duties(Env, frozen=True):
    """Name who is responsible for a request."""

    sandbox: ClassVar[SandboxSpec | None] = None
    who: ClassVar[str]
    """What the answers are: `team`."""
    answers: ClassVar[Sequence[str]]
    topics: ClassVar[Mapping[str, tuple[str, tuple[str, ...]]]]
    """By topic: the right answer, and requests with a field `{thing}`."""
    things: ClassVar[Sequence[str]]

    def tasks(self, split: str) -> Iterator[Task]:
        tasks = [
            Task(id=f"{topic}-{number}-{thing}", prompt=text.format(thing=thing), answer=answer, kind=topic)
            for topic, (answer, texts) in self.topics.items()
            for number, text in enumerate(texts)
            for thing in self.things
        ]
        yield from cut(tasks, split, self.name)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        named = {answer for answer in self.answers if answer in rollout.answer.lower()}
        right = named == {rollout.task.answer}
        return Score.of(float(right), "Right." if right else f"The right {self.who} is {rollout.task.answer}.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return task.answer
