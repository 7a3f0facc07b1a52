"""The plot of a plan."""

import xml.etree.ElementTree as ElementTree

import pytest

from ludus.planning.forecast import Forecast, NodesForecast
from ludus.planning.plan_table import print_forecast
from ludus.planning.throughput_plot import COLOURS, draw_forecast


def make_row(nodes: int, per_hour: float, bottleneck: str = "nodes", *changes: str) -> NodesForecast:
    return NodesForecast(
        nodes=nodes, per_hour=per_hour, speedup=per_hour / 1000, bottleneck=bottleneck, loads={}, rollout_seconds=9.0,
        hours=2.0, dollars=0.0, disk_gb=0.5, node_mb=None, driver_mb=100.0, changes=changes,
    )  # fmt: skip


def make_forecast(*rows: NodesForecast) -> Forecast:
    return Forecast(total=7000, nodes=rows, assumptions=("Nothing is lost.",))


def test_every_forecast_is_a_dot_in_the_colour_of_its_bottleneck():
    found = make_forecast(make_row(1, 1000), make_row(64, 60_000), make_row(1000, 90_000, "driver"))
    drawing = ElementTree.fromstring(draw_forecast(found, "a <b>"))
    dots = [each for each in drawing.iter() if each.tag.endswith("circle") and list(each)]
    assert [dot.get("fill") for dot in dots] == [COLOURS["nodes"], COLOURS["nodes"], COLOURS["driver"]]
    assert [float(dot.get("cx", "")) for dot in dots] == sorted(float(dot.get("cx", "")) for dot in dots)
    assert "a <b>: rollouts per hour" in "".join(drawing.itertext())


def test_one_forecast_can_be_drawn():
    ElementTree.fromstring(draw_forecast(make_forecast(make_row(1, 1000)), "x"))


def test_the_table_has_what_was_asked_for_and_says_what_changes(capsys: pytest.CaptureFixture[str]):
    rows = (make_row(1, 1000), make_row(8, 7500), make_row(1000, 9000, "driver", "driver: more of them"))
    print_forecast(make_forecast(*rows), (1, 8))
    out = capsys.readouterr().out
    assert "a run of 7,000 rollouts" in out and "7500" in out and "9000" not in out
    assert "for 1000 nodes at full speed:\n  driver: more of them" in out
    assert "unknown" in out and "no price" in out and "Nothing is lost." in out
