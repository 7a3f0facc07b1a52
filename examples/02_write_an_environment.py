"""Write an environment: its tasks, its tools, and how it scores rollouts.

Check it without a model:   ludus validate examples/02_write_an_environment.py
Run this file:              python examples/02_write_an_environment.py
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import ClassVar

from ludus.engine import run_group
from ludus.env import Env
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.runner import Runner
from ludus.sandbox import Sandbox
from ludus.sandbox.profiles import open_pool
from ludus.tools import Tool, tool
from ludus.types import Rollout, Score, Task

LOG = "ok 12ms\nfail 7ms\nok 3ms\nfail 90ms\n"


@tool
async def explain(word: str) -> str:
    """Say what a word of the log means."""
    return {"ok": "the request was served", "fail": "it was not"}.get(word, "nobody knows")


class CountFailures(Env, frozen=True):
    """Count the failed lines of a log file."""

    name: ClassVar[str] = "count-failures"
    toolsets: ClassVar[tuple[str, ...]] = ("terminal",)

    copies: int = 1
    """The length of the log. Set it with --env.copies 3."""

    def tasks(self, split: str) -> Iterator[Task]:
        log = LOG * self.copies
        yield Task(
            id="count",
            prompt="How many lines of server.log start with 'fail'? Answer with the number only.",
            files={"server.log": log},
            answer=str(log.count("fail")),
        )

    def tools(self, task: Task, box: Sandbox | None) -> Sequence[Tool]:
        return [explain]  # in addition to the tools of the toolsets

    async def verify(self, rollout: Rollout, box: Sandbox | None) -> Score:
        right = rollout.answer.strip() == rollout.task.answer
        return Score.of(float(right), "Right." if right else f"There are {rollout.task.answer}.")

    async def solve(self, task: Task, box: Sandbox | None) -> str:
        return task.answer


MODEL = ScriptedModel([call("explain", word="fail"), call("terminal", command="grep -c ^fail server.log"), say("2")])


async def main() -> None:
    env = CountFailures()
    task = next(iter(env.tasks("train")))
    async with open_pool("bwrap") as pool:
        group = await run_group(task, Policy(MODEL), Runner(env, pool), size=4)
    for rollout in group.rollouts:
        assert rollout.score is not None
        print(f"rollout {rollout.provenance.replicate}: {rollout.score.value}  {rollout.score.feedback}")
    print(f"partial group: {group.partial}")


if __name__ == "__main__":
    asyncio.run(main())
