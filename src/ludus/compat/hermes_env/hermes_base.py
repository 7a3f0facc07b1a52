"""`HermesAgentBaseEnv`: the base class of files that were written for Hermes.

A rollout has a slot of its own. The agent acts there with the tools of the group; then its processes are ended and the
file judges: with `verify_and_score_trajectory` and `exec_tool` if it defines them, else with `compute_reward` and a
`ToolContext`. A model or a slot that fails is a failure, not a reward of 0. If the file raises while it judges, the
same is tried in a slot that no agent has touched: if it works there, the agent broke it, and the reward is 0.
"""

import asyncio
import contextvars
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, ClassVar
from uuid import uuid4

from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.file_host import await_if_needed
from ludus.compat.atropos_env.scored_data import Item, join_items
from ludus.compat.atropos_env.server_view import SequenceNode
from ludus.compat.atropos_env.tokenizer_view import build_row
from ludus.compat.hermes_env.hermes_config import HermesAgentEnvConfig
from ludus.compat.hermes_env.hermes_context import HermesToolContext, get_desk, make_hermes_exec
from ludus.compat.hermes_env.hermes_loop import HermesAgentLoop, HermesAgentResult
from ludus.compat.hermes_env.hermes_tools import choose_tools, list_schemas
from ludus.compat.hermes_env.slot_desk import SlotDesk
from ludus.errors import (
    ConfigError,
    LudusError,
    ModelUnusable,
    RolloutError,
    SandboxError,
    SetupError,
    VerifierError,
    boundary,
    describe_error,
)

GroupTools = tuple[list[dict[str, Any]], set[str]]
GROUP_TOOLS: contextvars.ContextVar[GroupTools | None] = contextvars.ContextVar("ludus_group_tools", default=None)
"""The tools of the group that runs. Groups run side by side, so they are no attribute."""
JUDGES = 64
"""Reward functions that run at once. They block, so each has a thread."""


