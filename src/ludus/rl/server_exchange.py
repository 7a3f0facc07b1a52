"""Passes the groups of an RL run through a trajectory server, so that the trainer learns from what the server delivers.

    groups of a step ──> POST /scored_data_list ──> the server ──> GET /batch ──> rows for the trainer

The loop is a worker and a trainer at once. Batches have the size of a step. Other workers may feed the same server:
then a batch may have groups of theirs. Posts have keys, and batches are acknowledged when their step is recorded. So a
loop that was killed posts nothing twice, and gets a batch again that it had not learned from. This needs `ludus api`.
With Atropos' own server a kill between a batch and its update loses that batch, and the run waits for other groups.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ludus.errors import ConfigError
from ludus.rl.advantages import compute_advantages
from ludus.rl.atropos_client import AtroposClient, ServerRefused, ServerUnavailable, TakenBatch
from ludus.rl.group_filters import KeptGroup
from ludus.rl.row_checks import NOT_TRAINED
from ludus.rl.settings import AdvantageScale
from ludus.rl.trainers import TrainingRow
from ludus.rl.wire_groups import build_wire_groups
from ludus.types import Tokens

T = TypeVar("T")

POLL_SECONDS = 0.2
"""How often the server is asked for a batch, and for an answer when it does not give one."""


@dataclass(frozen=True)
class NumberedGroup:
    """A group of the run that can be sent."""

    number: int
    version: int
    kept: KeptGroup


class ServerExchange:
    """The loop's place at a trajectory server. `name` is that of the run: it is the same after a resume."""

    def __init__(
        self,
        client: AtroposClient,
        name: str,
        *,
        groups: int,
        group_size: int,
        steps: int,
        scale: AdvantageScale = "none",
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._client = client
        self._name = name
        self._groups = groups
        self._group_size = group_size
        self._steps = steps
        self._scale: AdvantageScale = scale
        self._tell = tell
        self._env_id: int | None = None
        self._batch = ""

    async def trade(self, groups: Sequence[NumberedGroup], consumed: frozenset[int]) -> list[TrainingRow]:
        """Send the groups of a step, and wait for a batch. `consumed` are groups that earlier steps learned from: a
        batch of them was delivered before a kill, and is passed over."""
        await self._start()
        for group in groups:
            await self._repeat(lambda group=group: self._post(group))
        while True:
            batch = await self._take()
            if not _is_of(batch, self._name, consumed):
                self._batch = batch.id
                return [row for number, wire in enumerate(batch.groups) for row in read_rows(wire, number, self._scale)]
            await self._client.acknowledge(batch.id)

    async def finish_step(self) -> None:
        """The step is recorded: the batch is not needed again."""
        done, self._batch = self._batch, ""
        await self._repeat(lambda: self._client.acknowledge(done))

    async def close(self) -> None:
        if self._env_id is not None:
            try:
                await self._client.disconnect(self._env_id)
            except (ServerUnavailable, ServerRefused):
                self._tell("the trajectory server was not told that this run ended")
        await self._client.close()

    async def _start(self) -> None:
        if self._env_id is not None:
            return
        trainer = {
            "wandb_group": "",
            "wandb_project": "",
            "batch_size": self._groups * self._group_size,
            "max_token_len": 1 << 20,
            "checkpoint_dir": "",
            "save_checkpoint_interval": 0,
            "starting_step": 0,
            "num_steps": self._steps,
        }
        await self._repeat(lambda: self._client.register_trainer(trainer))
        size = (await self._repeat(self._client.read_info)).batch_size
        if size != trainer["batch_size"]:
            raise ConfigError(
                f"rl.server: a trainer with batches of {size} rows has registered there, this run has "
                f"{trainer['batch_size']} (rl.groups × rl.group_size): use a server of its own, or reset that one"
            )
        await self._repeat(lambda: self._client.take_batch(f"{self._name}-start"))  # lets environments register
        env = {"max_token_length": 1 << 20, "desired_name": self._name, "weight": 1.0, "group_size": self._group_size}
        self._env_id = (await self._poll(lambda: self._client.register(env))).env_id

    async def _post(self, group: NumberedGroup) -> None:
        (wire,) = build_wire_groups(group.kept, group.version, messages=False)
        params = {**wire["generation_params"], "run": self._name, "group": group.number}
        sent = {**wire, "generation_params": params, "env_id": self._env_id}
        await self._client.post_groups([sent], f"{self._name}/{group.number}/{group.version}")

    async def _take(self) -> TakenBatch:
        return await self._poll(lambda: self._client.take_batch(self._name))

    async def _poll(self, request: Callable[[], Awaitable[T | None]]) -> T:
        """Send a request until the server has something."""
        while True:
            if (found := await self._repeat(request)) is not None:
                return found
            await asyncio.sleep(POLL_SECONDS)

    async def _repeat(self, request: Callable[[], Awaitable[T]]) -> T:
        """Send a request until the server takes it."""
        told = False
        while True:
            try:
                return await request()
            except ServerUnavailable as error:
                if not told:
                    self._tell(f"{error}; waiting for it")
                    told = True
                await asyncio.sleep(max(POLL_SECONDS, error.retry_after))
            except ServerRefused as error:
                raise ConfigError(f"rl.server: {error}") from error


def _is_of(batch: TakenBatch, name: str, consumed: frozenset[int]) -> bool:
    """Whether a batch has only groups of this run that earlier steps learned from."""
    params: list[dict[str, Any]] = [wire.get("generation_params") or {} for wire in batch.groups]
    return all(each.get("run") == name and each.get("group") in consumed for each in params)


def read_rows(wire: dict[str, Any], number: int, scale: AdvantageScale = "none") -> list[TrainingRow]:
    """The rows of a group as a trajectory server delivers it. Rows without a difference in score, and rows without
    logprobs, are left out. A row that brings its own advantages keeps them."""
    params: dict[str, Any] = wire.get("generation_params") or {}
    scores = dict(enumerate(map(float, wire["scores"])))
    own: list[list[float]] | None = wire.get("advantages")
    advantages = (
        compute_advantages(scores, scale) if own is None else {n: max(row, key=abs) for n, row in enumerate(own)}
    )
    logprobs: list[list[float]] = wire.get("inference_logprobs") or []
    rows: list[TrainingRow] = []
    for place, (ids, mask) in enumerate(zip(wire["tokens"], wire["masks"], strict=True)):
        sampled = tuple(value != NOT_TRAINED for value in mask)
        if place >= len(logprobs) or not advantages[place] or not any(sampled):
            continue
        known = tuple(value if was else None for value, was in zip(logprobs[place], sampled, strict=True))
        rows.append(
            TrainingRow(
                tokens=Tokens(tuple(ids), sampled, known),
                advantage=advantages[place],
                version=int(params.get("policy_version") or 0),
                group=int(params.get("group", number)),
                replicate=place,
            )
        )
    return rows
