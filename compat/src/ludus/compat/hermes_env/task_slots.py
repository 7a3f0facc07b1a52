"""The slots of a file's rollouts, by task id, for code that runs in the file's own thread.

A slot is leased when a task id is first used, and given back by `release`. Calls go to the loop of Ludus: awaited from
coroutines (`call`), or waited for in plain functions (`wait`).
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.server_view import call_loop
from ludus.errors import ConfigError, SandboxError
from ludus.result_budget import RESULTS
from ludus.sandbox import WORKSPACE, Sandbox, SandboxSpec
from ludus.sandbox.pool import Pool
from ludus.tools import Tool
from ludus.tools.toolsets import Registry
from ludus.types import Observation

T = TypeVar("T")
IMAGES = ("modal_image", "docker_image", "singularity_image", "daytona_image")


class TaskSlots:
    """The slots of one run."""

    def __init__(
        self,
        pool: Pool,
        spec: SandboxSpec,
        registry: Registry,
        images: Mapping[str, str],
        loop: asyncio.AbstractEventLoop,
        calls_at_once: int = 128,
        prepare: str = "",
    ) -> None:
        self.registry = registry
        self._pool = pool
        self._spec = spec
        self._images = images
        """The profile for each image."""
        self._loop = loop
        self._places = asyncio.Semaphore(calls_at_once)
        self._changes: dict[str, Mapping[str, Any]] = {}
        self._prepare = prepare
        """A command that every slot begins with; empty: none."""
        self._prepared: set[str] = set()

    @property
    def command_seconds(self) -> float:
        """The time limit of a command that is given none."""
        return self._spec.command_seconds

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in the loop of Ludus, from any loop."""
        return await call_loop(self._loop, self._note_failure(work))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in the loop of Ludus, and wait for it in this thread."""
        return asyncio.run_coroutine_threadsafe(self._note_failure(work), self._loop).result()

    async def _note_failure(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except SandboxError as error:
            get_scope().failures.append(error)
            raise

    # ---- in the loop of Ludus -------------------------------------------------------------------------------------

    async def get(self, task_id: str) -> Sandbox:
        box = await self._pool.acquire(task_id, self._make_spec(task_id))
        if self._prepare and task_id not in self._prepared:
            self._prepared.add(task_id)
            await box.exec(self._prepare)
        return box

    def get_folder(self, task_id: str) -> str:
        """Where the commands of a task start."""
        return str(self._changes.get(task_id, {}).get("cwd") or WORKSPACE)

    async def make_tools(self, task_id: str, toolsets: Sequence[str], lengths: Mapping[str, int]) -> list[Tool]:
        """The tools of a rollout, in its slot."""
        tools = self.registry.make_tools(toolsets, await self.get(task_id))
        for tool in tools:
            tool.result_chars = lengths.get(tool.name, tool.result_chars)
        return tools

    async def run_tool(self, tool: Tool, arguments: dict[str, Any]) -> str | Observation:
        async with self._places:
            return await tool.run(arguments)

    async def spill(self, task_id: str, name: str, data: bytes) -> str:
        """Write a result that is too long to show."""
        box, path = await self.get(task_id), f"{RESULTS}/{name}"
        try:
            await box.write(path, data)
        except OSError:  # the agent filled the slot's disk: it gets the preview alone
            return ""
        return box.resolve(path)

    async def settle(self, task_id: str) -> None:
        """End the processes of the agent."""
        await (await self.get(task_id)).settle()

    async def release(self, task_id: str) -> None:
        self._changes.pop(task_id, None)
        self._prepared.discard(task_id)
        self._pool.release(task_id)

    # ---- settings of single tasks ---------------------------------------------------------------------------------

    def change(self, task_id: str, changes: Mapping[str, Any]) -> None:
        """Set the image or the folder of one task, before its slot is leased."""
        self._changes[task_id] = dict(changes)
        self._make_spec(task_id)

    def forget_change(self, task_id: str) -> None:
        self._changes.pop(task_id, None)

    def _make_spec(self, task_id: str) -> SandboxSpec:
        given = self._changes.get(task_id, {})
        image = next((str(given[name]) for name in IMAGES if given.get(name)), "")
        if not image:
            return self._spec
        if image not in self._images:
            raise ConfigError(
                f"the file asks for the image '{image}' for one task: add a profile with it, for example "
                f"--sandbox.profiles.NAME.backend docker --sandbox.profiles.NAME.image {image}"
            )
        return msgspec.structs.replace(self._spec, profile=self._images[image])
