"""The decisions of training: which skill, which queries, which candidate."""

from collections import Counter

from tests.triggers.test_trigger_stats import make_result

from ludus.stats import compare_pairs
from ludus.triggers.description_training import (
    DescriptionReply,
    check_reply,
    choose_skill,
    choose_winner,
    count_errors,
    count_race_runs,
    is_better,
    list_concerned,
    make_guard,
    sort_queries,
)

RESULTS = [
    make_result("1", "forms", {"forms": 1, "sheets": 3}),
    make_result("2", "sheets", {"sheets": 4}),
    make_result("3", "mail", {"mail": 4}),
    make_result("4", "", {"forms": 2}),
]


def test_errors_are_queries_that_were_missed_and_queries_that_were_taken():
    assert count_errors(RESULTS, ["forms", "sheets", "mail"]) == {"forms": 0.75 + 0.5, "sheets": 0.75, "mail": 0.0}


def test_the_worst_skill_is_chosen_until_its_patience_is_over():
    errors = {"forms": 1.25, "sheets": 0.75, "mail": 0.0}
    assert choose_skill(errors, Counter(), 2) == "forms"
    assert choose_skill(errors, Counter(forms=1), 2) == "sheets"
    assert choose_skill(errors, Counter(forms=2, sheets=2), 2) is None


def test_queries_that_a_new_description_is_likely_to_change():
    assert [query.id for query in list_concerned(RESULTS, "forms")] == ["1", "2", "4"]


def test_the_race_has_a_winner_only_if_there_is_a_gain():
    worse, better = compare_pairs([-1.0, 0.0]), compare_pairs([1.0, 0.0])
    assert choose_winner([worse, None]) is None
    assert choose_winner([worse, better]) == 1
    assert choose_winner([]) is None


def test_a_description_is_taken_if_it_wins_more_queries_than_it_loses():
    assert is_better(compare_pairs([1.0, 1.0, 0.0]), 0.8)
    assert not is_better(compare_pairs([1.0, -0.5]), 0.8)
    assert not is_better(compare_pairs([0.0, 0.0]), 0.5)
    assert not is_better(None, 0.5)


def test_the_optimizer_is_shown_the_worst_queries_of_each_sort():
    missed, taken, right = sort_queries(RESULTS, "forms")
    assert [each.query.id for each in missed] == ["1"]
    assert [each.query.id for each in taken] == ["4"]
    assert right == []


def test_a_reply_that_breaks_the_format_is_sent_back():
    assert check_reply(DescriptionReply(()), make_guard(())) == "`descriptions` is empty"
    assert "1025 characters" in check_reply(DescriptionReply(("x" * 1025,)), make_guard(()))
    assert check_reply(DescriptionReply(("x" * 1024,)), make_guard(())) == ""


def test_a_query_that_is_missed_at_times_is_shown_as_missed():
    results = [make_result("1", "forms", {"forms": 3}), make_result("2", "forms", {"forms": 4})]
    missed, _, right = sort_queries(results, "forms")
    assert [each.query.id for each in missed] == ["1"] and [each.query.id for each in right] == ["2"]


def test_few_queries_are_run_several_times_in_a_race():
    assert [count_race_runs(queries, 4) for queries in (0, 1, 16, 20, 33, 64, 500)] == [4, 4, 4, 4, 2, 1, 1]
