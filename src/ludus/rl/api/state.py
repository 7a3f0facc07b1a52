"""The state of a run as a function of its events.

Every change is an event. The server writes an event to its log and then applies it; a restarted server applies the
events of the log again and has the same state. `ApiState.apply` is the only place that changes the state, except for
what is only true of this process: when an environment was last heard, and since when a batch waits for one.

Events that number something say its number. If the disk has lost an event, the next ones keep their meaning: groups,
batches and environments have the ids under which they were answered, and the gap says what is lost.

Times are those of a monotonic clock, so a jump of the wall clock has no effect.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from ludus.rl.api.batching import (
    Backlog,
    QueuedGroup,
    choose_exact,
    choose_with_shares,
    compute_shares,
    explain_shortage,
    find_combination,
)

MIN_ENV_WEIGHT = 0.01
KEPT_KEYS = 65_536
"""How many idempotency keys are remembered: the newest."""

DAMAGED = "damaged"
"""Why a group was dropped: the disk returned other bytes than were written."""
STALE = "stale"
"""Why a group was dropped: its policy was older than `api.max_staleness` allows, which allows any age by default."""

KEPT_SHORT = 256
"""How many short groups of an environment wait for others that complete them. Older ones count as complete."""


MOST_SEQUENCES = 100_000
"""Of a batch or a group. Batching takes time by the size of a batch, and no trainer has one as large."""

Number = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""A whole number that JSON, the log and sums of such numbers can hold."""
Fraction = Annotated[float, Meta(ge=-1e9, le=1e9)]
Sequences = Annotated[int, Meta(ge=1, le=MOST_SEQUENCES)]
Text = Annotated[str, Meta(max_length=4096)]


# ---- events -------------------------------------------------------------------------------------------------------


class Registration(Struct, frozen=True, kw_only=True):
    """What a trainer registers with."""

    wandb_group: Text
    wandb_project: Text
    batch_size: Sequences
    max_token_len: Number
    checkpoint_dir: Text
    save_checkpoint_interval: Number
    starting_step: Number
    num_steps: Number


class EnvRegistration(Struct, frozen=True, kw_only=True):
    """What an environment registers with."""

    max_token_length: Number
    desired_name: Text
    weight: Fraction
    group_size: Sequences
    min_batch_allocation: Fraction | None = None


class TrainerRegistered(Struct, frozen=True, tag="trainer"):
    registration: Registration


class TrainerStarted(Struct, frozen=True, tag="started"):
    """The first `/batch`: environments may register from now on."""


class EnvRegistered(Struct, frozen=True, tag="env"):
    registration: EnvRegistration
    env_id: int | None = None
    """None in logs of earlier versions: the next one. So it is with the other numbers."""


class EnvDisconnected(Struct, frozen=True, tag="disconnected"):
    env_id: int


class PostedGroup(Struct, frozen=True, gc=False, array_like=True):
    """A group of a post. Its body follows the event in the log."""

    size: int
    env_id: int | None
    version: int
    length: int
    crc: int


class GroupsPosted(Struct, frozen=True, tag="posted"):
    groups: list[PostedGroup]
    key: str = ""
    """The idempotency key of the post."""
    first: int | None = None
    """The id of the first group."""


class BatchDelivered(Struct, frozen=True, tag="batch"):
    """A batch is given out. It is recorded before it is sent."""

    groups: list[int]
    consumer: str = ""
    """Who acknowledges it; empty: nobody, and the groups are gone."""
    batch_id: int | None = None


class BatchAcknowledged(Struct, frozen=True, tag="ack"):
    batch_id: int


class BatchMoved(Struct, frozen=True, tag="moved"):
    """A batch that was not acknowledged in time is given to another consumer."""

    batch_id: int
    consumer: str


class BatchReturned(Struct, frozen=True, tag="returned"):
    """A batch that was given out cannot be given again. Its groups wait again."""

    batch_id: int


class GroupsDropped(Struct, frozen=True, tag="dropped"):
    groups: list[int]
    reason: str


class DataReset(Struct, frozen=True, tag="reset"):
    pass


Event = (
    TrainerRegistered
    | TrainerStarted
    | EnvRegistered
    | EnvDisconnected
    | GroupsPosted
    | BatchDelivered
    | BatchAcknowledged
    | BatchMoved
    | BatchReturned
    | GroupsDropped
    | DataReset
)


# ---- state --------------------------------------------------------------------------------------------------------


class EnvRecord(Struct):
    """An environment. Its id is its place in the list."""

    registration: EnvRegistration
    name: str
    group_size: int
    """Rises with the largest group that it has sent."""
    connected: bool = True
    short: list[int] = field(default_factory=list[int])
    """Ids of its groups of another size that no others have completed: the wire calls them buffered."""


