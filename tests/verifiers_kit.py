"""Rollouts of environments of the package verifiers."""

import asyncio
from collections.abc import Sequence

from ludus.agent import Limits, Policy
from ludus.compat.verifiers_env import VerifiersActor, VerifiersEnv
from ludus.models.scripted import Reply, Script, ScriptedModel
from ludus.rollout import Job, run
from ludus.skill import Skill
from ludus.types import Rollout


def roll(env: VerifiersEnv, *replies: Reply, skill: str = "") -> Rollout:
    """A rollout of the only task, with a model that says these replies."""
    return roll_all(env, replies, skill=skill)[0]


def roll_all(
    env: VerifiersEnv, script: Script | Sequence[Reply], *, skill: str = "", size: int = 1, limits: Limits = Limits()
) -> list[Rollout]:
    """`size` rollouts of each task of the split `test`, all at the same time."""

    async def main() -> list[Rollout]:
        model = ScriptedModel(script, "m")
        actor = VerifiersActor(env, model)
        policy = Policy(model, Skill(skill) if skill else None, actor=actor, limits=limits)
        jobs = [Job(task, policy, number, seed=number) for task in env.tasks("test") for number in range(size)]
        try:
            return list(await asyncio.gather(*(run(job, env, None) for job in jobs)))
        finally:
            await actor.close()

    return asyncio.run(main())
