"""How many cases a test has, as its source says."""

import ast

import pytest

from ludus.verify.cases import count_module_cases

COUNTED = {
    "[1, 2, 3]": 3,
    "((1, 2), (3, 4))": 2,
    "[*[1, 2], 3]": 3,
    "range(2, 10, 2)": 4,
    "list(range(5))": 5,
    "CASES": 3,
    "CASES + [4]": 4,
    "CASES * 2": 6,
    "TABLE.items()": 2,
    "[(a, a) for a in CASES]": 3,
    "list(zip(CASES, [1, 2]))": 2,
    "[pytest.param(1, id='one'), pytest.param(2, marks=pytest.mark.slow)]": 2,
    "[]": 1,
}
UNKNOWN = ("load()", "[a for a in CASES if a]", "CHANGED", "GROWN", "TWICE", "solution.CASES", "CASES[1:]", "range(n)")
MODULE = """
import pytest, solution
CASES: list[int] = [1, 2, 3]
TABLE = {"a": 1, "b": 2}
CHANGED = [1, 2]
CHANGED.pop()
GROWN = [1, 2]
del GROWN[0]
TWICE = [1, 2]
TWICE = [1]
"""


def count(code: str) -> dict[str, int]:
    return count_module_cases(ast.parse(MODULE + code))


@pytest.mark.parametrize("values", COUNTED)
def test_values_in_the_source_are_counted(values: str):
    code = f"@pytest.mark.parametrize('a', {values})\ndef test_it(a): ...\n"
    assert count(code) == {"test_it": COUNTED[values]}
    assert count(code.replace("'a', ", "'a', ids=str, argvalues=")) == {"test_it": COUNTED[values]}


@pytest.mark.parametrize("values", UNKNOWN)
def test_values_that_are_computed_count_as_one(values: str):
    assert count(f"@pytest.mark.parametrize('a', {values})\ndef test_it(a): ...\n") == {"test_it": 1}


def test_marks_multiply():
    code = """
pytestmark = [pytest.mark.slow, pytest.mark.parametrize("x", [1, 2])]

@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize("b", CASES)
@pytest.mark.slow
def test_both(a, b, x): ...

@pytest.mark.parametrize("a", [1, 2])
class TestClass:
    pytestmark = pytest.mark.parametrize("c", CASES)

    def test_inner(self, a, c, x): ...

def helper(): ...
"""
    assert count(code) == {"test_both": 12, "TestClass::test_inner": 12}


def test_classes_of_unittest_are_counted_by_their_base():
    code = (
        "class LeapTest(unittest.TestCase):\n    def test_a(self): ...\nclass Other(Base):\n    def test_b(self): ...\n"
    )
    assert count_module_cases(ast.parse(code)) == {"LeapTest::test_a": 1}
