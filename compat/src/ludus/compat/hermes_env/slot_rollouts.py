"""`SlotRolloutEnv`: rollouts of a file, each in a slot of its own. The base of both kinds of Hermes files.

    set up the slot ──> the agent acts ──> its processes are ended ──> the file judges ──> _build_scored_item: a row

A model or a slot that fails is a failure, not a reward of 0. If the file raises while it judges, the same is tried in a
slot that no agent has touched: if it works there, the agent broke it, and the reward is 0.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, cast
from uuid import uuid4

from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.call_journal import get_scope
from ludus.compat.atropos_env.file_host import await_if_needed
from ludus.compat.atropos_env.scored_data import Item, join_items
from ludus.compat.atropos_env.server_view import SequenceNode
from ludus.compat.atropos_env.tokenizer_view import build_row
from ludus.compat.hermes_env.context import get_slots
from ludus.compat.hermes_env.display import format_messages
from ludus.compat.hermes_env.task_slots import TaskSlots
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

Scored = tuple[dict[str, Any] | None, list[Any]]
"""The row of a rollout, or None for none, and items that are to be asked next."""
_NOTHING: Judged = (0.0, {})
_MANAGERS = {"serve": "env_manager", "evaluate": ""}
"""The method that holds a run, by its command. The others are held by `process_manager`."""


class SlotRolloutEnv(BaseEnv):
    """Runs rollouts. A kind of file defines how its agent acts, and how it is asked to judge."""

    scheme: ClassVar[str] = "hermes"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_set_up, self._is_over = asyncio.Event(), asyncio.Event()
        self._manager: asyncio.Task[Any] | None = None

    # ---- the run --------------------------------------------------------------------------------------------------

    async def begin_run(self) -> None:
        """Start the manager of the run, and wait until it has set the file up. An evaluation has none, as there."""
        name = _MANAGERS.get(self.services.command, "process_manager")
        if not name:
            await await_if_needed(self.setup())
            return
        self._manager = asyncio.create_task(await_if_needed(getattr(self, name)()))
        ready = asyncio.create_task(self._is_set_up.wait())
        await asyncio.wait([self._manager, ready], return_when=asyncio.FIRST_COMPLETED)
        if not self._is_set_up.is_set():
            ready.cancel()
            await self._manager
            raise ConfigError(f"{type(self).__name__}.{name}() ended before the run: call super().{name}() in it")

    async def end_run(self) -> None:
        self._is_over.set()
        if self._manager is not None:
            await self._manager

    async def env_manager(self) -> None:
        """Hold a run of `ludus serve`: set the file up, then wait for the end. Ludus makes and sends the groups."""
        await self._hold_run()

    async def process_manager(self) -> None:
        """Hold a run of `ludus process` or `train`: set the file up, then wait for the end. Ludus makes the groups."""
        await self._hold_run()

    async def _hold_run(self) -> None:
        await await_if_needed(self.setup())
        self._is_set_up.set()
        await self._is_over.wait()

    # ---- what files define ----------------------------------------------------------------------------------------

    async def setup_trajectory_workspace(self, item: Item, *, trajectory_id: str, exec_tool: Any) -> dict[str, Any]:
        """Prepare the slot. Returns what `verify_and_score_trajectory` gets as `workspace_meta`."""
        return {}

    # ---- what a kind of file defines ------------------------------------------------------------------------------

    def format_prompt(self, item: Item) -> str:
        raise NotImplementedError

    def _make_messages(self, item: Item) -> list[dict[str, Any]]:
        """The messages that the agent begins with."""
        raise NotImplementedError

    def _make_exec(self, slots: TaskSlots, task_id: str) -> Any:
        """`exec_tool` of the file's hooks."""
        raise NotImplementedError

    async def _run_rollout(self, item: Item) -> Scored:
        """One rollout: choose its tools and messages, and `_collect_in_slot`."""
        raise NotImplementedError

    def _make_broken(self, messages: list[dict[str, Any]]) -> Any:
        """The result of an agent that broke its slot."""
        raise NotImplementedError

    def _has_acted(self, result: Any) -> bool:
        """Whether there is something to judge. If not, the reward is 0."""
        raise NotImplementedError

    async def _call_judge(self, slots: TaskSlots, item: Item, result: Any, task_id: str, meta: Any) -> Judged:
        raise NotImplementedError

    # ---- groups ---------------------------------------------------------------------------------------------------

    def _use_managed_server(self) -> bool:
        """Whether the model gives exact ids."""
        return self.server.servers[0].model.token_model is not None

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
                row, backlog = await self._run_rollout(item)
            except ModelUnusable:
                raise
            except RolloutError as error:
                if not repeats_left or not error.retryable:
                    raise
            else:
                if row:
                    get_scope().rows.append(row)
                return row, backlog
        raise AssertionError("the last repetition returns or raises")

    async def _collect_in_slot(
        self, item: Item, task_id: str, messages: list[dict[str, Any]], act: Callable[[], Awaitable[Any]]
    ) -> Scored:
        """The life of a rollout. `act` lets the agent act, and adds to the messages."""
        slots = get_slots()
        try:
            meta = await self._set_up(slots, item, task_id)
            try:
                result = await act()
                await slots.call(slots.settle(task_id))
                reward, said = await self._judge(slots, item, result, task_id, meta)
            except SandboxError as error:
                if not error.evidence.inside:
                    raise
                result, (reward, said) = self._make_broken(messages), _NOTHING  # the agent broke its slot
            self._keep_words(messages, said)
            row, backlog = self._build_scored_item(item, result, reward)
            return fit_columns(row), list(backlog or ())
        finally:
            await slots.call(slots.release(task_id))

    async def _set_up(self, slots: TaskSlots, item: Item, task_id: str) -> Any:
        with boundary(SetupError, f"{type(self).__name__}: setup_trajectory_workspace"):
            return await self.setup_trajectory_workspace(
                item, trajectory_id=task_id, exec_tool=self._make_exec(slots, task_id)
            )

    def _keep_words(self, messages: list[dict[str, Any]], said: Mapping[str, Any]) -> None:
        """Add what the file says about a rollout to its messages, if its kind does that."""

    # ---- judging --------------------------------------------------------------------------------------------------

    async def _judge(self, slots: TaskSlots, item: Item, result: Any, task_id: str, meta: Any) -> Judged:
        if not self._has_acted(result):
            return _NOTHING
        try:
            return await self._call_judge(slots, item, result, task_id, meta)
        except LudusError:
            raise
        except Exception as error:  # foreign code
            if await self._can_judge(slots, item, result):
                return _NOTHING  # it works in a slot that no agent has touched
            what = f"{type(self).__name__}: the reward of a rollout: {describe_error(error)}"
            raise VerifierError(what, retryable=False) from error

    async def _can_judge(self, slots: TaskSlots, item: Item, result: Any) -> bool:
        """Whether the same judgement works in a fresh slot."""
        task_id = f"check-{uuid4()}"
        try:
            meta = await self._set_up(slots, item, task_id)
            await self._call_judge(slots, item, result, task_id, meta)
        except ConfigError:
            raise
        except Exception:  # what it raised first is reported
            return False
        finally:
            await slots.call(slots.release(task_id))
        return True

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _build_scored_item(self, item: Item, result: Any, reward: float) -> Scored:
        """The row of a rollout: the last sequence with exact ids, or ids made of the conversation's text. Files change
        it, so it is returned as there: with the items that are to be asked next, of which there are none."""
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
        return {**row, "scores": reward, "messages": result.messages}, []

    def _encode_messages(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Ids of the text: every assistant message is trained on. If the template cannot show the conversation, or
        there is no tokenizer, nothing is."""
        try:
            return build_row(self.tokenizer, messages, train_on_all_assistant_turns=True)
        except LudusError:
            return {"tokens": [], "masks": []}

    # ---- the table of rollouts ------------------------------------------------------------------------------------

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Item = None) -> None:
        """Keep some rollouts of a group for the table, as text: what was said, called and returned."""
        count = self.config.num_rollouts_per_group_for_logging
        for group in cast(list[Any], scored_data) if isinstance(scored_data, list) else [scored_data]:
            places = range(len(group["scores"]) if count == -1 else min(count, len(group["scores"])))
            self.rollouts_for_wandb.append([(self._show_row(group, at), group["scores"][at]) for at in places])
        kept = self.config.num_rollouts_to_keep
        self.rollouts_for_wandb = self.rollouts_for_wandb[-kept:] if kept else []

    def _show_row(self, group: Any, at: int) -> str:
        said, ids = list(group.get("messages") or ()), list(group.get("tokens") or ())
        if at < len(said) and said[at]:
            return self._format_trajectory_for_display(said[at])
        if at >= len(ids):
            return "(no data)"
        try:
            return str(self.tokenizer.decode(ids[at]))
        except LudusError:  # there is no tokenizer
            return f"({len(ids[at])} tokens)"

    @staticmethod
    def _format_trajectory_for_display(messages: list[dict[str, Any]]) -> str:
        return format_messages(messages)


def fit_columns(row: dict[str, Any] | None) -> dict[str, Any] | None:
    """A row whose logprobs are as long as its ids. Files that cut a long row do not know of them."""
    if not row or not row.get("inference_logprobs"):
        return row
    return {**row, "inference_logprobs": row["inference_logprobs"][: len(row["tokens"])]}
