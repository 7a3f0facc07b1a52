"""Create a file with exact content: the smallest task that needs a tool and a sandbox.

Good for a first look and as a smoke test of a model, a tool-call format or a backend.
"""

from collections.abc import Iterator
from typing import ClassVar

from ludus.env import Env
from ludus.sandbox import Sandbox
from ludus.types import Rollout, Score, Task
from ludus.verify.text import same_text

TASKS = {
    "train": {
        "greeting.txt": "Hello from the sandbox",
        "numbers/answer.txt": "42",
        "notes/shopping.txt": "bread\nmilk\napples",
    },
    "test": {"done.txt": "All tests passed"},
}


class TerminalTest(Env, frozen=True):
    """Create files with exact content, with the terminal or the file tools."""

    name: ClassVar[str] = "terminal-test"
    toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")

    def tasks(self, split: str) -> Iterator[Task]:
        for path, content in TASKS.get(split, {}).items():
            prompt = f"Create the file {path} with exactly this content:\n{content}"
            yield Task(id=path, prompt=prompt, split=split, answer=content)

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        try:
            found = await box.read(rollout.task.id)
        except (OSError, ValueError) as error:  # missing, a folder, or far too large: all the agent's doing
            return Score.of(0.0, f"The file cannot be read: {error}")
        return same_text(rollout.task.answer, found.decode(errors="replace"))

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        assert box is not None
        await box.write(task.id, task.answer.encode())
        return "Done."
