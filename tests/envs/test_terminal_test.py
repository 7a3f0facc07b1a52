import pytest

from ludus.envs.terminal_test import TASKS, TerminalTest
from ludus.models.scripted import ScriptedModel, call, say
from ludus.policy import Policy
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.profiles import open_pool
from ludus.types import Rollout


async def attempt(command: str) -> Rollout:
    env = TerminalTest()
    task = next(t for t in env.tasks("train") if t.id == "greeting.txt")

    policy = Policy(ScriptedModel([call("terminal", command=command), say("done")]))

    async with open_pool("bwrap") as pool:
        return await run(Job(task, policy), Runner(env, pool))


@pytest.mark.parametrize(
    ("command", "value"),
    [
        ("printf 'Hello from the sandbox' > greeting.txt", 1.0),
        ("echo 'Hello from the sandbox' > /workspace/greeting.txt", 1.0),
        ("echo 'I say: Hello from the sandbox!' > greeting.txt", 0.5),
        ("echo hello > greeting.txt", 0.0),
        ("true", 0.0),
        ("mkdir greeting.txt", 0.0),
        ("ln -s /etc/hostname greeting.txt", 0.0),
        ("head -c 50000000 /dev/zero > greeting.txt", 0.0),
    ],
)
async def test_scores(command: str, value: float):
    rollout = await attempt(command)
    assert rollout.failure is None
    assert rollout.score is not None
    assert rollout.score.value == value


def test_every_split_has_tasks_with_unique_ids():
    for split in TASKS:
        ids = [t.id for t in TerminalTest().tasks(split)]
        assert ids
        assert len(set(ids)) == len(ids)
    assert list(TerminalTest().tasks("nonsense")) == []
