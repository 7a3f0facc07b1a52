"""A discrete-event simulation of a run on a cluster. Pure: the same cluster and seed give the same numbers.

    slot ──> setup ──> [ model ──> tools ] per turn ──> verify ──> network ──> driver, store ──> the next one

A node runs `per_node` rollouts at once and begins the next one when one has been committed. So the cluster is a closed
network of queues, and its throughput is limited by the resource that is busy all the time:

* slots that start: at most `starting` at once on a node, the others wait in line.
* the model server: one for all. It gives `server_tokens` per second. While more is asked for, all calls are slower by
  the same factor; a call is never faster than it was measured.
* the cores of a node: shared in the same way by what runs on it (setup, tools, verify).
* the link of the driver, and the driver with its store: one rollout after the other.

Each simulated rollout is one of the measured ones, drawn with the seed. A large cluster is simulated as a part of it:
so many of its nodes that `MOST_AT_ONCE` rollouts run, with the same part of what all nodes share. This changes neither
throughput nor loads. It makes the time that a commit takes longer, which matters only for very short rollouts.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

MOST_AT_ONCE = 600
"""The most rollouts at once that are simulated one by one."""
ROUNDS = 5
"""How many rollouts each place of a cluster runs, in a simulation of its steady state."""
LEAST = 500
"""The fewest rollouts of such a simulation."""

Resource = Literal["slots starting", "model server", "node cores", "network", "driver", "store"]


class TurnSample(NamedTuple):
    """A turn as it was measured."""

    model: float
    """Seconds."""
    tokens: int
    """Of the reply."""
    tools: float


class RolloutSample(Struct, frozen=True):
    """A rollout as it was measured. Times are in seconds."""

    slot: float = 0.0
    setup: float = 0.0
    turns: tuple[TurnSample, ...] = ()
    verify: float = 0.0
    size: int = 0
    """Bytes that are sent to the driver."""

    @property
    def on_node(self) -> float:
        """The time in which it may use the cores of its node."""
        return self.setup + self.verify + sum(turn.tools for turn in self.turns)

    @property
    def tokens(self) -> int:
        return sum(turn.tokens for turn in self.turns)

    @property
    def seconds(self) -> float:
        return self.slot + self.on_node + sum(turn.model for turn in self.turns)


class Cluster(Struct, frozen=True, kw_only=True):
    """Machines, and what rollouts take of them."""

    samples: tuple[RolloutSample, ...]
    nodes: int = 1
    per_node: int = 16
    """Rollouts at once on a node."""
    starting: int = 0
    """Slots that start at once on a node; 0: no limit."""
    cores: float = math.inf
    """Of a node."""
    core_seconds: float = 0.0
    """What a rollout takes of them."""
    server_tokens: float = math.inf
    """Tokens of replies per second that the model servers give in all."""
    link: float = math.inf
    """Bytes per second to the driver."""
    driver_seconds: float = 0.0
    """What the driver takes for a rollout, without the store."""
    store_seconds: float = 0.0

    @property
    def at_once(self) -> int:
        return self.nodes * self.per_node


class Simulated(Struct, frozen=True):
    """What a simulation measured."""

    rate: float
    """Rollouts per second, while all places are taken."""
    seconds: float
    """From the first start to the last commit."""
    rollout_seconds: float
    """How long a rollout took on average, with all waiting."""
    loads: Mapping[Resource, float]
    """The share of time for which each resource was busy, while all places were taken."""


def simulate(cluster: Cluster, rollouts: int | None = None, seed: int = 0) -> Simulated:
    """Simulate so many rollouts; None: as many as the steady state needs."""
    part = cluster if rollouts is not None else _take_part(cluster)
    count = rollouts if rollouts is not None else max(LEAST, ROUNDS * part.at_once)
    found = _Simulation(part, count, seed).run()
    scale = cluster.nodes / part.nodes
    return Simulated(found.rate * scale, found.seconds, found.rollout_seconds, found.loads)


def _take_part(cluster: Cluster) -> Cluster:
    """A part of a large cluster that behaves as the whole does."""
    nodes = min(cluster.nodes, max(1, MOST_AT_ONCE // cluster.per_node))
    scale = cluster.nodes / nodes
    return Cluster(
        samples=cluster.samples,
        nodes=nodes,
        per_node=cluster.per_node,
        starting=cluster.starting,
        cores=cluster.cores,
        core_seconds=cluster.core_seconds,
        server_tokens=cluster.server_tokens / scale,
        link=cluster.link / scale,
        driver_seconds=cluster.driver_seconds * scale,
        store_seconds=cluster.store_seconds * scale,
    )


# ---- time and resources -------------------------------------------------------------------------------------------

Done = Callable[[], None]


class _Clock:
    """The events that are to come, in the order of time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Done]] = []
        self._count = 0

    def call_in(self, seconds: float, done: Done) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, done))

    def run(self) -> None:
        while self._events:
            self.now, _, done = heapq.heappop(self._events)
            done()


