"""The simulation of a cluster: laws of queues, limits that bind, and the same numbers for the same seed."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.planning import simulation
from ludus.planning.simulation import Cluster, RolloutSample, TurnSample, simulate

PLAIN = (RolloutSample(turns=(TurnSample(8.0, 100, 1.0),), verify=1.0, size=20_000),)
"""Ten seconds and a hundred tokens."""
SPREAD = tuple(RolloutSample(turns=(TurnSample(2.0 * n, 25 * n, n / 4),), verify=n / 4, size=20_000) for n in range(8))
"""On average nearly the same, but not all in step."""
MIXED = tuple(
    RolloutSample(
        slot=0.2 * n, setup=0.1, turns=(TurnSample(1.0 + n, 50 * n, 0.5),) * (1 + n % 3), verify=0.3, size=10_000 * n
    )
    for n in range(1, 8)
)


def test_a_rollout_without_any_limit_takes_what_it_took():
    found = simulate(Cluster(samples=PLAIN, per_node=10), 10)
    assert (found.seconds, found.rollout_seconds) == (10.0, 10.0)
    assert set(found.loads.values()) == {0.0}


@pytest.mark.parametrize(
    ("limit", "resource", "rate"),
    [
        ({"server_tokens": 175.0}, "model server", 2.0),
        ({"driver_seconds": 0.5, "store_seconds": 0.1}, "driver", 1 / 0.6),
        ({"driver_seconds": 0.1, "store_seconds": 0.4}, "store", 2.0),
        ({"link": 20_000.0}, "network", 1.0),
        ({"cores": 1.0, "core_seconds": 2.0}, "node cores", 2.0),
    ],
)
def test_the_resource_that_is_always_busy_decides_the_rate(limit: dict[str, float], resource: str, rate: float):
    """Four nodes could do 40 rollouts in nine seconds."""
    found = simulate(Cluster(samples=SPREAD, nodes=4, per_node=10, **limit))
    assert found.rate == pytest.approx(rate, rel=0.07)
    busiest = max(found.loads, key=lambda name: found.loads[name])
    assert busiest == resource
    assert found.loads["driver"] + found.loads["store"] == pytest.approx(
        float(resource in ("driver", "store")), abs=0.05
    )


def test_slots_that_start_wait_in_line():
    samples = (RolloutSample(slot=1.0, verify=1.0),)
    found = simulate(Cluster(samples=samples, nodes=3, per_node=8, starting=2))
    assert found.rate == pytest.approx(6.0, rel=0.02)  # two per second and node
    assert found.loads["slots starting"] == pytest.approx(1.0, rel=0.02)


def test_a_server_that_gives_half_of_what_is_wanted_makes_every_call_twice_as_long():
    samples = (RolloutSample(turns=(TurnSample(10.0, 100, 0.0),)),)
    found = simulate(Cluster(samples=samples, per_node=10, server_tokens=50.0), 10)
    assert found.seconds == pytest.approx(20.0)


def test_work_of_the_worker_itself_takes_cores_too():
    samples = tuple(RolloutSample(turns=(TurnSample(0.3 * n, 10, 0.0),)) for n in range(1, 6))
    found = simulate(Cluster(samples=samples, per_node=100, cores=2.0, core_seconds=0.1))
    assert found.rate == pytest.approx(20.0, rel=0.07)


clusters = st.builds(
    Cluster,
    samples=st.just(MIXED),
    nodes=st.integers(1, 6),
    per_node=st.integers(1, 12),
    starting=st.integers(0, 4),
    cores=st.sampled_from([2.0, 8.0, math.inf]),
    core_seconds=st.floats(0.0, 1.0),
    server_tokens=st.floats(50.0, 2_000.0) | st.just(math.inf),
    link=st.floats(1e5, 1e8) | st.just(math.inf),
    driver_seconds=st.floats(0.0, 0.2),
    store_seconds=st.floats(0.0, 0.2),
)


@given(clusters)
@settings(max_examples=12)
def test_littles_law(cluster: Cluster):
    """Rollouts at once are the rate times the time of one, whatever limits them."""
    found = simulate(cluster)
    assert found.rate * found.rollout_seconds == pytest.approx(cluster.at_once, rel=0.08)


@given(clusters, st.integers(2, 4))
@settings(max_examples=6)
def test_more_nodes_are_not_slower_and_not_faster_than_their_number(cluster: Cluster, factor: int):
    more = Cluster(
        **{name: getattr(cluster, name) for name in cluster.__struct_fields__ if name != "nodes"}, nodes=6 * factor
    )
    few, many = simulate(cluster).rate, simulate(more).rate
    assert 0.93 * few <= many <= 1.08 * few * more.nodes / cluster.nodes


@given(clusters)
@settings(max_examples=6)
def test_no_resource_gives_more_than_it_has(cluster: Cluster):
    found = simulate(cluster)
    tokens = sum(sample.tokens for sample in MIXED) / len(MIXED)
    size = sum(sample.size for sample in MIXED) / len(MIXED)
    assert found.rate * tokens <= 1.15 * cluster.server_tokens  # the draw of samples varies
    assert found.rate * size <= 1.15 * cluster.link
    assert found.rate * (cluster.driver_seconds + cluster.store_seconds) <= 1.01
    assert all(0.0 <= load <= 1.0 for load in found.loads.values())


def test_equal_seeds_give_equal_numbers_and_others_do_not():
    cluster = Cluster(samples=MIXED, nodes=3, per_node=5, server_tokens=300.0)
    assert simulate(cluster, seed=1) == simulate(cluster, seed=1)
    assert simulate(cluster, seed=1) != simulate(cluster, seed=2)


@pytest.mark.parametrize("limit", [{}, {"server_tokens": 900.0}, {"driver_seconds": 0.02}])
def test_a_large_cluster_behaves_as_a_part_of_it(monkeypatch: pytest.MonkeyPatch, limit: dict[str, float]):
    cluster = Cluster(samples=MIXED, nodes=40, per_node=10, starting=2, cores=8.0, core_seconds=0.2, **limit)
    whole = simulate(cluster)
    monkeypatch.setattr(simulation, "MOST_AT_ONCE", 40)
    part = simulate(cluster)
    assert part.rate == pytest.approx(whole.rate, rel=0.1)
    for name, load in whole.loads.items():
        assert part.loads[name] == pytest.approx(load, abs=0.08)
