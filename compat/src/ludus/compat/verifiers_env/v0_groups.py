"""Rollouts of `verifiers` 0.1 that are scored together: rewards that take `completions` or `states`, and tasksets of
`verifiers.v1` in that release (`init_group`, signals of the stage `group`).

    play each rollout ──> states that wait ──> score them all ──> rewards

The package plays and scores a group in one call with one client. Here each rollout has a client of its own, so that
its requests are its own, and the steps of that call are made one by one.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ludus.policy import Together
from ludus.types import JsonObject


def scores_groups(environment: Any) -> bool:
    """Whether the rewards of an environment, or of one in it (`EnvGroup`), need all rollouts of a task."""
    inner = any(map(scores_groups, getattr(environment, "envs", ())))
    return inner or bool(getattr(environment, "requires_group_rollouts", False))


def has_empty_rubric(environment: Any) -> bool:
    """Whether a rubric has no functions. The package then scores groups, of one rollout too, but no single rollout."""
    rubric = getattr(environment, "rubric", None)
    parts = getattr(rubric, "rubrics", None) or [rubric]
    return any(getattr(part, "funcs", None) == [] and not hasattr(part, "env_map") for part in parts)


class GroupPlays:
    """The rollouts of an environment that wait for their reward."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._starts: WeakKeyDictionary[Together, _GroupStart] = WeakKeyDictionary()
        self._waiting: dict[str, tuple[Any, Any]] = {}
        """Task and state of each rollout, by the name of the rollout."""

    async def play(self, row: JsonObject, client: Any, model: str, together: Together | None) -> tuple[str, Any]:
        """One rollout without its reward: its name for `score`, and its state."""
        environment = self._environment
        if hasattr(environment, "taskset") and hasattr(environment, "harness"):
            task, state = await self._start(row, together)
            controls: JsonObject = {"client": client, "model": model, "sampling_args": {}}
            environment.apply_controls([state], {**controls, "score_rollout": environment.score_rollouts})
            state = await environment.harness.run(task, state)
        else:
            task, state = None, await environment.rollout(row, client, model, {})
        name = uuid.uuid4().hex
        self._waiting[name] = (task, state)
        return name, state

    def drop(self, name: str) -> None:
        """Forget a rollout that has failed."""
        self._waiting.pop(name, None)

    async def score(self, names: Sequence[str]) -> list[Any]:
        """The states of these rollouts with their rewards.

        Raises:
            KeyError: one of them was not played by this process, or has its reward.
        """
        pairs = [self._waiting.pop(name) for name in names]
        tasks, states = [task for task, _ in pairs], [state for _, state in pairs]
        environment = self._environment
        if tasks[0] is None:
            rubric = environment.rubric
            await (rubric.score_group if environment.score_rollouts else rubric.dummy_score_group)(states)
            for state in states:
                await rubric.cleanup(state)
            return states
        try:
            if environment.score_rollouts:
                await environment.harness.score_group(tasks, states)
        finally:
            await environment.harness.cleanup_group(tasks, states)
        return states

    async def _start(self, row: JsonObject, together: Together | None) -> tuple[Any, Any]:
        if together is None:
            return await _GroupStart(self._environment, row, 1).take()
        start = self._starts.setdefault(together, _GroupStart(self._environment, row, together.size))
        return await start.take()


class _GroupStart:
    """Tasks and states as `init_group` of a taskset makes them for a group."""

    def __init__(self, environment: Any, row: JsonObject, size: int) -> None:
        self._taskset = environment.taskset
        self._row = row
        self._size = size
        self._key = uuid.uuid4().hex
        self._made: list[tuple[Any, Any]] = []
        self._making = asyncio.Lock()

    async def take(self) -> tuple[Any, Any]:
        """Task and state of the next rollout. For one that is run again after a failure they are made anew."""
        async with self._making:
            if not self._made:
                self._made = await self._make()
            return self._made.pop(0)

    async def _make(self) -> list[tuple[Any, Any]]:
        tasks, states = await self._taskset.init_group(self._taskset.to_task(self._row), self._size)
        if len(tasks) != self._size or len(states) != self._size:
            raise ValueError(f"init_group must return a task and a state for each of the {self._size} rollouts")
        for state in states:
            state.setdefault("runtime", {})["group_key"] = self._key
        return list(zip(tasks, states, strict=True))
