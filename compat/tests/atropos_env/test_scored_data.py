"""Single scored items become one group."""

from ludus.compat.atropos_env.scored_data import join_items


def make_row(score: float, **fields: object) -> dict[str, object]:
    return {"tokens": [1, 2], "masks": [-100, 2], "scores": score, **fields}


def test_keys_that_some_rows_have_are_filled_and_those_of_none_are_left_out():
    group = join_items([make_row(1.0, messages=[{"role": "user"}]), make_row(0.0, advantages=None)])
    assert group == {
        "tokens": [[1, 2], [1, 2]],
        "masks": [[-100, 2], [-100, 2]],
        "scores": [1.0, 0.0],
        "messages": [[{"role": "user"}], None],
    }


def test_overrides_of_the_group_are_merged_and_keys_of_the_author_survive():
    rows = [make_row(1.0, group_overrides={"a": 1, "b": 1}, seed=7), make_row(0.0, group_overrides={"b": 2})]
    group = join_items(rows)
    assert group["group_overrides"] == {"a": 1, "b": 2}
    assert group["seed"] == [7, None]