class HermesAgentBaseEnv(BaseEnv):
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

    async def setup_trajectory_workspace(self, item: Item, *, trajectory_id: str, exec_tool: Any) -> dict[str, Any]:
        """Prepare the slot. Returns what `verify_and_score_trajectory` gets as `workspace_meta`."""
        return {}

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

    def _use_managed_server(self) -> bool:
        """Whether the model gives exact ids."""
        return self.server.servers[0].desk.token_model is not None

    async def collect_trajectories(self, item: Item) -> Any:
        """`group_size` rollouts at once. Those that fail are on record and leave the group smaller."""
        tools = self._current_group_tools = self._resolve_tools_for_group()
        GROUP_TOOLS.set(tools)
        done = await asyncio.gather(*(self._collect_or_note(item) for _ in range(self.config.group_size)))
        rows = [row for row, _ in done if row]
        backlog = [each for _, more in done for each in more or ()]
        return (join_items(rows) if rows else None), backlog

    async def _collect_or_note(self, item: Item) -> tuple[Any, list[Any]]:
        try:
            return await self.collect_trajectory(item)
        except ModelUnusable:
            raise
        except RolloutError as error:
            get_scope().failed.append(error.as_failure())
            return None, []

    async def collect_trajectory(self, item: Item) -> tuple[Any, list[Any]]:
        """One rollout, run again in a fresh slot after a failure that is not the agent's."""
        for repeats_left in reversed(range(self.services.retries + 1)):
            try:
                row = await self._run_rollout(item)
            except ModelUnusable:
                raise
            except RolloutError as error:
                if not repeats_left or not error.retryable:
                    raise
            else:
                get_scope().rows.append(row)
                return row, []
        raise AssertionError("the last repetition returns or raises")

    async def _run_rollout(self, item: Item) -> dict[str, Any]:
        desk, task_id = get_desk(), str(uuid4())
        try:
            meta = await self._set_up(desk, item, task_id)
            messages = self._make_messages(item)
            try:
                result = await self._act(messages, task_id)
                await desk.call(desk.settle(task_id))
                reward = await self._judge(desk, item, result, task_id, meta)
            except SandboxError as error:
                if not error.evidence.inside:
                    raise
                result, reward = HermesAgentResult(messages), 0.0  # the agent broke its slot
            return self._build_scored_item(item, result, reward)
        finally:
            await desk.call(desk.release(task_id))

    def _make_messages(self, item: Item) -> list[dict[str, Any]]:
        system = self.config.system_prompt
        prompt = {"role": "user", "content": self.format_prompt(item)}
        return [{"role": "system", "content": system}, prompt] if system else [prompt]

    async def _set_up(self, desk: SlotDesk, item: Item, task_id: str) -> Any:
        with boundary(SetupError, f"{type(self).__name__}: setup_trajectory_workspace"):
            return await self.setup_trajectory_workspace(
                item, trajectory_id=task_id, exec_tool=make_hermes_exec(desk, task_id)
            )

    async def _act(self, messages: list[dict[str, Any]], task_id: str) -> HermesAgentResult:
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

    # ---- judging --------------------------------------------------------------------------------------------------

    async def _judge(self, desk: SlotDesk, item: Item, result: HermesAgentResult, task_id: str, meta: Any) -> float:
        if not result.turns_used:
            return 0.0
        try:
            return await self._call_judge(desk, item, result, task_id, meta)
        except LudusError:
            raise
        except Exception as error:  # foreign code
            if await self._can_judge(desk, item, result):
                return 0.0  # it works in a slot that no agent has touched
            what = f"{type(self).__name__}: the reward of a rollout: {describe_error(error)}"
            raise VerifierError(what, retryable=False) from error

    async def _call_judge(
        self, desk: SlotDesk, item: Item, result: HermesAgentResult, task_id: str, meta: Any
    ) -> float:
        reward, _ = await self.verify_and_score_trajectory(
            item,
            result,
            trajectory_id=task_id,
            exec_tool=make_hermes_exec(desk, task_id),
            workspace_meta=meta,
        )
        return float(reward)

    async def _can_judge(self, desk: SlotDesk, item: Item, result: HermesAgentResult) -> bool:
        """Whether the same judgement works in a fresh slot."""
        task_id = f"check-{uuid4()}"
        try:
            meta = await self._set_up(desk, item, task_id)
            await self._call_judge(desk, item, result, task_id, meta)
        except ConfigError:
            raise
        except Exception:  # what it raised first is reported
            return False
        finally:
            await desk.call(desk.release(task_id))
        return True

    async def _compute_reward(self, item: Item, result: Any, task_id: str) -> float:
        """Call `compute_reward` in a thread of its own: it waits for its slot without letting others run."""
        context = HermesToolContext(task_id)

        async def compute() -> float:
            return float(await await_if_needed(self.compute_reward(item, result, context)))

        inherited = contextvars.copy_context()

        def work() -> float:
            return inherited.run(lambda: asyncio.run(compute()))

        return await asyncio.get_running_loop().run_in_executor(self._judges, work)

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _build_scored_item(self, item: Item, result: Any, reward: float) -> dict[str, Any]:
        """The row of a rollout: the last sequence with exact ids, or ids made of the conversation's text."""
        state: dict[str, Any] = result.managed_state or {}
        nodes: Sequence[SequenceNode] = state.get("nodes", ())
        if nodes:
            last = nodes[-1]
            row: dict[str, Any] = {
                "tokens": last.tokens,
                "masks": last.masked_tokens,
                "inference_logprobs": last.logprobs,
            }
        else:
            row = self._encode_messages(result.messages)
        return {**row, "scores": reward, "messages": result.messages}

    def _encode_messages(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Ids of the text: every assistant message is trained on. If the template cannot show the conversation, or
        there is no tokenizer, nothing is."""
        try:
            return build_row(self.tokenizer, messages, train_on_all_assistant_turns=True)
        except LudusError:
            return {"tokens": [], "masks": []}

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        metrics = dict(wandb_metrics or {})
        metrics["train/tool_errors_count"] = len(self._tool_error_buffer)
        self._tool_error_buffer = []
        await super().wandb_log(metrics)
