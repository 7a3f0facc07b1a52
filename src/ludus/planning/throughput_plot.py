"""The plot of a plan: rollouts per hour by nodes, both on logarithmic scales, as an SVG drawing. Pure.

The grey line is what so many nodes would do if they shared nothing. The dots are the forecasts, in the colour of their
bottleneck.
"""

import math
from collections.abc import Iterator, Mapping
from html import escape

from ludus.planning.forecast import NODES, Forecast, NodesForecast

WIDTH, HEIGHT = 560.0, 320.0
LEFT, RIGHT, TOP, BOTTOM = 80.0, 210.0, 34.0, 40.0
COLOURS: Mapping[str, str] = {
    NODES: "#2a7d4f",
    "model server": "#c0392b",
    "driver": "#8e44ad",
    "store": "#6c5ce7",
    "network": "#0b7285",
    "slots starting": "#d9822b",
    "node cores": "#8a6d3b",
}
WORDS = {NODES: "none yet: more nodes help"}


def draw_forecast(found: Forecast, title: str) -> str:
    """The plot as the text of an SVG file."""
    scale = _Scale(found)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + RIGHT:g} {HEIGHT:g}" font-family="sans-serif" '
        'font-size="11"><rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT:g}" y="18" font-size="13">{escape(title)}: rollouts per hour by nodes</text>',
        *scale.draw_grid(),
        _draw_line(scale, ideal=True, colour="#bbb"),
        _draw_line(scale, ideal=False, colour="#333"),
        *(_draw_dot(scale, row) for row in found.nodes),
        *_draw_legend(found),
        "</svg>\n",
    ]
    return "".join(parts)


class _Scale:
    """Where numbers are in the drawing."""

    def __init__(self, found: Forecast) -> None:
        self.rows = sorted(found.nodes, key=lambda row: row.nodes)
        first = self.rows[0]
        self.one = first.per_hour / first.speedup
        """Rollouts per hour of a node that shares nothing."""
        self._nodes = (0.0, max(1.0, math.ceil(math.log10(self.rows[-1].nodes))))
        rates = [row.per_hour for row in self.rows] + [self.one * self.rows[-1].nodes]
        lowest = math.floor(math.log10(min(rates)))
        self._rates = (lowest, max(lowest + 1, math.ceil(math.log10(max(rates)))))

    def to_x(self, nodes: float) -> float:
        return LEFT + (WIDTH - LEFT) * _place(math.log10(nodes), self._nodes)

    def to_y(self, rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _place(math.log10(rate), self._rates)

    def draw_grid(self) -> Iterator[str]:
        for power in range(int(self._rates[0]), int(self._rates[1]) + 1):
            y = self.to_y(10.0**power)
            yield f'<line x1="{LEFT:g}" x2="{WIDTH:g}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>'
            yield f'<text x="{LEFT - 8:g}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>'
        for power in range(int(self._nodes[1]) + 1):
            x = self.to_x(10.0**power)
            yield f'<text x="{x:.1f}" y="{HEIGHT - 20:g}" text-anchor="middle">{10**power:,}</text>'
        yield f'<text x="{(LEFT + WIDTH) / 2:g}" y="{HEIGHT - 5:g}" text-anchor="middle">nodes</text>'


def _place(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0])


def _draw_line(scale: _Scale, *, ideal: bool, colour: str) -> str:
    points = " ".join(
        f"{scale.to_x(row.nodes):.1f},{scale.to_y(scale.one * row.nodes if ideal else row.per_hour):.1f}"
        for row in scale.rows
    )
    return f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'


def _draw_dot(scale: _Scale, row: NodesForecast) -> str:
    words = f"{row.nodes} nodes: {row.per_hour:,.0f} rollouts per hour; {WORDS.get(row.bottleneck, row.bottleneck)}"
    return (
        f'<circle cx="{scale.to_x(row.nodes):.1f}" cy="{scale.to_y(row.per_hour):.1f}" r="4.5" '
        f'fill="{COLOURS[row.bottleneck]}"><title>{escape(words)}</title></circle>'
    )


def _draw_legend(found: Forecast) -> Iterator[str]:
    x = WIDTH + 14
    yield f'<line x1="{x:g}" x2="{x + 14:g}" y1="{TOP + 6:g}" y2="{TOP + 6:g}" stroke="#bbb" stroke-width="1.5"/>'
    yield f'<text x="{x + 20:g}" y="{TOP + 10:g}">nodes that share nothing</text>'
    for place, name in enumerate(dict.fromkeys(row.bottleneck for row in found.nodes), 1):
        y = TOP + 6 + 20 * place
        yield f'<circle cx="{x + 7:g}" cy="{y:g}" r="4.5" fill="{COLOURS[name]}"/>'
        yield f'<text x="{x + 20:g}" y="{y + 4:g}">{escape(WORDS.get(name, name))}</text>'
