"""Run one rollout: an agent works on a task in a sandbox, and its work is scored.

The model is scripted, so this takes a second and needs no server:   python examples/01_one_rollout.py
"""

import asyncio

from ludus.envs.terminal_test import TerminalTest
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.profiles import open_pool

MODEL = ScriptedModel(
    [
        call("terminal", command="printf 'Hello from the sandbox' > greeting.txt"),
        call("read_file", path="greeting.txt"),
        say("The file is there."),
    ]
)


async def main() -> None:
    env = TerminalTest()
    task = next(iter(env.tasks("train")))
    async with open_pool("bwrap") as pool:
        rollout = await run(Job(task, Policy(MODEL)), Runner(env, pool))

    for message in rollout.messages:
        calls = "".join(f"{c.name}({c.arguments})" for c in message.calls)
        print(f"{message.role:>9}: {calls or message.content}")
    print(f"\nstopped: {rollout.stop}   score: {rollout.score}")


if __name__ == "__main__":
    asyncio.run(main())
