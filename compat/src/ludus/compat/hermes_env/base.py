"""`HermesAgentBaseEnv`: the base class of files that were written for Hermes.

    collect_trajectory ──> _collect_trajectory_local, or _sandbox with a pool ──> _run_agent_loop ──> _build_scored_item

The agent acts with the tools of the group; then the file judges: with `verify_and_score_trajectory` and `exec_tool` if
it defines them, else with `compute_reward` and a `ToolContext`. `slot_rollouts` has the life of a rollout. All of these
are methods that files change, so they are called where Hermes calls them.
"""

import asyncio
import contextvars
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar
from uuid import uuid4

from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.file_host import await_if_needed
from ludus.compat.atropos_env.scored_data import Item
from ludus.compat.hermes_env.config import HermesAgentEnvConfig
from ludus.compat.hermes_env.context import HermesToolContext, get_slots, make_hermes_exec
from ludus.compat.hermes_env.context_threads import ContextThreads
from ludus.compat.hermes_env.loop import HermesAgentLoop, HermesAgentResult
from ludus.compat.hermes_env.pool_backend import PoolBackend, create_tool_backend
from ludus.compat.hermes_env.slot_rollouts import Judged, Scored, SlotRolloutEnv
from ludus.compat.hermes_env.task_slots import TaskSlots
from ludus.compat.hermes_env.tools import ChosenTools, choose_tools, list_schemas

Schemas = list[dict[str, Any]]
Conversation = list[dict[str, Any]]
GroupTools = tuple[Schemas, set[str]]
GROUP_TOOLS: contextvars.ContextVar[GroupTools | None] = contextvars.ContextVar("ludus_group_tools", default=None)
"""The tools of the group that runs. Groups run side by side, so they are no attribute."""
JUDGES = 64
"""Reward functions that run at once. They block, so each has a thread."""
TERMINAL_ENV, SLOT_POOL = "TERMINAL_ENV", "slot_pool"
"""The variable with the terminal backend, and its value with a pool."""


