"""Create a file with exact content: the smallest task that needs a tool and a sandbox.

Use it for a first look, or as a smoke test of a model, a tool-call format or a sandbox backend. A small model does
better with `--env.examples 2`: the conversation then begins with two files that were made before.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from ludus.env import Env, EnvFacts
from ludus.sandbox import Sandbox
from ludus.types import Call, Message, Rollout, Score, Task
from ludus.verify.text import compare_texts

TASKS = {
    "train": {
        "greeting.txt": "Hello from the sandbox",
        "answer.txt": "forty-two",
        "motto.txt": "practice makes perfect",
        "city.txt": "Lisbon",
        "notes/today.txt": "water the plants",
        "colors.txt": "red, green, blue",
        "reminder.txt": "the meeting is at noon",
        "captain.txt": "Ada Lovelace",
        "fruit.txt": "apples and pears",
        "data/score.txt": "7 to 3",
        "weather.txt": "rain in the morning",
        "password_hint.txt": "name of the first pet",
    },
    "test": {
        "done.txt": "All tests passed",
        "farewell.txt": "See you tomorrow",
        "river.txt": "the Danube",
        "logs/status.txt": "everything is fine",
    },
}
EXAMPLES = {"memo.txt": "call the bank", "list.txt": "eggs, flour, sugar"}


class TerminalTest(Env, frozen=True):
    """Create files with exact content, with the terminal or the file tools."""

    name: ClassVar[str] = "terminal-test"
    facts: ClassVar[EnvFacts] = EnvFacts(
        licence="MIT (written for Ludus)",
        scored="the file has the exact content",
        speed="70 ms per task",
    )
    toolsets: ClassVar[tuple[str, ...]] = ("terminal", "file")

    examples: Annotated[int, Meta(ge=0, le=len(EXAMPLES))] = 0
    """The number of worked examples at the beginning of the conversation."""

    def tasks(self, split: str) -> Iterator[Task]:
        for path, content in TASKS.get(split, {}).items():
            yield Task(id=path, prompt=_make_prompt(path, content), split=split, answer=content)

    def opening(self, task: Task) -> tuple[Message, ...]:
        worked = list(EXAMPLES.items())[: self.examples]
        return (*(m for path, content in worked for m in _make_example(path, content)), Message("user", task.prompt))

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        assert box is not None
        try:
            found = await box.read(rollout.task.id)
        except (OSError, ValueError) as error:  # missing, a folder, or too large: the agent's fault
            return Score.of(0.0, f"The file cannot be read: {error}")
        return compare_texts(rollout.task.answer, found.decode(errors="replace"))

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        assert box is not None
        await box.write(task.id, task.answer.encode())
        return "Done."


def _make_prompt(path: str, content: str) -> str:
    return f'Create a file called {path} that contains "{content}".'


def _make_example(path: str, content: str) -> tuple[Message, ...]:
    """An earlier request of the same kind, and the reply to it."""
    arguments = msgspec.json.encode({"path": path, "content": content}).decode()
    call = Call(f"example-{path}", "write_file", arguments)
    return (
        Message("user", _make_prompt(path, content)),
        Message("assistant", calls=(call,)),
        Message("tool", f"Wrote {path}: {len(content)} bytes, 1 lines.", call_id=call.id),
        Message("assistant", "Done."),
    )
