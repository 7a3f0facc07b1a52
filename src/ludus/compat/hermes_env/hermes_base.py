"""`HermesAgentBaseEnv`: the base class of files that were written for Hermes.

The agent acts with the tools of the group; then the file judges: with `verify_and_score_trajectory` and `exec_tool` if
it defines them, else with `compute_reward` and a `ToolContext`. `slot_rollouts` has the life of a rollout.
"""

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, ClassVar

from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.file_host import await_if_needed
from ludus.compat.atropos_env.scored_data import Item
from ludus.compat.hermes_env.hermes_config import HermesAgentEnvConfig
from ludus.compat.hermes_env.hermes_context import HermesToolContext, get_desk, make_hermes_exec
from ludus.compat.hermes_env.hermes_loop import HermesAgentLoop, HermesAgentResult
from ludus.compat.hermes_env.hermes_tools import choose_tools, list_schemas
from ludus.compat.hermes_env.slot_desk import SlotDesk
from ludus.compat.hermes_env.slot_rollouts import Judged, SlotRolloutEnv

GroupTools = tuple[list[dict[str, Any]], set[str]]
GROUP_TOOLS: contextvars.ContextVar[GroupTools | None] = contextvars.ContextVar("ludus_group_tools", default=None)
"""The tools of the group that runs. Groups run side by side, so they are no attribute."""
JUDGES = 64
"""Reward functions that run at once. They block, so each has a thread."""


class HermesAgentBaseEnv(SlotRolloutEnv):
    """`environments.hermes_base_env.HermesAgentBaseEnv`."""

    name: ClassVar[str | None] = None
    env_config_cls: ClassVar[Any] = HermesAgentEnvConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._current_group_tools: GroupTools | None = None
        self._tool_error_buffer: list[dict[str, Any]] = []
        self._judges = ThreadPoolExecutor(JUDGES, thread_name_prefix="ludus-reward")
        self.server.tool_parser = self.config.tool_call_parser

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

    def _resolve_tools_for_group(self) -> GroupTools:
        """The schemas and the names of the tools of a group."""
        desk = get_desk()
        toolsets = choose_tools(self.config, desk.registry, get_scope().seed)
        schemas = list_schemas(desk.registry, toolsets)
        return schemas, {schema["function"]["name"] for schema in schemas}

    async def collect_trajectories(self, item: Item) -> Any:
        """`group_size` rollouts at once, with the tools of the group."""
        tools = self._current_group_tools = self._resolve_tools_for_group()
        GROUP_TOOLS.set(tools)
        return await super().collect_trajectories(item)

    # ---- rollouts -------------------------------------------------------------------------------------------------

    def _make_messages(self, item: Item) -> list[dict[str, Any]]:
        system = self.config.system_prompt
        prompt = {"role": "user", "content": self.format_prompt(item)}
        return [{"role": "system", "content": system}, prompt] if system else [prompt]

    def _make_exec(self, desk: SlotDesk, task_id: str) -> Any:
        return make_hermes_exec(desk, task_id)

    async def _act(self, item: Item, messages: list[dict[str, Any]], task_id: str) -> HermesAgentResult:
        schemas, names = GROUP_TOOLS.get() or self._resolve_tools_for_group()
        config = self.config
        managed = self.server.managed_server() if self._use_managed_server() else nullcontext(self.server)
        async with managed as server:
            loop = HermesAgentLoop(
                server,
                schemas,
                names,
                max_turns=config.max_agent_turns,
                task_id=task_id,
                temperature=config.agent_temperature,
                max_tokens=config.max_token_length,
                extra_body=config.extra_body,
                budget_config=config.build_budget_config(),
            )
            result = await loop.run(messages)
        self._tool_error_buffer += [vars(error) for error in result.tool_errors]
        return result

    def _make_broken(self, messages: list[dict[str, Any]]) -> HermesAgentResult:
        return HermesAgentResult(messages)

    def _has_acted(self, result: HermesAgentResult) -> bool:
        return bool(result.turns_used)

    async def _call_judge(self, desk: SlotDesk, item: Item, result: Any, task_id: str, meta: Any) -> Judged:
        reward, said = await self.verify_and_score_trajectory(
            item,
            result,
            trajectory_id=task_id,
            exec_tool=self._make_exec(desk, task_id),
            workspace_meta=meta,
        )
        return float(reward), said

    async def _compute_reward(self, item: Item, result: Any, task_id: str) -> float:
        """Call `compute_reward` in a thread of its own: it waits for its slot without letting others run."""
        context = HermesToolContext(task_id)

        async def compute() -> float:
            return float(await await_if_needed(self.compute_reward(item, result, context)))

        inherited = contextvars.copy_context()

        def work() -> float:
            return inherited.run(lambda: asyncio.run(compute()))

        return await asyncio.get_running_loop().run_in_executor(self._judges, work)

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        metrics = dict(wandb_metrics or {})
        metrics["train/tool_errors_count"] = len(self._tool_error_buffer)
        self._tool_error_buffer = []
        await super().wandb_log(metrics)
