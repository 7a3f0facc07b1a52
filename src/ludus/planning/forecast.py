"""Forecasts: a profile and machines in, numbers for each size of a cluster out. Pure.

The first bottleneck is the resource that is busy more than `BUSY` of the time. If there is none, the places on the
nodes are what limits a run, and more nodes make it faster. What would have to change is what every node at full speed
would ask of a resource that all share, and has not.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from ludus.models.server import ServerSettings
from ludus.planning.run_profile import RunProfile, find_saturation
from ludus.planning.settings import PlanSettings
from ludus.planning.simulation import Cluster, Resource, Simulated, simulate

BUSY = 0.85
"""The load from which on a resource limits a run."""
NODES = "nodes"
"""The bottleneck of a run that would be faster with more nodes."""
INDEX_BYTES = 500
"""What the driver keeps of each rollout of a run: its job, its address and its score. `bench/scale.py` measures it."""
MOST_EXACT = 5_000
"""The most rollouts of a run that is simulated from its first to its last."""


class Limit(Struct, frozen=True):
    """A number that limits a cluster, and where it is from."""

    value: float
    source: str


class Machines(Struct, frozen=True, kw_only=True):
    """The machines of a plan, all nodes alike."""

    per_node: int
    starting: int
    cores: int
    server: Limit
    network_mbit: float
    engine_ms: float
    node_dollars: float = 0.0


class NodesForecast(Struct, frozen=True, kw_only=True):
    """A run on so many nodes."""

    nodes: int
    per_hour: float
    """Rollouts."""
    speedup: float
    """How many times as fast as one node that shares nothing."""
    bottleneck: str
    loads: Mapping[Resource, float]
    rollout_seconds: float
    hours: float
    """Of the whole run."""
    dollars: float
    """Of the whole run: the model and the nodes."""
    disk_gb: float
    """Of the run directory."""
    node_mb: float | None
    """Memory of a node; None: not measured."""
    driver_mb: float
    changes: tuple[str, ...] = ()
    """What would have to change so that all nodes work at full speed."""


class Forecast(Struct, frozen=True, kw_only=True):
    """The forecasts of a plan."""

    total: int
    """Rollouts of the run."""
    nodes: tuple[NodesForecast, ...]
    assumptions: tuple[str, ...]


def forecast(profile: RunProfile, machines: Machines, counts: Sequence[int], total: int, seed: int = 0) -> Forecast:
    """Forecast a run of `total` rollouts on each number of nodes."""
    alone = simulate(_free(make_cluster(profile, machines, 1)), seed=seed)
    rows = tuple(_forecast_nodes(profile, machines, count, total, alone, seed) for count in counts)
    return Forecast(total=total, nodes=rows, assumptions=tuple(list_assumptions(profile, machines)))


def make_cluster(profile: RunProfile, machines: Machines, nodes: int) -> Cluster:
    return Cluster(
        samples=profile.samples,
        nodes=nodes,
        per_node=machines.per_node,
        starting=machines.starting,
        cores=float(machines.cores),
        core_seconds=profile.calibration.core_seconds or 0.0,
        server_tokens=machines.server.value,
        link=machines.network_mbit * 1e6 / 8,
        driver_seconds=profile.decode_seconds + machines.engine_ms / 1000,
        store_seconds=profile.store_seconds,
    )


def _free(cluster: Cluster) -> Cluster:
    """The cluster without limits that its nodes share."""
    return msgspec.structs.replace(
        cluster, server_tokens=math.inf, link=math.inf, driver_seconds=0.0, store_seconds=0.0
    )


def _forecast_nodes(
    profile: RunProfile, machines: Machines, nodes: int, total: int, alone: Simulated, seed: int
) -> NodesForecast:
    cluster, calibration = make_cluster(profile, machines, nodes), profile.calibration
    found = simulate(cluster, seed=seed)
    hours = _compute_seconds(cluster, found, total, seed) / 3600
    slot_mb, base = calibration.slot_mb, calibration.base_mb
    return NodesForecast(
        nodes=nodes,
        per_hour=3600 * found.rate,
        speedup=found.rate / alone.rate,
        bottleneck=name_bottleneck(found.loads),
        loads=found.loads,
        rollout_seconds=found.rollout_seconds,
        hours=hours,
        dollars=total * profile.dollars + nodes * hours * machines.node_dollars,
        disk_gb=total * profile.disk / 1e9,
        node_mb=None if slot_mb is None else base + machines.per_node * slot_mb,
        driver_mb=base + total * INDEX_BYTES / 1e6,
        changes=tuple(list_changes(cluster, nodes * alone.rate, alone.loads)),
    )


def _compute_seconds(cluster: Cluster, steady: Simulated, total: int, seed: int) -> float:
    """How long a run takes from its first rollout to its last. In the end fewer and fewer run."""
    if total <= MOST_EXACT:
        return simulate(cluster, total, seed).seconds
    return max(total - cluster.at_once, 0) / steady.rate + steady.rollout_seconds


def name_bottleneck(loads: Mapping[Resource, float]) -> str:
    """The resource that limits a run. Driver and store are one process: the larger of the two is named."""
    own: dict[str, float] = {name: load for name, load in loads.items() if name not in ("driver", "store")}
    larger = "driver" if loads["driver"] >= loads["store"] else "store"
    own[larger] = loads["driver"] + loads["store"]
    name = max(own, key=lambda each: own[each])
    return name if own[name] >= BUSY else NODES


# ---- what would have to change ------------------------------------------------------------------------------------

Advise = Callable[[Cluster, float, float], str]
"""Takes the cluster, the rollouts per second of all nodes at full speed, and how many times too small a resource is."""


def list_changes(cluster: Cluster, rate: float, alone: Mapping[Resource, float]) -> Iterator[str]:
    """What would have to change so that all nodes work at full speed, at so many rollouts per second. `alone`: the
    loads of a node that shares nothing."""
    for name, demand in compute_demands(cluster, rate, alone).items():
        if demand > BUSY:
            yield _ADVICE[name](cluster, rate, demand / BUSY)


def compute_demands(cluster: Cluster, rate: float, alone: Mapping[Resource, float]) -> dict[Resource, float]:
    """What nodes at full speed ask of each resource, as a multiple of what it has."""
    count = len(cluster.samples)
    tokens = sum(sample.tokens for sample in cluster.samples) / count
    size = sum(sample.size for sample in cluster.samples) / count
    return {
        "model server": rate * tokens / cluster.server_tokens,
        "driver": rate * (cluster.driver_seconds + cluster.store_seconds),
        "store": rate * cluster.store_seconds,
        "network": rate * size / cluster.link,
        "slots starting": alone["slots starting"],
        "node cores": alone["node cores"],
    }


def _advise_server(cluster: Cluster, rate: float, factor: float) -> str:
    tokens = rate * sum(sample.tokens for sample in cluster.samples) / len(cluster.samples)
    return (
        f"model server: {tokens:,.0f} tokens/s are asked for and {cluster.server_tokens:,.0f} are there: "
        f"{factor:.1f} times the servers (model.servers)"
    )


def _advise_driver(cluster: Cluster, rate: float, factor: float) -> str:
    each = 1000 * (cluster.driver_seconds + cluster.store_seconds)
    return (
        f"driver: {rate:,.0f} rollouts/s of {each:.2f} ms each are more than one process can do: "
        f"{math.ceil(factor)} runs side by side, each with a part of the tasks (env.ids), a driver and a store"
    )


def _advise_store(cluster: Cluster, rate: float, factor: float) -> str:
    return (
        f"store: it commits {1 / cluster.store_seconds:,.0f} rollouts/s one by one: a faster disk for the run "
        "directory, or several outcomes in a commit"
    )


def _advise_network(cluster: Cluster, rate: float, factor: float) -> str:
    size = sum(sample.size for sample in cluster.samples) / len(cluster.samples)
    return (
        f"network: {rate * size / 1e6:,.0f} MB/s reach the driver over a link of {cluster.link / 1e6:,.0f}: a link "
        f"that is {factor:.1f} times as fast, or as many runs side by side"
    )


def _advise_starting(cluster: Cluster, rate: float, factor: float) -> str:
    return (
        f"slots starting: {cluster.starting} at once on a node are not enough for {cluster.per_node} rollouts: keep "
        "slots warm (sandbox.warm), or let more of them start at once"
    )


def _advise_cores(cluster: Cluster, rate: float, factor: float) -> str:
    return (
        f"node cores: {cluster.per_node} rollouts at once keep {cluster.cores:.0f} cores busy: fewer rollouts at once "
        "on a node, or more cores"
    )


_ADVICE: Mapping[Resource, Advise] = {
    "model server": _advise_server,
    "driver": _advise_driver,
    "store": _advise_store,
    "network": _advise_network,
    "slots starting": _advise_starting,
    "node cores": _advise_cores,
}


# ---- assumptions --------------------------------------------------------------------------------------------------


def choose_server_limit(settings: PlanSettings, model: object, profile: RunProfile) -> Limit:
    """The tokens of replies per second that model servers give: as the plan says, as the rate limits say, or as the
    calibration found."""
    if settings.server_tokens_per_second is not None:
        return Limit(settings.server_tokens_per_second, "plan.server_tokens_per_second")
    limits = [*_list_rate_limits(model, profile)]
    found = find_saturation(profile.calibration.low, profile.calibration.high)
    if found is not None:
        limits.append(Limit(found, "the calibration: more calls at once gave no more tokens"))
    return min(limits, key=lambda limit: limit.value, default=Limit(math.inf, ""))


def _list_rate_limits(model: object, profile: RunProfile) -> Iterator[Limit]:
    if not isinstance(model, ServerSettings):
        return
    servers, replies = len(model.addresses), profile.reply_tokens
    if model.tokens_per_minute is not None and profile.tokens:
        yield Limit(servers * model.tokens_per_minute / 60 * replies / profile.tokens, "model.tokens_per_minute")
    if model.requests_per_minute is not None:
        calls = sum(len(sample.turns) for sample in profile.samples) / len(profile.samples)
        yield Limit(servers * model.requests_per_minute / 60 * replies / max(calls, 1.0), "model.requests_per_minute")


def list_assumptions(profile: RunProfile, machines: Machines) -> Iterator[str]:
    """What a forecast takes for granted, in sentences."""
    calibration, server = profile.calibration, machines.server
    yield f"Rollouts are drawn from {len(profile.samples)} measured ones; {profile.failed} of these have failed."
    if profile.untimed:
        yield f"{profile.untimed} of them have no times of slots and verify, which count as 0."
    if math.isinf(server.value):
        yield (
            "The model server has no limit: none was found and none is set (plan.server_tokens_per_second). Every call "
            "takes as long as it was measured, however many there are."
        )
    else:
        yield f"The model servers give {server.value:,.0f} tokens of replies per second ({server.source})."
    yield (
        f"A node has {machines.cores} cores, runs {machines.per_node} rollouts at once, and starts "
        f"{machines.starting or 'any number of'} slots at once."
    )
    if calibration.core_seconds is None:
        yield "What rollouts take of a node's cores was not measured: cores have no limit."
    else:
        yield f"A rollout takes {calibration.core_seconds:.3g} core seconds, commands on this machine included."
    yield (
        f"The driver takes {1000 * profile.decode_seconds + machines.engine_ms:.2f} ms for a rollout "
        f"({machines.engine_ms:g} ms of them for the engine, as plan.engine_ms says) and its store "
        f"{1000 * profile.store_seconds:.2f} ms, measured on this machine. Its link has {machines.network_mbit:g} "
        "Mbit/s."
    )
    yield (
        "Not simulated: nodes that are lost, pulls of images, the links of the model servers, and retries beyond those "
        "that were measured."
    )


# ---- a finished run -----------------------------------------------------------------------------------------------


class CheckLine(Struct, frozen=True):
    """A forecast of one quantity beside what a run did."""

    name: str
    forecast: float
    actual: float

    @property
    def difference(self) -> float:
        """Of the forecast, as a share of what the run did."""
        return self.forecast / self.actual - 1.0 if self.actual else 0.0


class ActualRun(Struct, frozen=True):
    """What a finished run did."""

    rollouts: int
    seconds: float
    """In which at least one rollout ran."""
    disk: float
    """Bytes."""
    tokens: float
    dollars: float


def check_forecast(profile: RunProfile, cluster: Cluster, actual: ActualRun, seed: int = 0) -> tuple[CheckLine, ...]:
    """A forecast of the whole run beside what it did."""
    seconds = simulate(cluster, actual.rollouts, seed).seconds
    lines = [
        CheckLine("rollouts per hour", 3600 * actual.rollouts / seconds, 3600 * actual.rollouts / actual.seconds),
        CheckLine("MB on disk", actual.rollouts * profile.disk / 1e6, actual.disk / 1e6),
        CheckLine("tokens", actual.rollouts * profile.tokens, actual.tokens),
        CheckLine("dollars", actual.rollouts * profile.dollars, actual.dollars),
    ]
    return tuple(line for line in lines if line.actual or line.forecast)


def is_within(lines: Sequence[CheckLine], tolerance: float) -> bool:
    """Whether every forecast is as near to what the run did as the tolerance says."""
    return all(abs(line.difference) <= tolerance for line in lines)
