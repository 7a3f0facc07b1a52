"""`SlotRolloutEnv`: rollouts of a file, each in a slot of its own. The base of both kinds of Hermes files.

    set up the slot ──> the agent acts ──> its processes are ended ──> the file judges ──> a row

A model or a slot that fails is a failure, not a reward of 0. If the file raises while it judges, the same is tried in a
slot that no agent has touched: if it works there, the agent broke it, and the reward is 0.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.scored_data import Item, join_items
from ludus.compat.atropos_env.server_view import SequenceNode
from ludus.compat.atropos_env.tokenizer_view import build_row
from ludus.compat.hermes_env.hermes_context import get_desk
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

Judged = tuple[float, Mapping[str, Any]]
"""The reward of a rollout, and what the file says about it."""

_NOTHING: Judged = (0.0, {})


class SlotRolloutEnv(BaseEnv):
    """Runs rollouts. A kind of file defines how its agent acts, and how it is asked to judge."""

    async def setup_trajectory_workspace(self, item: Item, *, trajectory_id: str, exec_tool: Any) -> dict[str, Any]:
        """Prepare the slot. Returns what `verify_and_score_trajectory` gets as `workspace_meta`."""
        return {}

    # ---- what a kind of file defines ------------------------------------------------------------------------------

    def format_prompt(self, item: Item) -> str:
        raise NotImplementedError

    def _make_messages(self, item: Item) -> list[dict[str, Any]]:
        """The messages that the agent begins with."""
        raise NotImplementedError

    def _make_exec(self, desk: SlotDesk, task_id: str) -> Any:
        """`exec_tool` of the file's hooks."""
        raise NotImplementedError

    async def _act(self, item: Item, messages: list[dict[str, Any]], task_id: str) -> Any:
        """Let the agent act. Returns its result; the messages are added to the list."""
        raise NotImplementedError

    def _make_broken(self, messages: list[dict[str, Any]]) -> Any:
        """The result of an agent that broke its slot."""
        raise NotImplementedError

    def _has_acted(self, result: Any) -> bool:
        """Whether there is something to judge. If not, the reward is 0."""
        raise NotImplementedError

    async def _call_judge(self, desk: SlotDesk, item: Item, result: Any, task_id: str, meta: Any) -> Judged:
        raise NotImplementedError

    # ---- groups ---------------------------------------------------------------------------------------------------

    def _use_managed_server(self) -> bool:
        """Whether the model gives exact ids."""
        return self.server.servers[0].desk.token_model is not None

    async def collect_trajectories(self, item: Item) -> Any:
        """`group_size` rollouts at once. Those that fail are on record and leave the group smaller."""
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
                result = await self._act(item, messages, task_id)
                await desk.call(desk.settle(task_id))
                reward, said = await self._judge(desk, item, result, task_id, meta)
            except SandboxError as error:
                if not error.evidence.inside:
                    raise
                result, (reward, said) = self._make_broken(messages), _NOTHING  # the agent broke its slot
            self._keep_words(messages, said)
            return self._build_scored_item(item, result, reward)
        finally:
            await desk.call(desk.release(task_id))

    async def _set_up(self, desk: SlotDesk, item: Item, task_id: str) -> Any:
        with boundary(SetupError, f"{type(self).__name__}: setup_trajectory_workspace"):
            return await self.setup_trajectory_workspace(
                item, trajectory_id=task_id, exec_tool=self._make_exec(desk, task_id)
            )

    def _keep_words(self, messages: list[dict[str, Any]], said: Mapping[str, Any]) -> None:
        """Add what the file says about a rollout to its messages, if its kind does that."""

    # ---- judging --------------------------------------------------------------------------------------------------

    async def _judge(self, desk: SlotDesk, item: Item, result: Any, task_id: str, meta: Any) -> Judged:
        if not self._has_acted(result):
            return _NOTHING
        try:
            return await self._call_judge(desk, item, result, task_id, meta)
        except LudusError:
            raise
        except Exception as error:  # foreign code
            if await self._can_judge(desk, item, result):
                return _NOTHING  # it works in a slot that no agent has touched
            what = f"{type(self).__name__}: the reward of a rollout: {describe_error(error)}"
            raise VerifierError(what, retryable=False) from error

    async def _can_judge(self, desk: SlotDesk, item: Item, result: Any) -> bool:
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
