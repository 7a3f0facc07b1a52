"""Rollouts of environments of the package verifiers."""

import asyncio
from collections.abc import Sequence
from typing import Any

from ludus.compat.verifiers_env import VerifiersEnv
from ludus.engine import run_group
from ludus.models.scripted import Reply, Script, ScriptedModel
from ludus.policy import Limits, Policy
from ludus.rollout import run
from ludus.runner import Job, Runner, RunOptions
from ludus.skill import Skill
from ludus.types import Group, Rollout


def roll(env: VerifiersEnv, *replies: Reply, skill: str = "") -> Rollout:
    """A rollout of the only task, with a model that says these replies."""
    return roll_all(env, replies, skill=skill)[0]


def roll_all(
    env: VerifiersEnv, script: Script | Sequence[Reply], *, skill: str = "", size: int = 1, limits: Limits = Limits()
) -> list[Rollout]:
    """`size` rollouts of each task of the split `test`, all at the same time."""

    async def main() -> list[Rollout]:
        model = ScriptedModel(script, "m")
        agent = env.make_agent(model)
        policy = Policy(model, Skill(skill) if skill else None, agent=agent, limits=limits)
        jobs = [Job(task, policy, number, seed=number) for task in env.tasks("test") for number in range(size)]
        try:
            return list(await asyncio.gather(*(run(job, Runner(env)) for job in jobs)))
        finally:
            await agent.close()

    return asyncio.run(main())


def roll_group(env: VerifiersEnv, script: Script | Sequence[Reply], size: int, **options: Any) -> list[Rollout]:
    """`size` rollouts of the first task, as a run runs them."""

    async def main() -> Group:
        model = ScriptedModel(script, "m")
        agent = env.make_agent(model)
        task, policy = next(iter(env.tasks("test"))), Policy(model, agent=agent)
        try:
            return await run_group(task, policy, Runner(env, options=RunOptions(**options)), size=size)
        finally:
            await agent.close()

    return list(asyncio.run(main()).rollouts)
