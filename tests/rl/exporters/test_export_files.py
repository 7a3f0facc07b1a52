"""Files of rows."""

import json
from pathlib import Path

import pytest
from tests.export_kit import SOURCE, collect_sums, make_sum, make_sums

from ludus.errors import ConfigError
from ludus.rl.exporters.chat_data import export_openai, export_preference
from ludus.rl.exporters.export_files import write_rows
from ludus.rl.exporters.trainer_rows import export_skyrl, export_verl


def test_json_lines(tmp_path: Path):
    path = tmp_path / "new" / "rows.jsonl"
    rows = list(export_verl(collect_sums()))
    assert write_rows(path, rows) == 2
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows


@pytest.mark.parametrize(
    "rows",
    [
        lambda: list(export_verl(collect_sums())),
        lambda: list(export_skyrl(collect_sums(branch=True))),
        lambda: [export_openai(make_sum(1.0, 0), (), SOURCE)],
    ],
)
def test_parquet_has_the_same_values(tmp_path: Path, rows):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")
    assert write_rows(tmp_path / "rows.parquet", rows()) == len(rows())
    found = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [_drop_nulls(row) for row in found] == [_drop_nulls(row) for row in rows()]


def test_parquet_has_arguments_as_text(tmp_path: Path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")
    write_rows(tmp_path / "rows.parquet", [export_preference(make_sums(), (), SOURCE)])
    (row,) = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert json.loads(row["chosen"][0]["tool_calls"][0]["function"]["arguments"]) == {"a": 2, "b": 2}


def _drop_nulls(value):
    """Parquet has every field of a struct in every row."""
    if isinstance(value, dict):
        return {name: _drop_nulls(each) for name, each in value.items() if each is not None}
    return [_drop_nulls(each) for each in value] if isinstance(value, list) else value


def test_mistakes_are_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"should end in \.jsonl or \.parquet"):
        write_rows(tmp_path / "rows.csv", [])
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_rows(tmp_path / "file" / "rows.jsonl", [{}])


def test_an_export_that_breaks_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text("old")

    def rows():
        yield {"a": 1}
        raise ConfigError("chat mode")

    with pytest.raises(ConfigError, match="chat mode"):
        write_rows(path, rows())
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