class HermesAgentBaseEnv(SlotRolloutEnv):
    """`environments.hermes_base_env.HermesAgentBaseEnv`."""

    name: ClassVar[str | None] = None
    env_config_cls: ClassVar[Any] = HermesAgentEnvConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._group_tools: GroupTools | None = None
        self._tool_error_buffer: list[dict[str, Any]] = []
        self._tool_calls = 0
        """Calls since the last log."""
        self._sandbox_backend: PoolBackend | None = None
        self._told: set[str] = set()
        self._judges = ContextThreads(JUDGES, "ludus-reward")
        self._terminal_before = os.environ.get(TERMINAL_ENV)
        if self.config.terminal_backend:
            os.environ[TERMINAL_ENV] = self.config.terminal_backend
        self.server.tool_parser = self.config.tool_call_parser

    # ---- the run --------------------------------------------------------------------------------------------------

    async def begin_run(self) -> None:
        asyncio.get_running_loop().set_default_executor(ContextThreads(JUDGES, "ludus-file"))
        if self.services.slots is not None:  # an unknown toolset is refused before the first rollout
            self._choose_toolsets()
        await super().begin_run()

    async def end_run(self) -> None:
        try:
            await super().end_run()
        finally:
            set_variable(TERMINAL_ENV, self._terminal_before)

    async def env_manager(self) -> None:
        await self._hold_with_backend(super().env_manager)

    async def process_manager(self) -> None:
        await self._hold_with_backend(super().process_manager)

    async def _hold_with_backend(self, hold: Callable[[], Any]) -> None:
        await self._start_sandbox_backend()
        try:
            await hold()
        finally:
            await self._stop_sandbox_backend()

    async def _start_sandbox_backend(self) -> None:
        """Called before the file is set up. The pool itself is opened by the run."""
        if self.config.tool_pool_mode != "default" and self.services.slots is not None:
            os.environ[TERMINAL_ENV] = SLOT_POOL
            self._sandbox_backend = create_tool_backend(self.config)
            await self._sandbox_backend.start()

    async def _stop_sandbox_backend(self) -> None:
        """Called after the last group."""
        if self._sandbox_backend is not None:
            await self._sandbox_backend.stop(purge=self.config.purge_job_on_shutdown)
            self._sandbox_backend = None

    def _use_sandbox_backend(self) -> bool:
        return self.config.tool_pool_mode != "default" and self._sandbox_backend is not None

    # ---- what files define ----------------------------------------------------------------------------------------

    def format_prompt(self, item: Item) -> str:
        raise NotImplementedError(f"{type(self).__name__} does not define format_prompt(item)")

    async def compute_reward(self, item: Item, result: Any, ctx: Any) -> float:
        raise NotImplementedError(f"{type(self).__name__} does not define compute_reward(item, result, ctx)")

    async def verify_and_score_trajectory(
        self, item: Item, result: Any, *, trajectory_id: str, exec_tool: Any, workspace_meta: Any = None
    ) -> tuple[float, dict[str, Any]]:
        """Judge in the slot. By default: `compute_reward`."""
        return await self._compute_reward(item, result, trajectory_id), {}

    # ---- what files use -------------------------------------------------------------------------------------------

    @property
    def _current_group_tools(self) -> GroupTools | None:
        """The tools of the group that runs; outside of one, those of the last."""
        return GROUP_TOOLS.get() or self._group_tools

    @_current_group_tools.setter
    def _current_group_tools(self, tools: GroupTools | None) -> None:
        self._group_tools = tools
        GROUP_TOOLS.set(tools)

    def _resolve_tools_for_group(self) -> GroupTools:
        """The schemas and the names of the tools of a group."""
        schemas = list_schemas(get_slots().registry, self._choose_toolsets().toolsets)
        return schemas, {schema["function"]["name"] for schema in schemas}

    def _choose_toolsets(self) -> ChosenTools:
        scope = get_scope()
        chosen = choose_tools(self.config, get_slots().registry, scope.seed)
        scope.offer = scope.offer._replace(toolsets=chosen.toolsets, skipped=chosen.skipped)
        for note in [note for note in chosen.notes if note not in self._told]:
            self._told.add(note)
            self.services.loop.call_soon_threadsafe(self.services.tell, note)
        return chosen

    async def collect_trajectories(self, item: Item) -> Any:
        """`group_size` rollouts at once, with the tools of the group."""
        self._current_group_tools = self._resolve_tools_for_group()
        return await super().collect_trajectories(item)

    # ---- rollouts -------------------------------------------------------------------------------------------------

    async def _run_rollout(self, item: Item) -> Scored:
        tools, names = GROUP_TOOLS.get() or self._resolve_tools_for_group()
        messages = self._make_messages(item)
        collect = self._collect_trajectory_sandbox if self._use_sandbox_backend() else self._collect_trajectory_local
        return await collect(item, str(uuid4()), tools, names, messages)

    async def _collect_trajectory_local(
        self, item: Item, task_id: str, tools: Schemas, valid_names: set[str], messages: Conversation
    ) -> Scored:
        """One rollout without a pool. It has a slot of its own, too."""
        return await self._collect_with_tools(item, task_id, tools, valid_names, messages)

    async def _collect_trajectory_sandbox(
        self, item: Item, task_id: str, tools: Schemas, valid_names: set[str], messages: Conversation
    ) -> Scored:
        """One rollout in a slot of a pool. Every tool acts in it."""
        return await self._collect_with_tools(item, task_id, tools, valid_names, messages)

    async def _collect_with_tools(
        self, item: Item, task_id: str, tools: Schemas, names: set[str], messages: Conversation
    ) -> Scored:
        return await self._collect_in_slot(
            item, task_id, messages, lambda: self._run_agent_loop(task_id, tools, names, messages)
        )

    def _make_messages(self, item: Item) -> list[dict[str, Any]]:
        system = self.config.system_prompt
        prompt = {"role": "user", "content": self.format_prompt(item)}
        return [{"role": "system", "content": system}, prompt] if system else [prompt]

    def _make_exec(self, slots: TaskSlots, task_id: str) -> Any:
        return make_hermes_exec(slots, task_id)

    async def _run_agent_loop(
        self,
        task_id: str,
        tools: Schemas,
        valid_names: set[str],
        messages: Conversation,
        tool_handler: Callable[[str, dict[str, Any], str], Any] | None = None,
    ) -> HermesAgentResult:
        """Let the agent act, with exact ids if the model gives them. It adds to the messages."""
        config = self.config
        managed = self.server.managed_server() if self._use_managed_server() else nullcontext(self.server)
        async with managed as server:
            loop = HermesAgentLoop(
                server,
                tools,
                valid_names,
                max_turns=config.max_agent_turns,
                task_id=task_id,
                temperature=config.agent_temperature,
                max_tokens=config.max_token_length,
                extra_body=config.extra_body,
                budget_config=config.build_budget_config(),
                tool_handler=tool_handler,
            )
            return await loop.run(messages)

    def _build_scored_item(self, item: Item, result: Any, reward: float) -> Scored:
        self._tool_calls += sum(message.get("role") == "tool" for message in result.messages)
        for error in result.tool_errors:
            self._tool_error_buffer.append(
                {
                    "turn": error.turn,
                    "tool": error.tool_name,
                    "args": error.arguments[:150],
                    "error": error.error[:300],
                    "result": error.tool_result[:300],
                }
            )
        return super()._build_scored_item(item, result, reward)

    def _make_broken(self, messages: list[dict[str, Any]]) -> HermesAgentResult:
        return HermesAgentResult(messages)

    def _has_acted(self, result: HermesAgentResult) -> bool:
        return bool(result.turns_used)

    async def _call_judge(self, slots: TaskSlots, item: Item, result: Any, task_id: str, meta: Any) -> Judged:
        reward, said = await self.verify_and_score_trajectory(
            item,
            result,
            trajectory_id=task_id,
            exec_tool=self._make_exec(slots, task_id),
            workspace_meta=meta,
        )
        return float(reward), said

    async def _compute_reward(self, item: Item, result: Any, task_id: str) -> float:
        """Call `compute_reward` in a thread of its own: it waits for its slot without letting others run."""
        context = HermesToolContext(task_id)

        async def compute() -> float:
            return float(await await_if_needed(self.compute_reward(item, result, context)))

        return await asyncio.get_running_loop().run_in_executor(self._judges, lambda: asyncio.run(compute()))

    # ---- metrics --------------------------------------------------------------------------------------------------

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        metrics = dict(wandb_metrics or {})
        errors, calls = self._tool_error_buffer, self._tool_calls
        self._tool_error_buffer, self._tool_calls = [], 0
        metrics["train/tool_errors_count"] = len(errors)
        metrics["train/tool_error_rate"] = len(errors) / calls if calls else 0.0
        if errors:
            metrics["train/tool_error_details"] = "\n".join(map(describe_tool_error, errors))
        await super().wandb_log(metrics)


def describe_tool_error(error: dict[str, Any]) -> str:
    """One line about a failed call."""
    return f"[turn {error['turn']}] {error['tool']}({error['args'][:80]}) -> {error['error'][:150]}"


def set_variable(name: str, value: str | None) -> None:
    """Set a variable of this process, or remove it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
