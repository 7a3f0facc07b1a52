"""Which rollouts are exported for fine-tuning, and why others are not."""

from collections import Counter

import msgspec
import pytest
from tests.build import make_group, make_rollout
from tests.export_kit import make_sum

from ludus.rl.exporters.selection import ExportRules, RolloutSelection, describe_selection
from ludus.types import Group, Score

FORGED = make_rollout(Score(1.0, True, 1.0, suspect=("a test was edited",)))


def choose(group: Group, **rules: object) -> tuple[list[float], Counter[str]]:
    selection = RolloutSelection(msgspec.convert(rules, ExportRules))
    return [r.score.value for r in selection.choose(group) if r.score], +selection.left_out


@pytest.mark.parametrize(
    ("rules", "values", "left_out"),
    [
        ({}, [1.0, 1.0], {"did not pass": 2, "failed (sandbox)": 1}),
        ({"threshold": 0.5}, [1.0, 0.5, 1.0], {"below 0.5": 1, "failed (sandbox)": 1}),
        ({"best": 1}, [1.0], {"did not pass": 2, "failed (sandbox)": 1, "not among the 1 best": 1}),
        ({"duplicates": "drop"}, [1.0], {"did not pass": 2, "failed (sandbox)": 1, "duplicate": 1}),
    ],
)
def test_rules(rules: dict[str, object], values: list[float], left_out: dict[str, int]):
    assert choose(make_group(1.0, 0.5, 1.0, 0.0, None), **rules) == (values, Counter(left_out))


def test_the_first_of_equal_rollouts_is_among_the_best():
    selection = RolloutSelection(ExportRules(best=1))
    (best,) = selection.choose(make_group(make_sum(1.0, 0), make_sum(1.0, 1)))
    assert best.provenance.replicate == 0


@pytest.mark.parametrize(
    ("policy", "values", "left_out"),
    [("zero", [], {"suspect": 1}), ("drop", [], {"suspect": 1}), ("keep", [1.0], {})],
)
def test_suspects_are_not_imitated(policy: str, values: list[float], left_out: dict[str, int]):
    assert choose(make_group(FORGED), suspects=policy) == (values, Counter(left_out))


def test_the_line_says_what_there_is_and_why_not_more():
    assert describe_selection(2, 3, Counter({"duplicate": 1})) == "2 rows of 3 rollouts; left out: 1 duplicate"
    nothing = describe_selection(0, 3, Counter({"did not pass": 2, "failed (model)": 1}))
    assert nothing == "nothing to export of 3 rollouts; left out: 2 did not pass, 1 failed (model)"
    assert "no rollouts" in describe_selection(0, 0, Counter())
