"""Precision, recall, confusion and flaky queries, checked by hand; and that they agree with a count of the loads."""

from hypothesis import given
from hypothesis import strategies as st

from ludus.envs.triggers import TriggerQuery
from ludus.triggers.trigger_stats import (
    NOBODY,
    QueryResult,
    bootstrap_ratio,
    compare_results,
    count_confusion,
    list_skill_changes,
    make_report,
    measure_skill,
)


def make_result(id: str, right: str | None, loads: dict[str, int], runs: int = 4, wrong: tuple[str, ...] = ()):
    query = TriggerQuery(id=id, text=id, right=right, wrong=wrong)
    good = runs - sum(n for name, n in loads.items() if name in wrong) if right is None else loads.get(right, 0)
    silent = runs - sum(loads.values())
    return QueryResult(query=query, runs=runs, right=silent if right == "" else good, loads=loads, silent=silent)


def test_recall_and_precision_of_no_skill():
    results = [make_result("1", "", {"forms": 1}), make_result("2", "", {}), make_result("3", "forms", {"forms": 3})]
    none = measure_skill("", results)
    assert (none.queries, none.recall, none.loads, none.precision) == (2, 7 / 8, 8, 7 / 8)


def test_recall_and_precision_of_a_skill():
    results = [
        make_result("1", "forms", {"forms": 4}),
        make_result("2", "forms", {"forms": 2, "sheets": 2}),
        make_result("3", "sheets", {"forms": 1, "sheets": 3}),
        make_result("4", "", {"forms": 1}),
        make_result("5", None, {"forms": 2}, wrong=("sheets",)),  # whether forms is right here is not known
    ]
    forms = measure_skill("forms", results)
    assert (forms.queries, forms.recall, forms.loads, forms.precision) == (2, 0.75, 8, 6 / 8)
    report = make_report(results, ["forms", "sheets"])
    assert report.accuracy == (4 / 4 + 2 / 4 + 3 / 4 + 3 / 4 + 4 / 4) / 5
    assert report.flaky == ("2", "3", "4")
    assert report.confusion == {
        NOBODY: {NOBODY: 3, "forms": 1},
        "forms": {"forms": 6, "sheets": 2},
        "sheets": {"forms": 1, "sheets": 3},
    }


def test_a_skill_that_is_never_loaded_has_no_precision_and_recall_0():
    found = measure_skill("forms", [make_result("1", "forms", {})])
    assert (found.recall, found.precision, found.precision_interval) == (0.0, None, None)


def test_a_gain_that_another_skill_pays_for_is_seen():
    old = [make_result("1", "forms", {"sheets": 4}), make_result("2", "sheets", {"sheets": 4})]
    new = [make_result("1", "forms", {"forms": 4}), make_result("2", "sheets", {"forms": 4})]
    changes = {each.skill: each for each in list_skill_changes(new, old, ["forms", "sheets"])}
    assert changes["forms"].paired.difference == 1.0
    assert changes["sheets"].paired.difference == -1.0
    assert compare_results(new, old).difference == 0.0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=2, max_size=30))
def test_the_interval_of_a_precision_contains_it(pairs):
    counted = [(loads, min(loads, right)) for loads, right in pairs]
    share = sum(right for _, right in counted) / sum(loads for loads, _ in counted)
    interval = bootstrap_ratio(counted)
    assert interval is not None
    assert 0.0 <= interval.low <= share + 1e-9 and share - 1e-9 <= interval.high <= 1.0


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), max_size=1), max_size=20))
def test_every_run_is_in_the_matrix_once(loads):
    results = [make_result(str(n), "a", found) for n, found in enumerate(loads)]
    table = count_confusion(results)
    assert sum(sum(row.values()) for row in table.values()) == 4 * len(results)
