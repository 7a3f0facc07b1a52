"""The groups of a file for `ludus serve`: they are sent to the trajectory server as the file returned them."""

import asyncio
import dataclasses
from typing import Any

import msgspec

from ludus.compat.atropos_env.file_host import await_if_needed
from ludus.compat.atropos_env.file_runs import evaluate_file
from ludus.compat.atropos_env.group_run import FileGroup, FileParts, GroupFailed, GroupRun, make_task_id
from ludus.errors import ConfigError
from ludus.rl.atropos_client import WorkerPlace
from ludus.rl.server_credits import has_crossed
from ludus.rl.worker import SourcedGroup

WAIT_SECONDS = 1.0
"""How long to wait before a file that had no item is asked again."""


class FileSource:
    """Makes groups for a worker. Implements `ludus.rl.worker.WorkerSource`."""

    def __init__(self, parts: FileParts) -> None:
        self._groups = GroupRun(parts)
        self._interval = -1
        self._sent = 0

    @property
    def _parts(self) -> FileParts:
        return self._groups.parts

    @property
    def registration(self) -> dict[str, Any]:
        config = self._parts.env.config
        return {"max_token_length": config.max_token_length, "group_size": config.group_size}

    def name_group(self, number: int) -> str:
        return make_task_id(number)

    async def make_group(self, number: int, row_tokens: int | None, ended: asyncio.Event) -> SourcedGroup | None:
        rules = dataclasses.replace(self._parts.rules, row_tokens=None if row_tokens is None else row_tokens + 1)
        self._groups.parts = dataclasses.replace(self._parts, rules=rules)
        task = make_task_id(number)
        while True:
            try:
                made = await self._groups.make_group(number)
            except GroupFailed as error:
                return SourcedGroup(task=task, reason="failed", message=str(error))
            if made is not None:
                return self._describe(made, task)
            if ended.is_set():
                return None
            await asyncio.sleep(WAIT_SECONDS)

    def _describe(self, made: FileGroup, task: str) -> SourcedGroup:
        groups = [msgspec.json.decode(group, type=dict[str, Any]) for group in made.groups]
        reason = "" if groups else next(iter(made.dropped), "no_group")
        self._sent += len(groups)
        self._parts.env.items_sent_this_step = self._sent
        return SourcedGroup(task=task, groups=groups, scores=made.scores, reason=reason)

    async def begin(self, place: WorkerPlace, row_tokens: int | None) -> None:
        """Tell the file about its place. One that joins a running trainer loads its checkpoint."""
        env = self._parts.env
        env.env_id, env.curr_step, self._interval = place.env_id, place.starting_step, place.checkpoint_interval
        env.wandb_prepend = place.wandb_name or env.wandb_prepend
        env.checkpoint_dir = place.checkpoint_dir
        env.max_token_len = -1 if row_tokens is None else row_tokens + 1
        self._warn_of_length(env.config.max_token_length, row_tokens)
        if place.starting_step > 0 and not self._groups.known:
            await self._parts.host.run(env.load_checkpoint)

    def _warn_of_length(self, own: int, row_tokens: int | None) -> None:
        """Warn if the file's rows may be longer than the trainer takes, before any is paid for."""
        if row_tokens is not None and own > row_tokens + 1:
            self._parts.tell(
                f"env.max_token_length is {own}, but the trainer takes rows of fewer than {row_tokens + 1} tokens: "
                "groups with a longer row are dropped"
            )

    async def use_step(self, before: int, step: int) -> None:
        """Let the file log, and save its checkpoint."""
        env = self._parts.env
        env.curr_step = step
        if self._interval > 0 and has_crossed(before, step, self._interval):
            label = step // self._interval * self._interval
            try:
                await self._parts.host.run(lambda: await_if_needed(env.save_checkpoint(label)))
            except Exception as error:  # foreign code
                self._parts.tell(f"save_checkpoint failed: {type(error).__name__}: {error}")
        if self._sent >= env.config.min_items_sent_before_logging:
            self._sent = env.items_sent_this_step = 0
            await self._groups.log()

    async def evaluate(self, step: int) -> dict[str, float]:
        """Call the file's `evaluate`. What it raises is reported; the run goes on."""
        try:
            await evaluate_file(self._parts, step)
        except ConfigError as error:
            self._parts.tell(f"step {step}: {error}")
        return {}
