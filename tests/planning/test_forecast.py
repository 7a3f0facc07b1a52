"""Forecasts: the bottleneck, what has to change, and the comparison with a run."""

import math

import pytest

from ludus.models.settings import OpenAISettings, ScriptedSettings
from ludus.planning.forecast import (
    ActualRun,
    CheckLine,
    Limit,
    Machines,
    check_forecast,
    choose_server_limit,
    forecast,
    is_within,
    make_cluster,
    name_bottleneck,
)
from ludus.planning.run_profile import Calibration, RunProfile, ServerReading
from ludus.planning.settings import PlanSettings
from ludus.planning.simulation import RolloutSample, TurnSample

SAMPLES = tuple(RolloutSample(0.1, 0.1, (TurnSample(float(n), 10 * n, 0.5),) * 2, 0.5, 20_000) for n in range(1, 8))
"""Eighty tokens in about ten seconds."""


def make_profile(calibration: Calibration = Calibration(core_seconds=0.5, slot_mb=50.0, base_mb=100.0)) -> RunProfile:
    return RunProfile(
        samples=SAMPLES, tokens=800.0, dollars=0.01, disk=25_000.0, decode_seconds=1e-4, store_seconds=4e-4,
        calibration=calibration,
    )  # fmt: skip


def make_machines(server: float = math.inf, **others: float) -> Machines:
    values: dict[str, float] = {"per_node": 16, "starting": 16, "cores": 16, "network_mbit": 1000, "engine_ms": 0.5}
    return Machines(server=Limit(server, "somebody"), **{**values, **others})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("loads", "name"),
    [
        ({}, "nodes"),
        ({"model server": 0.8}, "nodes"),
        ({"model server": 0.9, "network": 0.95}, "network"),
        ({"driver": 0.5, "store": 0.4}, "driver"),
        ({"driver": 0.3, "store": 0.6}, "store"),
        ({"driver": 0.3, "store": 0.3}, "nodes"),
    ],
)
def test_the_first_bottleneck(loads: dict[str, float], name: str):
    names = ("slots starting", "model server", "node cores", "network", "driver", "store")
    assert name_bottleneck({each: loads.get(each, 0.0) for each in names}) == name  # pyright: ignore[reportArgumentType]


def test_a_plan_for_few_and_for_a_thousand_nodes():
    found = forecast(make_profile(), make_machines(server=2_000.0, node_dollars=2.0), (1, 8, 1000), 100_000)
    one, eight, thousand = found.nodes
    assert (one.bottleneck, eight.bottleneck, thousand.bottleneck) == ("nodes", "nodes", "model server")
    assert eight.per_hour == pytest.approx(8 * one.per_hour, rel=0.1)
    assert thousand.per_hour == pytest.approx(3600 * 2_000 / 80, rel=0.12)
    assert [row.changes for row in (one, eight)] == [(), ()]
    assert [change.partition(":")[0] for change in thousand.changes] == ["model server", "driver"]
    assert one.hours == pytest.approx(100_000 / one.per_hour, rel=0.01)
    assert one.dollars == pytest.approx(1000 + 2 * one.hours)
    assert (one.disk_gb, one.node_mb, one.driver_mb) == (2.5, 900.0, 150.0)
    assert any("2,000 tokens" in line and "somebody" in line for line in found.assumptions)


def test_a_short_run_is_simulated_to_its_end():
    row = forecast(make_profile(), make_machines(), (64,), 100).nodes[0]
    assert 3600 * row.hours == pytest.approx(max(sample.seconds for sample in SAMPLES), rel=0.1)


def test_a_node_that_is_too_small_is_named():
    row = forecast(make_profile(), make_machines(cores=1, per_node=64), (1,), 100).nodes[0]
    assert row.bottleneck == "node cores"
    assert row.changes[0].startswith("node cores: 64 rollouts at once keep 1 cores busy")


def test_what_was_not_measured_is_said():
    found = forecast(make_profile(Calibration()), make_machines(), (1,), 100)
    assert found.nodes[0].node_mb is None
    assert any("not measured" in line for line in found.assumptions)
    assert any("has no limit" in line for line in found.assumptions)


@pytest.mark.parametrize(
    ("settings", "model", "calibration", "value", "source"),
    [
        ({}, ScriptedSettings(), Calibration(), math.inf, ""),
        ({"server_tokens_per_second": 50.0}, ScriptedSettings(), Calibration(), 50.0, "plan.server"),
        ({}, OpenAISettings(base_url="u", tokens_per_minute=60_000.0), Calibration(), 100.0, "model.tokens"),
        ({}, OpenAISettings(base_url="u", servers=("v",), requests_per_minute=60.0), Calibration(), 80.0, "model.req"),
        ({}, ScriptedSettings(), Calibration(ServerReading(4, 90), ServerReading(16, 95)), 95.0, "the calibration"),
    ],
)
def test_where_the_limit_of_the_server_is_from(settings, model, calibration, value, source):
    found = choose_server_limit(PlanSettings(**settings), model, make_profile(calibration))
    assert found.value == pytest.approx(value)
    assert found.source.startswith(source)


def test_a_forecast_beside_a_run():
    profile, machines = make_profile(), make_machines(engine_ms=0.0)
    cluster = make_cluster(profile, machines, 1)
    lines = check_forecast(profile, cluster, ActualRun(100, 70.0, 2.5e6, 80_000, 0.0))
    assert [line.name for line in lines] == ["rollouts per hour", "MB on disk", "tokens", "dollars"]
    assert abs(lines[0].difference) < 0.2
    assert [round(line.difference, 6) for line in lines[1:]] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("forecasts", "within"), [((100, 120), True), ((100, 130), False), ((70, 100), False)])
def test_outside_of_the_tolerance(forecasts: tuple[float, float], within: bool):
    assert is_within([CheckLine("x", each, 100.0) for each in forecasts], 0.25) == within
