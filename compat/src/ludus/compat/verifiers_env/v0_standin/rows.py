"""Rows of tasks: a list of dictionaries with the calls of `datasets.Dataset` that environments make.

Environments get it where the package `datasets` is not installed. With it they use its class.
"""

# Values of foreign code have no types.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ludus.errors import ConfigError

Row = dict[str, Any]


class Rows:
    """A table. Every call returns a new one."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = [dict(row) for row in rows]

    @classmethod
    def from_list(cls, mapping: Iterable[Mapping[str, Any]], **_: Any) -> "Rows":
        rows = [dict(row) for row in mapping]
        names = dict.fromkeys(name for row in rows for name in row)
        return cls({name: row.get(name) for name in names} for row in rows)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Sequence[Any]], **_: Any) -> "Rows":
        return cls(dict(zip(mapping, values, strict=True)) for values in zip(*mapping.values(), strict=True))

    @classmethod
    def from_generator(cls, generator: Callable[..., Iterable[Mapping[str, Any]]], **options: Any) -> "Rows":
        return cls.from_list(generator(**(options.get("gen_kwargs") or {})))

    @property
    def column_names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self._rows for name in row))

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return (dict(row) for row in self._rows)

    def __getitem__(self, key: Any) -> Any:
        """A row by its number, a column by its name, or the columns of several rows, as there."""
        if isinstance(key, str):
            return [row[key] for row in self._rows]
        if isinstance(key, slice):
            return {name: [row.get(name) for row in self._rows[key]] for name in self.column_names}
        return dict(self._rows[key])

    def to_list(self) -> list[Row]:
        return list(self)

    def map(
        self,
        function: Callable[..., Mapping[str, Any] | None],
        with_indices: bool = False,
        remove_columns: Sequence[str] | str | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        batched: bool = False,
        **_: Any,
    ) -> "Rows":
        """The rows with what the function returns for each put over them."""
        if batched:
            raise ConfigError(_explain("Dataset.map(batched=True)"))
        removed = {remove_columns} if isinstance(remove_columns, str) else set(remove_columns or ())
        made: list[Row] = []
        for number, row in enumerate(self):
            given = function(row, *([number] if with_indices else []), **(fn_kwargs or {}))
            kept = {name: value for name, value in row.items() if name not in removed}
            made.append({**kept, **(given or {})})
        return Rows(made)

    def filter(self, function: Callable[..., bool], with_indices: bool = False, **_: Any) -> "Rows":
        numbered = enumerate(self)
        return Rows(row for number, row in numbered if function(row, *([number] if with_indices else [])))

    def select(self, indices: Iterable[int], **_: Any) -> "Rows":
        return Rows(self._rows[index] for index in indices)

    def shuffle(self, seed: int | None = None, **_: Any) -> "Rows":
        """Another order than that of `datasets` for the same seed."""
        return Rows(random.Random(seed).sample(self._rows, len(self._rows)))

    def repeat(self, num_times: int) -> "Rows":
        return Rows(self._rows * num_times)

    def add_column(self, name: str, column: Iterable[Any], **_: Any) -> "Rows":
        return Rows({**row, name: value} for row, value in zip(self._rows, column, strict=True))

    def remove_columns(self, column_names: Sequence[str] | str) -> "Rows":
        names = [column_names] if isinstance(column_names, str) else column_names
        return Rows({name: value for name, value in row.items() if name not in names} for row in self._rows)

    def select_columns(self, column_names: Sequence[str] | str) -> "Rows":
        names = [column_names] if isinstance(column_names, str) else column_names
        return Rows({name: row[name] for name in names} for row in self._rows)

    def rename_column(self, original_column_name: str, new_column_name: str) -> "Rows":
        return self.rename_columns({original_column_name: new_column_name})

    def rename_columns(self, column_mapping: Mapping[str, str]) -> "Rows":
        return Rows({column_mapping.get(name, name): value for name, value in row.items()} for row in self._rows)

    def train_test_split(self, test_size: float | int = 0.25, seed: int | None = None, shuffle: bool = True, **_: Any):
        rows = (self.shuffle(seed) if shuffle else self)._rows
        count = int(test_size) if isinstance(test_size, int) else round(len(rows) * test_size)
        return {"train": Rows(rows[: len(rows) - count]), "test": Rows(rows[len(rows) - count :])}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(_explain(f"Dataset.{name}"))


def concatenate_datasets(dsets: Iterable[Any], **_: Any) -> Any:
    """The rows of several tables, one after the other. Columns that one has not are None in it."""
    return Rows.from_list(row for rows in dsets for row in rows)


def load_dataset(*args: Any, **_: Any) -> Any:
    raise ConfigError(_explain(f"load_dataset({', '.join(map(repr, args))})"))


def _explain(what: str) -> str:
    return f"env.id: the environment calls datasets.{what}: pip install datasets"
