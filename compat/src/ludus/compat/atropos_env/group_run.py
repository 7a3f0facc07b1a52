"""Runs the groups that a file makes, and keeps them.

    item feed ──> collect_trajectories ──> postprocess_histories ──> filter ──> store: rollouts, then the group
                     (the file, in its own loop)

A group has a number. Its items come from the file in the order of the numbers, so that a resumed run gives each number
the same item again. A group is one record of the store, written after its rollouts: a run that is killed makes it again
from the remembered replies of the model (`call_journal`). A group that the file drops is recorded, too, and is not made
again. One that failed, because a model or a slot failed or the file raised, is made again: a failure is not a drop.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from ludus.batch import MoreFields
from ludus.compat.atropos_env.base_env import BaseEnv
from ludus.compat.atropos_env.call_journal import SCOPE, CallScope, get_scope
from ludus.compat.atropos_env.file_host import FileHost, await_if_needed, describe_trace
from ludus.compat.atropos_env.file_model import Fatal
from ludus.compat.atropos_env.group_filter import (
    FilterRules,
    complete_group,
    count_trained,
    describe_fault,
    find_fault,
    list_groups,
)
from ludus.compat.atropos_env.group_turns import GroupTurns
from ludus.compat.atropos_env.row_faults import drop_rows, find_row_faults
from ludus.compat.atropos_env.row_rollouts import drop_constants, encode_group, make_row_rollouts
from ludus.compat.atropos_env.state_watch import act_as
from ludus.encoding import to_json
from ludus.engine import derive_seed
from ludus.errors import ConfigError, LudusError, RolloutError
from ludus.store import RunDir, decode_record
from ludus.types import Failure, Provenance, Rollout, StopReason, Task

KIND = "file_group"
NO_GROUP = "no_group"
"""The verdict on an item for which the file returned no group."""
NO_NUMBER = "no_number"
"""The verdict on a group of an older run with a score that is no finite number."""


class FileGroup(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a file made of one item."""

    number: int
    source: str = "next"
    """Where the item came from: `next` (get_next_item) or `backlog`."""
    dropped: dict[str, int] = {}
    """How many groups were not kept, by reason."""
    groups: list[msgspec.Raw] = []
    """The groups that are kept, as the file returned them."""
    scores: list[float] = []
    seconds: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether the file returned a group."""
        return NO_GROUP not in self.dropped


_GROUP = msgspec.json.Decoder(FileGroup)


@dataclass(frozen=True)
class FileParts:
    """What groups are made with."""

    env: BaseEnv
    host: FileHost
    run: RunDir
    provenance: Provenance
    rules: FilterRules
    turns: GroupTurns
    fatal: Fatal
    seed: int = 0
    retries: int = 2
    seconds: float | None = None
    """The time limit of one group."""
    system: str = ""
    """Text that is added to the system message of every conversation: the user's own, and the skill."""
    tell: Callable[[str], None] = lambda _: None
    more: MoreFields = lambda group: {}
    """Further fields of a line of `groups.jsonl`: rows of exact ids."""


class ItemFeed:
    """The items of a file, by number. They are taken in the order of their numbers."""

    def __init__(self, parts: FileParts, known: Mapping[int, FileGroup]) -> None:
        self._parts = parts
        self._known = known
        self._items: dict[int, tuple[Any, str]] = {}
        self._next = 0
        self._taking = asyncio.Lock()

    async def take(self, number: int) -> tuple[Any, str]:
        """The item of a number and its source; (None, …) if the file has none now."""
        async with self._taking:
            while self._next <= number:
                item, source = await self._take_next(self._next)
                if item is None and self._next not in self._known:
                    return None, source
                if self._next not in self._known:
                    self._items[self._next] = item, source
                self._next += 1
        return self._items.pop(number)

    async def _take_next(self, number: int) -> tuple[Any, str]:
        known, env = self._known.get(number), self._parts.env
        if known is not None and known.source == "backlog":
            return None, "backlog"
        if known is None and env.backlog:
            return env.backlog.pop(), "backlog"
        with act_as(make_task_id(number), taking=True):
            return await self._parts.host.run(env.get_next_item), "next"


