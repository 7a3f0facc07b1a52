"""The score curve: its numbers follow the records, and the drawing stays in its frame."""

import re

from tests.reflact_kit import REPORT_SETTINGS

from ludus.reflact.records import Record, Step
from ludus.reflact.report.score_curve import Curve, draw_curve, make_curve


def test_the_curve_follows_the_records(records: list[Record]):
    data = make_curve(records, REPORT_SETTINGS.gate)
    steps = [record for record in records if isinstance(record, Step)]
    assert [step for step, _ in data.current] == list(range(len(steps) + 1))
    assert [value for _, value in data.best] == sorted(value for _, value in data.best)
    assert data.epochs == (2, 4)
    assert [dot.step for dot in data.dots] == [step.number for step in steps if step.verdict]
    accepted = [step.number for step in steps if step.verdict and step.verdict.decision.accepted]
    assert [dot.step for dot in data.dots if dot.accepted] == accepted != []


def test_a_drawing_stays_within_its_frame():
    data = Curve(((0, -0.5), (1, 1.5)), ((0, 1.5),), ((1, 0.2),), (), (), 1)
    numbers = [
        float(n) for points in re.findall(r'points="([^"]*)"', draw_curve(data)) for n in re.split("[ ,]", points)
    ]
    assert numbers and all(0 <= n <= 1100 for n in numbers)
    assert max(numbers[1::2]) <= 300