class _Use(Protocol):
    """A resource while a rollout uses it."""

    def use(self, amount: float, share: float, done: Done) -> None:
        """Call `done` when so many seconds of work are done. `share`: how much of the resource the work takes."""
        ...


class _Line:
    """A resource with some places, and a line of those who wait for one."""

    def __init__(self, clock: _Clock, places: float) -> None:
        self._clock = clock
        self._free = self._places = places
        self._waiting: deque[tuple[float, Done]] = deque()
        self._used = self._since = 0.0

    def use(self, amount: float, share: float, done: Done) -> None:
        if self._free > 0:
            self._begin(amount, done)
        else:
            self._waiting.append((amount, done))

    def _begin(self, amount: float, done: Done) -> None:
        self.measure()
        self._free -= 1

        def end() -> None:
            self.measure()
            self._free += 1
            if self._waiting:
                self._begin(*self._waiting.popleft())
            done()

        self._clock.call_in(amount, end)

    def measure(self) -> float:
        """How many seconds of its places were used so far, divided by their number."""
        if math.isfinite(self._places):
            self._used += (self._clock.now - self._since) * (self._places - self._free) / self._places
        self._since = self._clock.now
        return self._used


class _Shared:
    """A resource that all who use it share. While they want more than there is, all are slower by the same factor.

    Its own time goes on by one second per second while there is enough, and slower otherwise. So the work that ends
    first is known without looking at all of it.
    """

    def __init__(self, clock: _Clock, capacity: float) -> None:
        self._clock = clock
        self._capacity = capacity
        self._wanted = self._time = self._since = self._used = 0.0
        self._work: list[tuple[float, int, float, Done]] = []
        self._count = self._planned = 0

    @property
    def _speed(self) -> float:
        return min(1.0, self._capacity / self._wanted) if self._wanted > 0 else 1.0

    def use(self, amount: float, share: float, done: Done) -> None:
        self.measure()
        self._count += 1
        self._wanted += share
        heapq.heappush(self._work, (self._time + amount, self._count, share, done))
        self._plan()

    def _plan(self) -> None:
        self._planned += 1
        if self._work:
            plan, wait = self._planned, (self._work[0][0] - self._time) / self._speed
            self._clock.call_in(max(0.0, wait), lambda: self._end(plan))

    def _end(self, plan: int) -> None:
        if plan != self._planned:  # the speed has changed since
            return
        self.measure()
        self._time, _, share, done = heapq.heappop(self._work)
        self._wanted = self._wanted - share if self._work else 0.0
        self._plan()
        done()

    def measure(self) -> float:
        """How many seconds it was used so far, as a whole."""
        passed = self._clock.now - self._since
        self._time += passed * self._speed
        self._used += passed * min(1.0, self._wanted / self._capacity) if math.isfinite(self._capacity) else 0.0
        self._since = self._clock.now
        return self._used


# ---- the run ------------------------------------------------------------------------------------------------------

Need = tuple[_Use, float, float]
"""A resource, the seconds of work, and the share of it."""


class _Node:
    def __init__(self, clock: _Clock, cluster: Cluster) -> None:
        self.slots = _Line(clock, cluster.starting or math.inf)
        self.cores = _Shared(clock, cluster.cores)


