"""Cells of workbooks: normal forms, positions, differences."""

import base64
import datetime
import io
from typing import Any

import pytest

from ludus.envs.workbooks import compare_cells, normalize_cell, split_position


def make_book(cells: dict[str, Any], sheet: str = "Data") -> str:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.active.title = sheet
    for place, value in cells.items():
        book.active[place] = value
    data = io.BytesIO()
    book.save(data)
    return base64.b64encode(data.getvalue()).decode()


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, ""),
        (3, 3.0),
        ("3.004", 3.0),
        (True, 1.0),
        ("abc", "abc"),
        ("nan", "nan"),
        (datetime.datetime(2020, 1, 1, 6), 43831.0),
        (datetime.time(12, 30, 15), "12:30"),
    ],
)
def test_normal_forms(value: Any, form: float | str):
    assert normalize_cell(value) == form


def test_positions():
    assert split_position("A1", "S") == [("S", "A1")]
    assert split_position("'My sheet'!A1:B2, Other!$C$3,D:D", "S") == [
        ("My sheet", "A1:B2"),
        ("Other", "C3"),
        ("S", "D:D"),
    ]
    assert split_position("'a, b'!A1", "S") == [("a, b", "A1")]
    with pytest.raises(ValueError, match="no range"):
        split_position("nowhere at all", "S")


def test_differences():
    gold = make_book({"A1": 1, "A2": "x", "B1": 2.001})
    assert compare_cells(gold, make_book({"A1": "1.0", "A2": "x", "B1": 2}), "A1:B2", "") == []
    assert compare_cells(gold, make_book({"A1": 1, "A2": "y"}), "A1:A2", "Data") == ["Data!A2 is 'y'"]
    assert compare_cells(gold, make_book({"A1": 1}, "Other"), "A1", "Data") == ["there is no sheet 'Data'"]
    assert compare_cells(gold, base64.b64encode(b"no").decode(), "A1", "Data")[0].startswith(
        "the output is no workbook"
    )
