from pathlib import Path

import pytest

TOTALS = Path("/app/totals.csv")


def test_file_exists():
    assert TOTALS.is_file()


@pytest.mark.parametrize(("product", "total"), [("chair", 12), ("lamp", 7), ("table", 1)])
def test_total(product, total):
    assert f"{product},{total}" in TOTALS.read_text().splitlines()


def test_order():
    assert [line.split(",")[0] for line in TOTALS.read_text().split()] == ["chair", "lamp", "table"]