class Lease(Struct):
    """A batch that is given out and not acknowledged yet. Its groups stay on disk."""

    batch_id: int
    consumer: str
    groups: list[QueuedGroup]


class Losses(Struct):
    """What damage of the disk has cost, since the directory was made."""

    records: int = 0
    """Records of the log of which no copy could be read."""
    repaired: int = 0
    """Records that were read from their copy: they cost nothing."""
    groups: int = 0
    """Groups that were accepted and are lost."""
    batches: int = 0
    """Batches that were given out and whose record is lost: their groups are given out again."""

    def describe(self) -> str:
        return (
            f"{self.repaired:,} records were read from their copies, {self.records:,} are lost; lost groups: "
            f"{self.groups:,}; batches that may be given out again: {self.batches:,} (all since the first start)"
        )


class StateRecord(Struct, kw_only=True):
    """The whole state, as it is written at the head of a segment of the log."""

    registration: Registration | None
    registered: bool
    started: bool
    step: int
    next_id: int
    next_batch: int
    envs: list[EnvRecord]
    groups: list[QueuedGroup]
    leases: list[Lease]
    keys: list[tuple[str, bytes]]
    delivered: int
    dropped: int
    stale: int = 0
    losses: Losses = field(default_factory=Losses)


class Wait(Struct, frozen=True):
    """There is no batch now."""

    reason: str


class Place(Struct, frozen=True):
    """Where the bodies of an event are in the log."""

    segment: int = 0
    offset: int = 0