class GroupRun:
    """The groups of one run."""

    def __init__(self, parts: FileParts) -> None:
        self.parts = parts
        self.known = {each.number: each for each in read_file_groups(parts.run)}
        self.feed = ItemFeed(parts, dict(self.known))
        self._told: set[str] = set()

    @property
    def next_number(self) -> int:
        """The first number that has no group."""
        return next(number for number in range(len(self.known) + 1) if number not in self.known)

    async def make_group(self, number: int) -> FileGroup | None:
        """The group of a number: the stored one, or a new one. None if the file has no item for it now.

        Raises:
            GroupFailed: a model or a slot failed, or the file raised. It is on record.
            ConfigError: the file needs something that the settings do not give.
            BudgetExhausted, ModelUnusable: the run must end.
        """
        if number in self.known:
            return self.known[number]
        taken: list[tuple[Any, str]] = []

        async def work() -> _Collected | None:
            if not taken:
                taken.append(await self.feed.take(number))
            item, source = taken[0]
            with act_as(make_task_id(number)):
                return None if item is None else await self._collect(number, item, source)

        async def finish(collected: _Collected | None) -> FileGroup | None:
            if collected is None:
                return None
            made = self.known[number] = self._keep(number, collected)
            await self._show(collected)
            return made

        return await self.parts.turns.run(make_task_id(number), work, finish, (GroupFailed,))

    async def _collect(self, number: int, item: Any, source: str) -> "_Collected":
        parts, started = self.parts, time.monotonic()
        for repeats_left in reversed(range(parts.retries + 1)):
            scope = CallScope(f"group/{number}", derive_seed(parts.seed, f"item-{number}", 0), parts.system)
            SCOPE.set(scope)
            try:
                async with asyncio.timeout(parts.seconds):
                    groups, backlog = await parts.host.run(lambda: collect_groups(parts.env, item))
                self._raise_fatal()
                if groups or not (scope.failures or scope.failed):
                    seconds = time.monotonic() - started
                    return _Collected(item, source, groups, backlog, scope.failed, seconds)
                if scope.failed:  # every rollout has failed, and was repeated
                    self._put_failed(number, 0, scope.failed)
                    raise GroupFailed(scope.failed[0])
                raise scope.failures[0]  # the file has swallowed it
            except (GroupFailed, ConfigError):  # wrong settings: no other group can be made, either
                raise
            except Exception as error:
                self._raise_fatal()
                world = isinstance(error, LudusError) or bool(scope.failures)
                if repeats_left and world and getattr(error, "retryable", True):
                    continue
                failure = _make_failure(error, scope, parts.seconds)
                self._put_failed(number, 0, [failure])
                raise GroupFailed(failure) from error
        raise AssertionError("the last repetition returns or raises")

    def _raise_fatal(self) -> None:
        if self.parts.fatal.error is not None:
            raise self.parts.fatal.error

    def _keep(self, number: int, collected: "_Collected") -> FileGroup:
        """Store the rollouts of all groups, then the groups that are kept."""
        parts, decode, seconds = self.parts, self._decode, collected.seconds
        parts.env.backlog.extend(collected.backlog)
        dropped: dict[str, int] = {} if collected.groups else {NO_GROUP: 1}
        kept: list[dict[str, Any]] = []
        rollouts: list[Rollout] = []
        task = Task(id=make_task_id(number), prompt="")
        for group in collected.groups:
            rollouts += make_row_rollouts(group, task, parts.provenance, decode, first=len(rollouts), seconds=seconds)
            usable = drop_rows(group, find_row_faults(group))
            if fault := find_fault(usable, parts.rules):
                dropped[fault] = dropped.get(fault, 0) + 1
                self._tell_drop(number, fault, describe_fault(usable, parts.rules, fault))
            else:
                parts.env.completion_lengths += count_trained(usable)
                kept.append(complete_group(usable, parts.rules, decode))
        for rollout in rollouts:
            self._put(number, rollout.provenance.replicate, _add_prompt(rollout))
        self._put_failed(number, len(rollouts), collected.failed)
        made = FileGroup(
            number=number,
            source=collected.source,
            dropped=dropped,
            groups=[msgspec.Raw(encode_group(group)) for group in kept],
            scores=[rollout.score.value for rollout in rollouts if rollout.score],
            seconds=seconds,
        )
        parts.run.put_record(f"file/group/{number}", KIND, to_json(made))
        return made

    def _tell_drop(self, number: int, fault: str, why: str) -> None:
        """Tell about the first group that is dropped for a reason. Others are counted."""
        if fault not in self._told:
            self._told.add(fault)
            self.parts.tell(f"{make_task_id(number)}: a group is dropped: {why}. Others like it are counted")

    def _put(self, number: int, replicate: int, rollout: Rollout) -> None:
        self.parts.run.put(f"file/{number}/{replicate}", rollout)

    def _put_failed(self, number: int, first: int, failed: list[Failure]) -> None:
        for place, failure in enumerate(failed, first):
            own = get_scope().describe(self.parts.provenance, place)
            self._put(number, place, _make_failed(number, own, failure))

    def _decode(self, ids: Any) -> str:
        try:
            return self.parts.env.tokenizer.decode(ids)
        except LudusError:  # the tokenizer cannot be loaded; the file works without it
            return f"({len(ids)} tokens)"

    async def _show(self, collected: "_Collected") -> None:
        """Give the file its metrics. What fails there is reported, and the run goes on."""
        parts, env, item = self.parts, self.parts.env, collected.item
        try:
            if env.config.use_wandb:
                for group in collected.groups:
                    await parts.host.run(lambda group=group: env.add_rollouts_for_wandb(group, item))
        except Exception as error:
            parts.tell(f"add_rollouts_for_wandb failed: {type(error).__name__}: {error}")

    def keep_rows(self, name: str, rows: list[Any]) -> None:
        """Store the rollouts of an evaluation."""
        for index, row in enumerate(rows):
            task = Task(id=f"{name}-{index:05d}", prompt="", split="test")
            group = {key: [value] for key, value in row.items()}
            made = make_row_rollouts(group, task, self.parts.provenance, self._decode, first=0, seconds=0.0)
            for rollout in made:
                self.parts.run.put(f"file/{name}/{index}", _add_prompt(rollout))

    async def log(self) -> None:
        """Let the file log its metrics."""
        env = self.parts.env
        try:
            await self.parts.host.run(lambda: env.wandb_log({}))
        except Exception as error:
            self.parts.tell(f"wandb_log failed: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Collected:
    """What a file made of an item."""

    item: Any
    source: str
    groups: list[dict[str, Any]]
    backlog: list[Any]
    failed: list[Failure]
    """Of single rollouts."""
    seconds: float


class GroupFailed(LudusError):
    """A group could not be made. Its failure is on record."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def make_task_id(number: int) -> str:
    return f"item-{number:05d}"


def read_file_groups(run: RunDir) -> list[FileGroup]:
    """The groups that a run has, in the order in which they ended."""
    return [_read_group(body) for _, body in list(run.read_records(KIND))]


def _read_group(body: bytes) -> FileGroup:
    try:
        return _GROUP.decode(body)
    except msgspec.DecodeError:
        return _repair_group(body)


def _repair_group(body: bytes) -> FileGroup:
    """A group that was stored before scores were checked, without the groups that no trainer can read."""
    with contextlib.suppress(ValueError):
        body = drop_constants(body).encode()
    found = decode_record(_GROUP, body)
    usable = [group for group in found.groups if not find_row_faults(msgspec.json.decode(group))]
    dropped = {**found.dropped, NO_NUMBER: len(found.groups) - len(usable)}
    return msgspec.structs.replace(found, groups=usable, dropped=dropped)


async def collect_groups(env: BaseEnv, item: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """The groups that a file makes of an item, and further items."""
    try:
        returned, backlog = await env.collect_trajectories(item)
        if returned:
            returned = await await_if_needed(env.postprocess_histories(returned))
        groups = list_groups(returned)
        if groups:
            env.last_completed_item = item
        return groups, list(backlog or ())
    finally:
        await await_if_needed(env.cleanup())


def _make_failure(error: BaseException, scope: CallScope, seconds: float | None) -> Failure:
    cause = next((each for each in (error, *scope.failures) if isinstance(each, RolloutError)), None)
    if cause is not None:
        return msgspec.structs.replace(cause.as_failure(), retryable=True)
    if isinstance(error, TimeoutError) and not str(error):
        return Failure("agent", f"the group took longer than {seconds:g} s (env.worker_timeout)")
    return Failure("agent", f"the file raised {type(error).__name__}: {error}\n{describe_trace(error)}")


def _make_failed(number: int, provenance: Provenance, failure: Failure) -> Rollout:
    return Rollout(
        task=Task(id=make_task_id(number), prompt=""),
        provenance=provenance,
        stop=StopReason.FAILED,
        failure=failure,
    )


def _add_prompt(rollout: Rollout) -> Rollout:
    """The rollout with the first question of its conversation as the task's prompt."""
    prompt = next((message.content for message in rollout.opening if message.role == "user"), "")
    return msgspec.structs.replace(rollout, task=msgspec.structs.replace(rollout.task, prompt=prompt))
