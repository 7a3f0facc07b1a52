"""Cases from the tests of other implementations, where they are at hand: 428 texts and what is read from them.

Every `core` case must be read as its source reads it. Of the others, those that we read otherwise are listed with a
reason in `bench/parsers.py`, and docs/parsers.md shows the table that it makes.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT.parent / "shared" / "data" / "parser_cases.json"
sys.path.insert(0, str(ROOT / "bench"))  # the benchmarks are scripts, not a package

import parsers as bench  # noqa: E402

pytestmark = pytest.mark.skipif(not CASES.exists(), reason="the cases of other implementations are not here")


def cases() -> list[dict[str, Any]]:
    return json.loads(CASES.read_text())["cases"] if CASES.exists() else []


@pytest.mark.parametrize("case", [case for case in cases() if case["core"]], ids=lambda case: case["id"])
def test_core(case: dict[str, Any]) -> None:
    assert bench.agrees(case)


def test_every_difference_has_a_reason() -> None:
    different = {case["id"] for case in cases() if not case["core"] and not bench.agrees(case)}
    assert different == set(bench.DIFFERENCES)


def test_the_documentation_shows_the_table() -> None:
    assert bench.render_agreement(cases()) in (ROOT / "docs" / "parsers.md").read_text()
