"""Compares cells of two workbooks, as SpreadsheetBench does. These functions run in a scoring process.

Numbers, and texts that are numbers, are rounded to two decimals; dates count as whole days, times without their last
digits; an empty cell is an empty text. Cells of different types differ. The values of formulas are those that were
stored with them: openpyxl stores none, so a program has to write values.
"""

import base64
import datetime
import importlib
import io
import math
import re
from collections.abc import Iterator
from typing import Any

MOST_CELLS = 200_000
SHOWN = 5


def compare_cells(expected: str, got: str, position: str, sheet: str) -> list[str]:
    """What differs in the cells of `position` (`Sheet!A1:B2,C3`); empty if nothing. The workbooks are in base64."""
    openpyxl: Any = importlib.import_module("openpyxl")
    wanted = openpyxl.load_workbook(io.BytesIO(base64.b64decode(expected)), data_only=True)
    try:
        found = openpyxl.load_workbook(io.BytesIO(base64.b64decode(got)), data_only=True)
    except Exception as error:  # what an agent wrote may be anything
        return [f"the output is no workbook: {type(error).__name__}"]
    problems: list[str] = []
    for name, cells in split_position(position, sheet or wanted.sheetnames[0]):
        if name not in wanted.sheetnames:
            raise ValueError(f"the answer has no sheet '{name}'")
        if name not in found.sheetnames:
            return [f"there is no sheet '{name}'"]
        problems += _compare_range(wanted[name], found[name], name, cells)
    return problems[:SHOWN]


def split_position(position: str, sheet: str) -> list[tuple[str, str]]:
    """Sheet and range of each part of a position. A part without a sheet is in `sheet`."""
    parts: list[tuple[str, str]] = []
    for part in re.findall(r"(?:'[^']*'!?|[^,'])+", position):
        name, mark, cells = part.strip().rpartition("!")
        cells = cells.strip().strip("'").replace("$", "")
        if not re.fullmatch(r"[A-Za-z]{1,3}\d{0,7}(:[A-Za-z]{1,3}\d{0,7})?", cells):
            raise ValueError(f"'{part}' is no range of cells")
        parts.append((name.strip().strip("'") if mark else sheet, cells))
    return parts


def _compare_range(wanted: Any, found: Any, name: str, cells: str) -> list[str]:
    problems: list[str] = []
    for count, cell in enumerate(_list_cells(wanted[cells])):
        if count >= MOST_CELLS:
            raise ValueError(f"the position has more than {MOST_CELLS:,} cells")
        right, value = normalize_cell(cell.value), normalize_cell(found[cell.coordinate].value)
        if type(right) is not type(value) or right != value:
            problems.append(f"{name}!{cell.coordinate} is {value!r}")
            if len(problems) >= SHOWN:
                break
    return problems


def _list_cells(found: Any) -> Iterator[Any]:
    """The cells of a range, which openpyxl gives as a cell, a row or rows."""
    if hasattr(found, "coordinate"):
        yield found
    else:
        for part in found:
            yield from _list_cells(part)


def normalize_cell(value: Any) -> float | str:
    """The value of a cell in the form that is compared."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return round(float(value), 2)
    if isinstance(value, datetime.datetime):
        return round((value - datetime.datetime(1899, 12, 30)).total_seconds() / 86400, 0)
    if isinstance(value, datetime.time):
        return str(value)[:-3]
    text = str(value)
    try:
        number = float(text)
    except ValueError:
        return text
    return round(number, 2) if math.isfinite(number) else text
