"""Which groups make the next batch. Pure functions; time and steps are arguments.

A batch has exactly `batch_size` sequences and whole groups. Rules, in their order:

1. **Exact and oldest first.** The oldest group that can be part of a full batch is taken, then the next oldest that can
   follow it, and so on (`choose_exact`). A group that fits into no batch now is passed over and blocks nobody. Whenever
   a subset of the backlog has exactly the wanted number of sequences, a batch is made: odd, oversize and mixed sizes
   cannot cause a deadlock.
2. **Minimum shares.** An environment that is connected, alive and has a minimum gets its share of the batch first. If
   it has too little, the batch waits, but not longer than the patience, and not at all for an environment that is gone.
3. **Bounded staleness**, if `api.max_staleness` asks for it. Groups whose policy is too old are dropped, not delivered.
   By default none is dropped for its age: slow tasks give old groups.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct


class QueuedGroup(Struct, frozen=True, gc=False):
    """A group that waits: what batching must know, and where its body is."""

    id: int
    """Ids rise with the time of arrival."""
    size: int
    """The number of sequences."""
    env_id: int | None
    version: int
    """The step of the policy that sampled it; the step at its arrival if it does not say."""
    segment: int
    offset: int
    length: int
    crc: int


Lane = tuple[int | None, int]
"""The groups of one environment that have one size."""


class Backlog:
    """The groups that wait, by environment and size, each lane in the order of arrival."""

    def __init__(self, groups: Iterable[QueuedGroup] = ()) -> None:
        self._lanes: dict[Lane, OrderedDict[int, QueuedGroup]] = {}
        self._groups: dict[int, Lane] = {}
        self.bytes = 0
        self.sequences = 0
        for group in groups:
            self.add(group)

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, id: int) -> bool:
        return id in self._groups

    def __iter__(self) -> Iterator[QueuedGroup]:
        """All groups in the order of arrival."""
        return heapq.merge(*(lane.values() for lane in self._lanes.values()), key=_get_id)

    def add(self, group: QueuedGroup) -> None:
        key = (group.env_id, group.size)
        self._lanes.setdefault(key, OrderedDict())[group.id] = group
        self._groups[group.id] = key
        self.bytes += group.length
        self.sequences += group.size

    def get(self, id: int) -> QueuedGroup:
        return self._lanes[self._groups[id]][id]

    def remove(self, id: int) -> QueuedGroup:
        key = self._groups.pop(id)
        lane = self._lanes[key]
        group = lane.pop(id)
        if not lane:
            del self._lanes[key]
        self.bytes -= group.length
        self.sequences -= group.size
        return group

    @property
    def oldest(self) -> QueuedGroup | None:
        return min(self.heads, key=_get_id, default=None)

    @property
    def heads(self) -> list[QueuedGroup]:
        """The oldest group of each lane."""
        return [next(iter(lane.values())) for lane in self._lanes.values()]

    @property
    def lanes(self) -> dict[Lane, int]:
        """How many groups wait in each lane."""
        return {key: len(lane) for key, lane in self._lanes.items()}

    @property
    def counts(self) -> dict[int, int]:
        """How many groups there are of each size."""
        counts: dict[int, int] = {}
        for (_, size), lane in self._lanes.items():
            counts[size] = counts.get(size, 0) + len(lane)
        return counts

    def list_lanes(self, env_id: int | None) -> list[OrderedDict[int, QueuedGroup]]:
        return [lane for key, lane in self._lanes.items() if key[0] == env_id]

    @property
    def all_lanes(self) -> list[OrderedDict[int, QueuedGroup]]:
        return list(self._lanes.values())


def _get_id(group: QueuedGroup) -> int:
    return group.id


# ---- exact batches ------------------------------------------------------------------------------------------------


def can_reach(counts: Mapping[int, int], target: int) -> bool:
    """Whether so many groups of each size have a subset with `target` sequences."""
    sizes = {size: count for size, count in counts.items() if 0 < size <= target and count > 0}
    if target <= 0 or not sizes:
        return target == 0
    if len(sizes) == 1:
        ((size, count),) = sizes.items()
        return target % size == 0 and target // size <= count
    keep = (1 << (target + 1)) - 1
    sums = 1  # bit n: n sequences can be reached
    for size, count in sizes.items():
        left, step = min(count, target // size), 1
        while left > 0:  # 1, 2, 4, … groups at once
            taken = min(step, left)
            sums |= (sums << (size * taken)) & keep
            left -= taken
            step *= 2
        if sums >> target & 1:
            return True
    return False


def choose_exact(
    lanes: Sequence[OrderedDict[int, QueuedGroup]], target: int, without: Mapping[int, QueuedGroup] = {}
) -> list[QueuedGroup] | None:
    """The groups with exactly `target` sequences that come first in the order of arrival; None if there are none.
    Groups in `without` are left out.

    A size that cannot be part of the batch at one place cannot at a later place, so its lanes are left out from there
    on: the time does not depend on how many groups wait.
    """
    counts: dict[int, int] = {}
    heads: list[tuple[int, int, Iterator[QueuedGroup], QueuedGroup]] = []
    for number, lane in enumerate(lanes):
        rest = iter(lane.values())
        first = next(rest)
        counts[first.size] = counts.get(first.size, 0) + len(lane)
        heads.append((first.id, number, rest, first))
    for group in without.values():
        counts[group.size] -= 1
    if target <= 0 or not can_reach(counts, target):
        return None
    heapq.heapify(heads)
    chosen: list[QueuedGroup] = []
    while target:
        _, number, rest, group = heapq.heappop(heads)
        if group.size not in counts:
            continue
        if group.id not in without:
            counts[group.size] -= 1
            if group.size > target or not can_reach(counts, target - group.size):
                del counts[group.size]
                continue
            chosen.append(group)
            target -= group.size
        if (following := next(rest, None)) is not None:
            heapq.heappush(heads, (following.id, number, rest, following))
    return chosen


# ---- minimum shares -----------------------------------------------------------------------------------------------


def compute_shares(batch_size: int, minimums: Mapping[int, float]) -> dict[int, int]:
    """The sequences that each environment gets first. If the minimums are more than a batch, they are scaled down."""
    shares = {env_id: int(batch_size * max(0.0, part)) for env_id, part in minimums.items()}
    total = sum(shares.values())
    if total > batch_size:
        shares = {env_id: share * batch_size // total for env_id, share in shares.items()}
    return {env_id: share for env_id, share in shares.items() if share > 0}


def choose_with_shares(backlog: Backlog, batch_size: int, shares: Mapping[int, int]) -> list[QueuedGroup] | None:
    """An exact batch in which each environment has at least its share, as far as whole groups allow; else None."""
    taken: list[QueuedGroup] = []
    left = batch_size
    for env_id, share in shares.items():
        owed = share
        for group in heapq.merge(*(lane.values() for lane in backlog.list_lanes(env_id)), key=_get_id):
            if owed <= 0:
                break
            if group.size <= left:
                taken.append(group)
                owed -= group.size
                left -= group.size
        if owed > 0 and left > 0:
            return None  # the environment has too little
    if left == 0:
        return sorted(taken, key=_get_id)
    rest = choose_exact(backlog.all_lanes, left, {group.id: group for group in taken})
    return None if rest is None else sorted([*taken, *rest], key=_get_id)


# ---- short groups -------------------------------------------------------------------------------------------------


def find_combination(sizes: Sequence[int], target: int) -> list[int]:
    """The places of groups that together have `target` sequences, oldest first; empty if there are none.

    The wire answers a group that is smaller or larger than its environment's groups with `buffered` until others
    complete it.
    """
    if not can_reach(Counter(sizes), target):
        return []
    lanes = {
        number: OrderedDict([(number, QueuedGroup(number, size, None, 0, 0, 0, 0, 0))])
        for number, size in enumerate(sizes)
    }
    chosen = choose_exact(list(lanes.values()), target)
    return [group.id for group in chosen or ()]


# ---- why there is no batch ----------------------------------------------------------------------------------------


def explain_shortage(backlog: Backlog, batch_size: int, expected: Iterable[int], *, full: bool) -> str:
    """Why the backlog gives no batch of this size. `expected`: the group sizes of the connected environments. `full`:
    no more groups are accepted."""
    counts = backlog.counts
    oversize = sorted(size for size in counts if size > batch_size)
    note = f"; groups of {', '.join(map(str, oversize))} are larger than a batch and never fit" if oversize else ""
    if full and backlog.sequences < batch_size:
        return (
            f"a batch needs {batch_size} sequences, but the backlog is full with {backlog.sequences}: raise "
            f"api.backlog_groups or api.backlog_gb, or register with a smaller batch_size{note}"
        )
    sizes = {*counts, *expected}
    if sizes and not can_reach(dict.fromkeys(sizes, batch_size), batch_size):
        shown = ", ".join(map(str, sorted(sizes)))
        return (
            f"groups of {shown} can never make exactly {batch_size} sequences: register with a batch_size that is a "
            f"multiple of the group size, or use another group size{note}"
        )
    if backlog.sequences < batch_size:
        return f"a batch needs {batch_size} sequences, {backlog.sequences} wait{note}"
    return f"no set of the waiting groups has exactly {batch_size} sequences yet{note}"
