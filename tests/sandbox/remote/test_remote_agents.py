"""A foreign agent in remote slots: it is scored, and its token ids are recorded."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from ludus.envs.terminal_test import TerminalTest
from ludus.harness import HarnessAgent
from ludus.harness.known import KNOWN
from ludus.models import Model
from ludus.models.scripted import ScriptedModel, say
from ludus.policy import Policy
from ludus.rl.rows import build_rows
from ludus.rollout import run
from ludus.runner import Job, Runner
from ludus.sandbox.pool import Pool, PoolSettings
from ludus.sandbox.remote.fleet import Fleet
from ludus.types import Message, Rollout

T = TypeVar("T")


@pytest.fixture(scope="module")
def agents() -> ModuleType:
    """The tests of agents in slots of this machine, which have a tiny agent."""
    path = Path(__file__).parents[2] / "harness" / "test_harness.py"
    spec = importlib.util.spec_from_file_location("ludus_tests_harness", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["docker", "docker_single", "ssh"])
def fleet(request) -> Callable[[], Fleet]:
    return request.getfixturevalue(f"{request.param}_fleet")


@asynccontextmanager
async def in_pool(fleet: Callable[[], Fleet]) -> AsyncGenerator[Pool]:
    """A pool of a backend's slots. All of them are ended with it."""
    slots = fleet()
    try:
        async with asyncio.timeout(300), Pool(slots.create, PoolSettings(max_slots=4)) as pool:
            yield pool
    finally:
        await slots.close()


async def test_a_remote_agent_is_scored_and_its_rollout_is_a_training_row(fleet, agents):
    wanted = json.dumps({"name": "bash", "arguments": {"command": agents.MAKE}})
    model = agents.token_model([f"<tool_call>\n{wanted}\n</tool_call>", "Done."])
    job = Job(agents.GREETING, Policy(model, agent=HarnessAgent(agents.TINY)), seed=5)
    async with in_pool(fleet) as pool:
        rollout = await run(job, Runner(TerminalTest(), pool))
    assert rollout.score is not None, rollout.failure
    assert rollout.score.passed
    assert rollout.exit is not None
    assert (rollout.exit.code, rollout.exit.output) == (0, "Done.\n")
    (row,) = build_rows(rollout)
    last = model.engine.log[-1]
    assert row.tokens.ids == (*last.prompt, *last.ids)
    drawn = [number for number, sampled in zip(row.tokens.ids, row.tokens.sampled, strict=True) if sampled]
    assert drawn == [number for sample in model.engine.log for number in sample.ids]


@pytest.mark.parametrize("name", list(KNOWN))
async def test_a_real_agent_does_a_task_in_a_container(docker_single_fleet, agents, name):
    harness = agents.real(KNOWN[name])

    async def once(model: Model, **fields: Any) -> Rollout:
        job = Job(agents.GREETING, Policy(model, **fields, agent=HarnessAgent(harness)), seed=5)
        async with in_pool(docker_single_fleet) as pool:
            return await run(job, Runner(TerminalTest(), pool))

    await agents.check_task(KNOWN[name], once)


async def test_a_remote_agent_is_cancelled_in_the_middle_of_a_model_call(docker_fleet, agents):
    async with in_pool(docker_fleet) as pool:
        asked = asyncio.Event()

        async def think(*_: object) -> Message:
            asked.set()
            await asyncio.Event().wait()
            return say("Never.")

        job = Job(agents.GREETING, Policy(ScriptedModel(think), agent=HarnessAgent(agents.TINY)))
        running = asyncio.create_task(run(job, Runner(TerminalTest(), pool)))
        await asked.wait()
        running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()
        done = Job(agents.GREETING, Policy(ScriptedModel([say("Nothing.")]), agent=HarnessAgent(agents.TINY)))
        assert (await run(done, Runner(TerminalTest(), pool))).answer == "Nothing."
