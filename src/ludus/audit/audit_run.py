"""Runs the arms of an audit and collects their outcomes."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from ludus.audit.arms import REFERENCE, Arm, ReferenceAgent
from ludus.audit.findings import Outcome
from ludus.audit.players import NO_SHELL
from ludus.engine import address_jobs, derive_seed, run_stored
from ludus.policy import Agent, Policy
from ludus.runner import Job, Runner
from ludus.types import Rollout, StopReason, Task

OpenAgent = Callable[[Arm, AsyncExitStack], Awaitable[Agent | None]]
"""Opens the agent that acts for an arm in place of the loop, if the environment brings one."""
OnOutcome = Callable[[Rollout, Outcome], None]


async def run_arms(
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    runner: Runner,
    policy: Policy,
    open_agent: OpenAgent,
    on_outcome: OnOutcome,
) -> None:
    """Run every arm on every task. The first attack in a slot shows which tasks have a shell; the other attacks of its
    kind are run on those alone."""
    shell = [arm for arm in arms if arm.needs_shell]
    no_shell: set[str] = set()

    def note(rollout: Rollout, outcome: Outcome) -> None:
        if rollout.answer.strip() == NO_SHELL:
            no_shell.add(rollout.task.id)
        else:
            on_outcome(rollout, outcome)

    async def run_wave(arms: Sequence[Arm]) -> None:
        left = [task for task in tasks if task.id not in no_shell]
        while arms:
            async with AsyncExitStack() as stack:
                is_reference = arms[0].name == REFERENCE
                agent = ReferenceAgent(runner.env) if is_reference else await open_agent(arms[0], stack)
                batch = arms if agent is None else arms[:1]  # agents that are opened may hold much: each is alone
                await _run_batch(batch, left, replace(policy, agent=agent), runner, note)
            arms = arms[len(batch) :]

    await run_wave([arm for arm in arms if not arm.needs_shell] + shell[:1])
    await run_wave(shell[1:])


async def _run_batch(
    arms: Sequence[Arm], tasks: Sequence[Task], policy: Policy, runner: Runner, note: OnOutcome
) -> None:
    """Run arms side by side, with the policy's agent."""
    policies = [replace(policy, model=arm.model) for arm in arms]
    owners = {own.fingerprint: arm for own, arm in zip(policies, arms, strict=True)}
    jobs = [
        Job(task, own, number, derive_seed(0, task.id, number))
        for own, arm in zip(policies, arms, strict=True)
        for task in tasks
        for number in range(arm.repeats)
    ]

    def keep(key: str, rollout: Rollout) -> None:
        note(rollout, make_outcome(owners[rollout.provenance.policy], rollout))

    # an audit shows what was paid, suspects too
    await run_stored(address_jobs(jobs, runner.env), replace(runner, suspects="keep"), on_outcome=keep)


def make_outcome(arm: Arm, rollout: Rollout) -> Outcome:
    """What a rollout of an arm came to."""
    score, failure = rollout.score, rollout.failure
    return Outcome(
        arm.name,
        arm.kind,
        rollout.task.id,
        None if score is None else score.value,
        score is not None and score.passed,
        () if score is None else score.suspect,
        rollout.stop is StopReason.FORGED,
        "" if failure is None else failure.message,
    )


def sort_outcomes(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """The outcomes of each task."""
    found: dict[str, list[Outcome]] = {}
    for each in outcomes:
        found.setdefault(each.task, []).append(each)
    return found
