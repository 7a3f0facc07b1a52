"""`atropos.backends`: the pool of slots as files of the sandbox branch see it.

    backend = create_tool_backend(config)
    slot = await backend.acquire("trajectory-1")
    (result,) = await backend.execute_batch([(slot, "bash", {"command": "ls"})], timeout_s=60)
    await backend.release(slot, reset_workspace=True)

The pool belongs to the run, which opens and closes it: `start` and `stop` do nothing. A slot is that of its trajectory.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from ludus.compat.hermes_env.context import HermesExecResult, get_slots, make_hermes_exec
from ludus.compat.hermes_env.task_slots import TaskSlots
from ludus.sandbox import WORKSPACE

SECONDS = 30.0
"""The time limit of a command that is given none."""


@dataclass
class PoolSlot:
    """`atropos.slots.Slot`: the slot of one trajectory."""

    slot_id: str
    alloc_id: str = ""
    container_addr: str = ""
    workspace_dir: str = WORKSPACE
    trajectory_id: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


class PoolBackend:
    """`atropos.backends.base.ToolBackend`, over the slots of the run."""

    def __init__(self, slots: TaskSlots, default_timeout_s: float = SECONDS) -> None:
        self._slots = slots
        self.default_timeout_s = default_timeout_s

    async def start(self) -> None:
        """The run has opened the pool."""

    async def stop(self, *, purge: bool = False) -> None:
        """The run closes the pool, and removes its jobs."""

    async def acquire(self, trajectory_id: str | None = None) -> PoolSlot:
        task_id = trajectory_id or str(uuid4())
        await self._slots.call(self._slots.get(task_id))
        return PoolSlot(task_id, trajectory_id=task_id)

    async def release(self, slot: PoolSlot, *, reset_workspace: bool = False) -> None:
        """Give a slot back. It is not used again, so there is nothing to reset."""
        await self._slots.call(self._slots.release(slot.slot_id))

    async def execute_batch(
        self, requests: Sequence[tuple[PoolSlot, str, dict[str, Any]]], timeout_s: float | None = None
    ) -> list[HermesExecResult]:
        """The results of calls in many slots, in the order of the calls."""
        seconds = timeout_s or self.default_timeout_s
        calls = (make_hermes_exec(self._slots, slot.slot_id)(tool, args, seconds) for slot, tool, args in requests)
        return list(await asyncio.gather(*calls))


def create_tool_backend(config: Any = None, **_: Any) -> PoolBackend:
    """The pool of the run. Its settings are those of the run, so those in `config` change nothing."""
    return PoolBackend(get_slots(), float(getattr(config, "modal_execution_timeout", SECONDS)))
