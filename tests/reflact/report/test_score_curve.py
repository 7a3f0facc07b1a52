"""The score curve: its numbers follow the records."""

from types import SimpleNamespace

from tests.reflact_kit import REPORT_SETTINGS

from ludus.reflact.ledger.settings import LedgerSettings
from ludus.reflact.records import Record, Step
from ludus.reflact.report.score_curve import make_curve
from ludus.reflact.train_settings import TrainSettings


def test_the_curve_follows_the_records(records: list[Record]):
    data = make_curve(records, REPORT_SETTINGS.gate)
    steps = [record for record in records if isinstance(record, Step)]
    assert [step for step, _ in data.current] == list(range(len(steps) + 1))
    assert [value for _, value in data.best] == sorted(value for _, value in data.best)
    assert data.epochs == (2, 4)
    assert [dot.step for dot in data.dots] == [step.number for step in steps if step.verdict]
    accepted = [step.number for step in steps if step.verdict and step.verdict.decision.accepted]
    assert [dot.step for dot in data.dots if dot.accepted] == accepted != []


def test_the_ledgers_curve_is_that_of_the_text_that_would_ship(world: SimpleNamespace):
    settings = TrainSettings(recipe="ledger", epochs=6, ledger=LedgerSettings(batch_size=6), optimizer_tries=1)
    records = world.run(settings=settings, splits=world.splits(12, 12, 6))
    data = make_curve(records, settings.gate)
    steps = [record for record in records if isinstance(record, Step)]
    assert data.expected and [step for step, _ in data.current] == [step.number for step in steps]
    before, after = data.train[-1][1], data.current[-1][1]
    assert after > before + 0.2, "the lines help, and single rollouts do not move the curve"
    shipment = records[-1].shipment
    assert [dot.accepted for dot in data.dots].count(True) == bool(shipment.shipped) == 1
    assert len(data.dots) == 1 + len(shipment.candidates)
    unfinished = make_curve(records[:-1], settings.gate)
    assert unfinished.current == data.current and unfinished.dots == ()
