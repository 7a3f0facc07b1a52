"""The scores of a training run, drawn with characters. `report.html` has the same curve with more detail."""

from ludus.reflact.report.score_curve import Curve

ROWS, WIDTH = 9, 70


def plot_scores(curve: Curve) -> str:
    """The scores by step: the current skill as a line, candidates as dots. Empty if there are too many steps."""
    gap = max(1, min(8, WIDTH // curve.steps))
    columns = curve.steps * gap + 1
    if columns > WIDTH + 1 or not curve.current:
        return ""
    values = [score for _, score in curve.current] + [dot.score for dot in curve.dots]
    low, high = min(0.0, *values), max(1.0, *values)
    grid = [[" "] * columns for _ in range(ROWS)]

    def find_row(score: float) -> int:
        return round((high - score) / (high - low) * (ROWS - 1))

    for column in range(columns):
        now = [score for step, score in curve.current if step * gap <= column]
        grid[find_row(now[-1] if now else curve.current[0][1])][column] = "─"
    for dot in sorted(curve.dots, key=lambda dot: dot.accepted):  # what is shipped is above what ties with it
        grid[find_row(dot.score)][dot.step * gap] = "●" if dot.accepted else "○"
    labels = [f"{high - (high - low) * n / (ROWS - 1):.2f}" if n % 4 == 0 else "" for n in range(ROWS)]
    lines = [f"{label:>6} │{''.join(cells)}".rstrip() for label, cells in zip(labels, grid, strict=True)]
    every = max(1, -(-4 // gap))
    steps = "".join(f"{step:<{gap * every}}" for step in range(0, curve.steps + 1, every)).rstrip()
    legend = ["on the selection split:  ─ current skill   ● accepted   ○ not accepted"]
    if curve.expected:
        legend = ["─ the text that would ship, by all evidence so far"]
        legend += ["on the selection split:  ● shipped   ○ others"]
    below = [f"{'':>6} └{'─' * columns}", f"{'step':>6}  {steps}", *(f"{'':>8}{words}" for words in legend)]
    return "\n".join([*lines, *below])
