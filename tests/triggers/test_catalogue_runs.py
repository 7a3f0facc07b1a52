"""Dividing queries and runs."""

from ludus.envs.triggers import TriggerQuery
from ludus.triggers.catalogue_runs import split_queries


def make_queries(count: int, source: str) -> list[TriggerQuery]:
    return [TriggerQuery(id=f"{source}{n}", text=f"{source} {n}", right="forms", source=source) for n in range(count)]


def test_queries_that_a_person_checked_are_sealed_before_proposed_ones():
    train, sealed = split_queries(
        [*make_queries(6, "proposed"), *make_queries(2, ""), *make_queries(2, "tickets")], 0.5
    )
    assert {query.source for query in train} == {"proposed"}
    assert sum(query.is_checked for query in sealed) == 4 and len(sealed) == 5


def test_a_new_query_moves_few_of_the_old_ones():
    old = make_queries(20, "")
    before = {query.id for query in split_queries(old, 0.5)[1]}
    new = TriggerQuery(id="new", text="new", right="forms")
    after = {query.id for query in split_queries([*old, new], 0.5)[1]}
    assert len(before ^ (after - {"new"})) <= 1
