"""State and log together: every change is in the log before it is answered.

Guarantees, with a kill of the process at any point:

- A post that was answered is in the log. A post that was not answered may be; its sender repeats it with the same
  idempotency key, and it counts once.
- A batch is in the log as delivered before its first byte is sent. On the plain wire it is given out at most once. A
  consumer that acknowledges gets it again, under the same id, until it has.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from ludus.rl.api.batching import QueuedGroup
from ludus.rl.api.group_log import SEGMENT_BYTES, DamagedGroup, GroupLog, Tell
from ludus.rl.api.posted_groups import CheckedGroup
from ludus.rl.api.state import (
    DAMAGED,
    STALE,
    BatchAcknowledged,
    BatchDelivered,
    BatchMoved,
    BatchReturned,
    DataReset,
    Event,
    GroupsDropped,
    GroupsPosted,
    Lease,
    PostedGroup,
    TrainerStarted,
    Wait,
)
from ludus.rl.server_settings import ApiSettings


class Delivery(Struct, frozen=True):
    """A batch that is given out."""

    batch_id: int
    bodies: list[bytes]
    repeated: bool = False


class Oversize(Exception):
    """A group has more sequences than a batch."""


class BacklogFull(Exception):
    """No more groups are accepted until some are delivered."""


class TrajectoryRun:
    """The run that one server keeps."""

    def __init__(
        self, folder: Path, settings: ApiSettings, now: float, tell: Tell, *, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._log, self.state = GroupLog.open(folder, now, tell, segment_bytes=segment_bytes)
        self._live = Counter(group.segment for group in self.state.live_groups)
        """How many groups of each segment are still needed."""
        self._log.remove_unused(set(self._live))

    def close(self) -> None:
        self._log.close()

    def prepare_sync(self) -> Callable[[], None]:
        """A function that flushes what was recorded so far to the disk. It may be called in a thread."""
        return self._log.prepare_sync()

    @property
    def segments(self) -> int:
        return self._log.segments

    # ---- recording ------------------------------------------------------------------------------------------------

    def record(self, event: Event, now: float, bodies: Sequence[bytes] = ()) -> Any:
        """Write an event to the log and apply it.

        Raises:
            DiskFull: nothing has changed.
        """
        place = self._log.append(event, bodies)
        reply = self.state.apply(event, place, now)
        if bodies:
            self._live[place.segment] += len(bodies)
        if self._log.wants_segment:
            self._log.start_segment(self.state.to_record())
            self._log.remove_unused({number for number, count in self._live.items() if count})
        return reply

    def _release(self, groups: Sequence[QueuedGroup]) -> None:
        """The bodies of these groups are not needed any more."""
        emptied = False
        for group in groups:
            self._live[group.segment] -= 1
            if not self._live[group.segment]:
                del self._live[group.segment]
                emptied |= group.segment != self._log.current
        if emptied:
            self._log.remove_unused(set(self._live))

    # ---- posts ----------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        backlog, settings = self.state.backlog, self._settings
        return len(backlog) >= settings.backlog_groups or backlog.bytes >= settings.backlog_gb * 1e9

    def post(self, groups: Sequence[CheckedGroup], key: str, now: float) -> list[dict[str, Any]]:
        """Accept the groups of one post. Returns the reply to each.

        Raises:
            BacklogFull, Oversize, DiskFull: nothing was accepted.
        """
        if key and (known := self.state.keys.get(key)) is not None:
            return msgspec.json.decode(known)
        if self.is_full:
            raise BacklogFull(f"{len(self.state.backlog):,} groups wait, which is the limit (api.backlog_groups, _gb)")
        most = self.state.batch_size
        for group in groups:
            if group.env_id is not None:
                self.state.heard[group.env_id] = now
            if 0 < most < group.size:
                raise Oversize(f"the group has {group.size} sequences, and a batch {most}: it can never be delivered")
        step = self.state.step
        event = GroupsPosted(
            [
                PostedGroup(
                    each.size, each.env_id, step if each.version is None else each.version, len(each.body), each.crc
                )
                for each in groups
            ],
            key,
            self.state.next_id,
        )
        return self.record(event, now, [each.body for each in groups])

    # ---- batches --------------------------------------------------------------------------------------------------

    def take_batch(self, now: float, consumer: str = "", ack: int | None = None) -> Delivery | Wait:
        """The next batch. Without a consumer it is given out at most once. A consumer gets its last batch again until
        it acknowledges it."""
        if not self.state.started:
            self.record(TrainerStarted(), now)
        if ack is not None:
            self.acknowledge(ack, now)
        while consumer and (lease := self._find_lease(consumer, now)) is not None:
            if (again := self._repeat(lease, now)) is not None:
                return again
        while True:
            chosen = self._choose(now)
            if isinstance(chosen, Wait):
                return chosen
            bodies = self._read(chosen, now)
            if bodies is not None:
                ids = [group.id for group in chosen]
                given: Lease = self.record(BatchDelivered(ids, consumer, self.state.next_batch), now)
                if not consumer:
                    self._release(given.groups)
                return Delivery(given.batch_id, bodies)

    def acknowledge(self, batch_id: int, now: float) -> bool:
        """Whether the batch was waiting for it."""
        lease = self.state.leases.get(batch_id)
        if lease is None:
            return False
        self.record(BatchAcknowledged(batch_id), now)
        self._release(lease.groups)
        return True

    def _choose(self, now: float) -> list[QueuedGroup] | Wait:
        """The next batch without stale groups. Stale ones are dropped on the way."""
        limit = self._settings.max_staleness
        while stale := self.state.list_stale(limit, self.state.backlog.heads):
            self._drop(stale, STALE, now)
        while True:
            chosen = self.state.choose_batch(
                now,
                env_timeout=self._settings.env_timeout,
                patience=self._settings.minimum_patience,
                full=self.is_full,
            )
            if isinstance(chosen, Wait) or not (stale := self.state.list_stale(limit, chosen)):
                return chosen
            self._drop(stale, STALE, now)

    def _read(self, groups: Sequence[QueuedGroup], now: float, lease: Lease | None = None) -> list[bytes] | None:
        """The bodies; None if one is damaged. That one is dropped, and the others of its lease wait again."""
        try:
            return [self._log.read(group) for group in groups]
        except DamagedGroup as error:
            self._tell(f"{error}; it is left out")
            if lease is not None:
                self.record(BatchReturned(lease.batch_id), now)
            self._drop([error.group.id], DAMAGED, now)
            return None

    def _drop(self, ids: list[int], reason: str, now: float) -> None:
        groups = [self.state.backlog.get(id) for id in ids]
        self.record(GroupsDropped(ids, reason), now)
        self._release(groups)

    def _find_lease(self, consumer: str, now: float) -> Lease | None:
        """The batch that this consumer has not acknowledged, or one that another consumer left."""
        if (own := self.state.find_lease(consumer)) is not None:
            return own
        left = self.state.find_expired_lease(now, self._settings.lease_seconds)
        if left is not None:
            self.record(BatchMoved(left.batch_id, consumer), now)
        return left

    def _repeat(self, lease: Lease, now: float) -> Delivery | None:
        """A batch once more; None if a group of it is damaged, so that another batch is made."""
        self.state.leased[lease.batch_id] = now
        bodies = self._read(lease.groups, now, lease)
        return None if bodies is None else Delivery(lease.batch_id, bodies, repeated=True)

    # ---- the rest -------------------------------------------------------------------------------------------------

    def reset(self, now: float) -> None:
        self.record(DataReset(), now)
        self._live.clear()
        self._log.remove_unused(set())

    def explain_wait(self, now: float) -> str:
        """Why there is no batch; empty if there is one."""
        state = self.state
        if not state.registered:
            return "no trainer is registered"
        chosen = state.choose_batch(
            now, env_timeout=self._settings.env_timeout, patience=self._settings.minimum_patience, full=self.is_full
        )
        return chosen.reason if isinstance(chosen, Wait) else ""
