"""A plan on a terminal: a line for each number of nodes, what would have to change, and what was assumed."""

import math
from collections.abc import Sequence

from ludus.command.terminal import format_count, format_duration, format_money, make_console, make_table, make_text
from ludus.planning.forecast import NODES, CheckLine, Forecast, NodesForecast


def print_forecast(found: Forecast, shown: Sequence[int]) -> None:
    """Print the forecasts for the nodes in `shown`, and what would have to change for them and for the largest."""
    console = make_console()
    table = make_table("nodes", "rollouts/h", "speedup", "bottleneck", "time", "cost", "disk", "node", "driver")
    rows = [row for row in found.nodes if row.nodes in shown]
    for row in rows:
        table.add_row(*_list_cells(row))
    console.print(make_text(f"a run of {found.total:,} rollouts"))
    console.print(table)
    for row in _choose_changing(found, rows):
        console.print(make_text(f"\nfor {row.nodes} nodes at full speed:"))
        for change in row.changes or ("nothing has to change",):
            console.print(make_text(f"  {change}"), soft_wrap=True)
    console.print(make_text("\nassumed:"))
    for line in found.assumptions:
        console.print(make_text(f"  {line}", "dim"), soft_wrap=True)


def _list_cells(row: NodesForecast) -> Sequence[str]:
    return (
        str(row.nodes),
        format_count(row.per_hour),
        f"{row.speedup:.1f}x",
        "none yet" if row.bottleneck == NODES else row.bottleneck,
        format_duration(3600 * row.hours),
        format_money(row.dollars) if row.dollars else "no price",
        _format_size(1000 * row.disk_gb),
        "unknown" if row.node_mb is None else _format_size(row.node_mb),
        _format_size(row.driver_mb),
    )


def _format_size(mb: float) -> str:
    return f"{mb:.0f} MB" if mb < 1000 else f"{mb / 1000:,.1f} GB"


def _choose_changing(found: Forecast, rows: Sequence[NodesForecast]) -> Sequence[NodesForecast]:
    """The smallest number of nodes for which something has to change, and the largest that was simulated."""
    largest = max(found.nodes, key=lambda row: row.nodes)
    first = next((row for row in rows if row.changes), largest)
    return [first] if first is largest else [first, largest]


def print_check(lines: Sequence[CheckLine], tolerance: float) -> None:
    """Print forecasts beside what a run did."""
    table = make_table("", "forecast", "the run", "difference", "")
    for line in lines:
        inside = abs(line.difference) <= tolerance
        words = "within" if inside else "OUTSIDE"
        table.add_row(
            line.name,
            _format(line.forecast),
            _format(line.actual),
            f"{line.difference:+.0%}",
            f"{words} {tolerance:.0%}",
        )
    make_console().print(table)


def _format(value: float) -> str:
    return format_count(value) if value >= 100 else f"{value:.3g}" if math.isfinite(value) else "none"