class ApiState:
    """The state of a run."""

    def __init__(self) -> None:
        self.registration: Registration | None = None
        """The last one; it outlives a reset, as `/info` shows its max_token_len then."""
        self.registered = False
        self.started = False
        self.step = 0
        self.envs: list[EnvRecord] = []
        self.backlog = Backlog()
        self.leases: OrderedDict[int, Lease] = OrderedDict()
        self.keys: OrderedDict[str, bytes] = OrderedDict()
        """The replies to posts with an idempotency key."""
        self.delivered = 0
        """Groups that were given out."""
        self.dropped = 0
        self.stale = 0
        """Groups that were dropped for their age alone, since the directory was made."""
        self.losses = Losses()
        self.next_id = 0
        self.next_batch = 1
        self.heard: dict[int, float] = {}
        """When each environment last sent something."""
        self.leased: dict[int, float] = {}
        """When each lease began."""
        self.waiting_since: float | None = None
        """Since when a batch could be made if no minimum share were owed."""

    # ---- changes --------------------------------------------------------------------------------------------------

    def apply(self, event: Event, place: Place = Place(), now: float = 0.0) -> Any:
        """Apply an event. Returns what its request is answered with, if that depends on the state."""
        match event:
            case TrainerRegistered(registration):
                self.registration, self.registered = registration, True
                self.step = registration.starting_step
            case TrainerStarted():
                self.started = True
            case EnvRegistered():
                return self._add_env(event, now)
            case EnvDisconnected(env_id):
                if (env := self.find_env(env_id)) is not None:
                    env.connected = False
            case GroupsPosted():
                return self._add_groups(event, place)
            case BatchDelivered():
                return self._deliver(event, now)
            case BatchAcknowledged(batch_id):
                self.leases.pop(batch_id, None)
                self.leased.pop(batch_id, None)
            case BatchMoved(batch_id, consumer):
                if (lease := self.leases.get(batch_id)) is not None:
                    lease.consumer = consumer
                    self.leased[batch_id] = now
            case BatchReturned(batch_id):
                self._take_back(batch_id)
            case GroupsDropped():
                self._drop(event)
            case DataReset():
                self._reset()
        return None

    def _add_env(self, event: EnvRegistered, now: float) -> EnvRecord:
        registration = event.registration
        if event.env_id is not None:  # others than the next one: events are lost
            del self.envs[event.env_id :]
            self.envs += [_make_lost_env() for _ in range(event.env_id - len(self.envs))]
        same = sum(env.registration.desired_name == registration.desired_name for env in self.envs)
        record = EnvRecord(registration, f"{registration.desired_name}_{same}", registration.group_size)
        self.heard[len(self.envs)] = now
        self.envs.append(record)
        return record

    def _add_groups(self, event: GroupsPosted, place: Place) -> list[dict[str, Any]]:
        replies: list[dict[str, Any]] = []
        offset = place.offset
        if event.first is not None:
            self.losses.groups += event.first - self.next_id
            self.next_id = event.first
        for posted in event.groups:
            group = QueuedGroup(
                self.next_id,
                posted.size,
                posted.env_id,
                posted.version,
                place.segment,
                offset,
                posted.length,
                posted.crc,
            )
            offset += posted.length
            self.next_id += 1
            self.backlog.add(group)
            replies.append(self._note_size(group))
        if event.key:
            self.keys[event.key] = msgspec.json.encode(replies)
            while len(self.keys) > KEPT_KEYS:
                self.keys.popitem(last=False)
        return replies

    def _note_size(self, group: QueuedGroup) -> dict[str, Any]:
        """The reply to a group: `received`, or `buffered` if it is not of its environment's group size."""
        env = self.find_env(group.env_id)
        if env is None or group.size == env.group_size:
            return {"status": "received"}
        env.short = [*env.short[1 - KEPT_SHORT :], group.id]
        sizes = [self.backlog.get(id).size for id in env.short]
        complete = set(find_combination(sizes, env.group_size))
        env.short = [id for place, id in enumerate(env.short) if place not in complete]
        return {"status": "buffered", "buffer_size": sum(self.backlog.get(id).size for id in env.short)}

    def _take(self, ids: list[int]) -> list[QueuedGroup]:
        """Take groups out of the backlog. Those that are lost are left out."""
        return [self._take_one(id) for id in ids if id in self.backlog]

    def _take_one(self, id: int) -> QueuedGroup:
        group = self.backlog.remove(id)
        env = self.find_env(group.env_id)
        if env is not None and id in env.short:
            env.short.remove(id)
        return group

    def _drop(self, event: GroupsDropped) -> None:
        count = len(self._take(event.groups))
        self.dropped += count
        self.losses.groups += count if event.reason == DAMAGED else 0
        self.stale += count if event.reason == STALE else 0

    def _take_back(self, batch_id: int) -> None:
        lease = self.leases.pop(batch_id, None)
        self.leased.pop(batch_id, None)
        if lease is not None:
            self.backlog = Backlog(sorted((*self.backlog, *lease.groups), key=lambda group: group.id))
            self.step -= 1
            self.delivered -= len(lease.groups)

    def _deliver(self, event: BatchDelivered, now: float) -> Lease:
        if event.batch_id is not None:
            lost = event.batch_id - self.next_batch
            self.losses.batches += lost
            self.step += lost
            self.next_batch = event.batch_id
        lease = Lease(self.next_batch, event.consumer, self._take(event.groups))
        self.next_batch += 1
        self.step += 1
        self.delivered += len(lease.groups)
        self.waiting_since = None
        if event.consumer:
            self.leases[lease.batch_id] = lease
            self.leased[lease.batch_id] = now
        return lease

    def _reset(self) -> None:
        self.registered = self.started = False
        self.step = 0
        self.envs, self.heard = [], {}
        self.backlog = Backlog()
        self.leases.clear()
        self.leased.clear()
        self.keys.clear()
        self.waiting_since = None

    # ---- questions ------------------------------------------------------------------------------------------------

    def find_env(self, env_id: int | None) -> EnvRecord | None:
        return self.envs[env_id] if env_id is not None and 0 <= env_id < len(self.envs) else None

    @property
    def batch_size(self) -> int:
        return self.registration.batch_size if self.registered and self.registration else -1

    @property
    def live_groups(self) -> Iterator[QueuedGroup]:
        """All groups whose bodies are still needed."""
        yield from self.backlog
        for lease in self.leases.values():
            yield from lease.groups

    @property
    def queue_size(self) -> int:
        """The groups that wait, without the short ones."""
        return len(self.backlog) - sum(len(env.short) for env in self.envs)

    def is_alive(self, env_id: int, now: float, timeout: float) -> bool:
        return self.envs[env_id].connected and now - self.heard.get(env_id, now) <= timeout

    def find_lease(self, consumer: str) -> Lease | None:
        return next((lease for lease in self.leases.values() if lease.consumer == consumer), None)

    def find_expired_lease(self, now: float, seconds: float) -> Lease | None:
        leases = (lease for id, lease in self.leases.items() if now - self.leased.get(id, now) > seconds)
        return next(leases, None)

    # ---- the next batch -------------------------------------------------------------------------------------------

    def list_stale(self, max_staleness: int | None, groups: list[QueuedGroup]) -> list[int]:
        if max_staleness is None:
            return []
        return [group.id for group in groups if self.step - group.version > max_staleness]

    def choose_batch(self, now: float, *, env_timeout: float, patience: float, full: bool) -> list[QueuedGroup] | Wait:
        """The groups of the next batch, or why there is none."""
        size = self.batch_size
        plain = choose_exact(self.backlog.all_lanes, size)
        if plain is None:
            self.waiting_since = None
            expected = [env.group_size for env in self.envs if env.connected]
            why = explain_shortage(self.backlog, size, expected, full=full)
            age = f"; {self.stale:,} groups were dropped for their age (api.max_staleness)" if self.stale else ""
            return Wait(why + age)
        shares = self._list_shares(now, env_timeout)
        if not shares:
            return plain
        shared = choose_with_shares(self.backlog, size, shares)
        if shared is not None:
            return shared
        if self.waiting_since is None:
            self.waiting_since = now
        if now - self.waiting_since >= patience:
            return plain
        names = ", ".join(self.envs[env_id].name for env_id in shares)
        return Wait(f"the batch waits for the minimum share of {names}, at most {patience:g} s")

    def _list_shares(self, now: float, env_timeout: float) -> dict[int, int]:
        minimums = {
            env_id: env.registration.min_batch_allocation
            for env_id, env in enumerate(self.envs)
            if env.registration.min_batch_allocation is not None and self.is_alive(env_id, now, env_timeout)
        }
        return compute_shares(self.batch_size, minimums)

    # ---- what environments ask ------------------------------------------------------------------------------------

    def describe_queue(self, env_id: int) -> dict[str, Any]:
        """The reply to `/status-env`. Sizes are in groups of the environment that asks."""
        env = self.envs[env_id]
        waiting: dict[int | None, int] = {}
        largest = 1
        for (owner, size), count in self.backlog.lanes.items():
            waiting[owner] = waiting.get(owner, 0) + size * count
            largest = max(largest, size)
            if owner == env_id:
                env.group_size = max(env.group_size, size)
        own = waiting.pop(env_id, 0)
        others = sum(self._count_free(owner, count, largest) for owner, count in waiting.items()) if largest > 1 else 0
        connected = [each for each in self.envs if each.connected]
        weights = sum(_weigh(each) for each in connected)
        minimums = sum(each.registration.min_batch_allocation or 0.0 for each in connected)
        return {
            "current_step": self.step,
            "queue_size": (own + others) // env.group_size,
            "unallocated_fraction": 1.0 - min(minimums, 1.0),
            "self_queue_size": own // env.group_size,
            "max_group_size": largest,
            "env_weight": max(MIN_ENV_WEIGHT, _weigh(env) / weights) if weights > 0 else MIN_ENV_WEIGHT,
        }

    def _count_free(self, owner: int | None, sequences: int, largest: int) -> int:
        """The sequences of another environment beyond its minimum, in packs of the largest group."""
        env = self.find_env(owner)
        minimum = env.registration.min_batch_allocation if env is not None and env.connected else None
        reserved = int(self.batch_size * minimum) if minimum is not None else 0
        return max(0, -(-sequences // largest) * largest - reserved)

    # ---- as a record ----------------------------------------------------------------------------------------------

    def to_record(self) -> StateRecord:
        return StateRecord(
            registration=self.registration,
            registered=self.registered,
            started=self.started,
            step=self.step,
            next_id=self.next_id,
            next_batch=self.next_batch,
            envs=self.envs,
            groups=list(self.backlog),
            leases=list(self.leases.values()),
            keys=list(self.keys.items()),
            delivered=self.delivered,
            dropped=self.dropped,
            stale=self.stale,
            losses=self.losses,
        )

    @classmethod
    def from_record(cls, record: StateRecord, now: float) -> "ApiState":
        """The state of a record. Environments and leases get their full time again."""
        state = cls()
        for name in ("registration", "registered", "started", "step", "next_id", "next_batch", "envs"):
            setattr(state, name, getattr(record, name))
        for name in ("delivered", "dropped", "stale", "losses"):
            setattr(state, name, getattr(record, name))
        state.backlog = Backlog(record.groups)
        state.leases = OrderedDict((lease.batch_id, lease) for lease in record.leases)
        state.keys = OrderedDict(record.keys)
        state.heard = dict.fromkeys(range(len(state.envs)), now)
        state.leased = dict.fromkeys(state.leases, now)
        return state


def _make_lost_env() -> EnvRecord:
    """In place of an environment whose registration is lost."""
    registration = EnvRegistration(max_token_length=0, desired_name="lost", weight=0.0, group_size=1)
    return EnvRecord(registration, "lost", 1, connected=False)


def _weigh(env: EnvRecord) -> float:
    return env.registration.max_token_length * max(0.0, env.registration.weight)
