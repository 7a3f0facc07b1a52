"""The scores of a training run, drawn with characters."""

import msgspec

from ludus.reflact.report.score_curve import Curve, Dot
from ludus.reflact.score_plot import plot_scores

CURVE = Curve(
    current=((0, 0.0), (1, 0.5), (2, 0.5), (3, 1.0)),
    best=((0, 0.0), (1, 0.5), (2, 0.5), (3, 1.0)),
    train=(),
    dots=(
        Dot(1, 0.5, None, "accept_new_best", True),
        Dot(2, 0.25, None, "reject", False),
        Dot(3, 1.0, None, "accept_new_best", True),
    ),
    epochs=(3,),
    steps=3,
)


def test_the_curve_is_drawn():
    lines = plot_scores(CURVE).splitlines()
    assert lines[0] == "  1.00 │" + " " * 24 + "●"
    assert lines[4] == "  0.50 │" + " " * 8 + "●" + "─" * 15
    assert lines[6] == "       │" + " " * 16 + "○"
    assert lines[8] == "  0.00 │" + "─" * 8
    assert lines[10].split() == ["step", "0", "1", "2", "3"]


def test_long_runs_are_drawn_as_far_as_they_fit():
    for steps in (3, 30, 70):
        wide = plot_scores(msgspec.structs.replace(CURVE, steps=steps)).splitlines()
        assert max(map(len, wide)) <= 80
        assert len(wide) == 12
    assert plot_scores(msgspec.structs.replace(CURVE, steps=71)) == ""
    assert plot_scores(msgspec.structs.replace(CURVE, current=(), dots=())) == ""
