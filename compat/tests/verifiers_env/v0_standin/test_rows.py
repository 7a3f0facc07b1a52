"""The stand-in of `datasets.Dataset`, by itself and beside it."""

from typing import Any

import pytest

from ludus.compat.verifiers_env.v0_standin.rows import Rows, concatenate_datasets, load_dataset
from ludus.errors import ConfigError

LIST = [{"a": n, "b": str(n)} for n in range(5)]


def change(dataset: Any) -> list[dict[str, Any]]:
    rows = dataset.from_list(LIST).map(lambda row: {"c": row["a"] * 2}).filter(lambda row: row["a"] > 0)
    rows = rows.map(lambda row, n: {"n": n}, with_indices=True, remove_columns=["b"]).rename_column("c", "d")
    rows = rows.add_column("e", list(range(len(rows)))).select(range(2)).remove_columns(["n"])
    return rows.to_list()


def test_rows_are_changed():
    assert change(Rows) == [{"a": 1, "d": 2, "e": 0}, {"a": 2, "d": 4, "e": 1}]
    rows = Rows.from_dict({"a": [1, 2], "b": ["x", "y"]})
    assert (rows[0], rows["b"], rows[:1], len(rows)) == ({"a": 1, "b": "x"}, ["x", "y"], {"a": [1], "b": ["x"]}, 2)
    assert sorted(rows.shuffle(seed=1)["a"]) == [1, 2] and len(concatenate_datasets([rows, rows])) == 4
    parts = Rows.from_list(LIST).train_test_split(test_size=0.4, seed=0)
    assert (len(parts["train"]), len(parts["test"])) == (3, 2)


def test_rows_are_those_of_the_package():
    dataset = pytest.importorskip("datasets").Dataset
    assert change(Rows) == change(dataset)


def test_what_needs_the_package_is_named():
    with pytest.raises(ConfigError, match=r"load_dataset\('gsm8k'\): pip install datasets"):
        load_dataset("gsm8k")
    with pytest.raises(AttributeError, match=r"Dataset\.push_to_hub: pip install datasets"):
        Rows(LIST).push_to_hub("x")