class _Simulation:
    def __init__(self, cluster: Cluster, rollouts: int, seed: int) -> None:
        self._cluster = cluster
        self._left = self._total = rollouts
        self._random = random.Random(seed)
        self._clock = clock = _Clock()
        self._nodes = [_Node(clock, cluster) for _ in range(cluster.nodes)]
        self._server = _Shared(clock, cluster.server_tokens)
        self._link = _Line(clock, 1)
        self._driver = _Line(clock, 1)
        self._tally = _Tally(rollouts, min(cluster.at_once, rollouts), self._measure_loads)

    def run(self) -> Simulated:
        for _ in range(self._cluster.per_node):
            for node in self._nodes:
                self._begin(node)
        self._clock.run()
        return self._tally.report()

    def _begin(self, node: _Node) -> None:
        """Begin the next rollout on a node, if there is one."""
        if not self._left:
            return
        self._left -= 1
        needs = self._live(self._random.choice(self._cluster.samples), node)
        began = self._clock.now

        def go_on() -> None:
            need = next(needs, None)
            if need is not None:
                resource, amount, share = need
                resource.use(amount, share, go_on)
                return
            self._tally.add(began, self._clock.now)
            self._begin(node)

        go_on()

    def _live(self, sample: RolloutSample, node: _Node) -> Iterator[Need]:
        """What a rollout needs, in order."""
        cluster = self._cluster
        busy = sample.on_node
        share = min(1.0, cluster.core_seconds / busy) if busy else 0.0
        extra = cluster.core_seconds - busy * share  # work of its worker while nothing else runs
        if sample.slot:
            yield node.slots, sample.slot, 1.0
        if sample.setup:
            yield node.cores, sample.setup, share
        for turn in sample.turns:
            if turn.model:
                yield self._server, turn.model, turn.tokens / turn.model
            if turn.tools:
                yield node.cores, turn.tools, share
        if sample.verify:
            yield node.cores, sample.verify, share
        if extra > 0:
            yield node.cores, extra, 1.0
        if math.isfinite(cluster.link):
            yield self._link, sample.size / cluster.link, 1.0
        yield self._driver, cluster.driver_seconds + cluster.store_seconds, 1.0

    def _measure_loads(self) -> dict[Resource, float]:
        """For how many seconds each resource was busy so far."""
        cluster, nodes = self._cluster, self._nodes
        driver, own = self._driver.measure(), cluster.driver_seconds + cluster.store_seconds
        return {
            "slots starting": sum(node.slots.measure() for node in nodes) / len(nodes),
            "model server": self._server.measure(),
            "node cores": sum(node.cores.measure() for node in nodes) / len(nodes),
            "network": self._link.measure(),
            "driver": driver * cluster.driver_seconds / own if own else 0.0,
            "store": driver * cluster.store_seconds / own if own else 0.0,
        }


class _Tally:
    """Counts rollouts as they end. The steady state is from the end of the first round to the begin of the last."""

    def __init__(self, total: int, at_once: int, measure: Callable[[], dict[Resource, float]]) -> None:
        self._total = total
        self._measure = measure
        self._first, self._last = (at_once, total - at_once) if total >= 3 * at_once else (0, total)
        self._count = 0
        self._spent: list[float] = []
        self._ends: list[float] = []
        self._began, self._busy_before = 0.0, measure()
        self._ended, self._busy_after = 0.0, self._busy_before

    def add(self, began: float, ended: float) -> None:
        self._count += 1
        self._ends.append(ended)
        self._spent.append(ended - began)
        if self._count == self._first:
            self._began, self._busy_before = ended, self._measure()
        if self._count == self._last:
            self._ended, self._busy_after = ended, self._measure()

    def report(self) -> Simulated:
        took = self._ended - self._began
        rate = (self._last - self._first) / took if took > 0 else math.inf
        window: Sequence[float] = self._spent[self._first : self._last]
        mean = sum(window) / len(window)
        loads: dict[Resource, float] = {
            name: min(1.0, (after - self._busy_before[name]) / took) if took > 0 else 0.0
            for name, after in self._busy_after.items()
        }
        return Simulated(rate, self._ends[-1], mean, loads)
