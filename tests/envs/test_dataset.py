"""Rows of files, folders and the hub, and the errors for wrong ones."""

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import Struct

from ludus.envs.dataset import give_ids, load_rows, read_list_text, require_path
from ludus.errors import ConfigError


class Word(Struct):
    id: str
    length: int


ROWS = [{"id": "a", "length": 1}, {"id": "bb", "length": 2}]
LINES = "\n\n".join(map(json.dumps, ROWS)) + "\n"


def load_ids(source: Path | str, split: str = "train") -> list[str]:
    return [row.item.id for row in load_rows(str(source), Word, split)]


def test_every_format_of_a_file_gives_the_same_rows(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(LINES)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "b.json").write_text(json.dumps({"version": 1, "data": ROWS}))
    (tmp_path / "c.json").write_text(json.dumps({"first": ROWS[0], "second": ROWS[1]}))
    (tmp_path / "a.csv").write_text("\ufeffid,length\r\na,1\r\nbb,2\r\n")
    for path in tmp_path.iterdir():
        assert load_ids(path) == ["a", "bb"], path.name
    assert [row.place for row in load_rows(str(tmp_path / "a.jsonl"), Word, "x")] == [
        f"{tmp_path}/a.jsonl, line 1",
        f"{tmp_path}/a.jsonl, line 3",
    ]


def test_parquet(tmp_path: Path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert load_ids(tmp_path / "a.parquet") == ["a", "bb"]
    (tmp_path / "b.parquet").write_text("no")
    with pytest.raises(ConfigError, match=r"cannot read .*b\.parquet"):
        load_ids(tmp_path / "b.parquet")


def test_a_folder_has_a_file_for_each_split(tmp_path: Path):
    (tmp_path / "test.jsonl").write_text(LINES)
    assert load_ids(tmp_path, "test") == ["a", "bb"]
    with pytest.raises(ConfigError, match=r"no file for split 'train': it should have one of train\.jsonl"):
        load_ids(tmp_path, "train")


def test_a_folder_has_a_folder_for_each_split_under_any_of_its_names(tmp_path: Path):
    for name, row in (("train", ROWS[0]), ("val", ROWS[1])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "items.json").write_text(json.dumps([row]))
    (tmp_path / "val" / "more.jsonl").write_text(json.dumps(ROWS[0]))
    (tmp_path / "test").mkdir()
    assert load_ids(tmp_path, "train") == ["a"]
    assert load_ids(tmp_path, "validation") == load_ids(tmp_path, "valid_seen") == ["bb", "a"]
    with pytest.raises(ConfigError, match="test has no file that ends in"):
        load_ids(tmp_path, "valid_unseen")


def test_an_environment_without_tasks_of_its_own_needs_a_path():
    assert require_path("rows.jsonl", "quiz") == "rows.jsonl"
    with pytest.raises(ConfigError, match=r"env\.path: quiz comes without tasks"):
        require_path("", "quiz")


def test_lists_that_are_written_as_text():
    assert read_list_text('["a", 1]') == read_list_text("['a', '1']") == ["a", "1"]
    assert read_list_text("a, b") == ["a, b"]
    assert read_list_text("[a") == ["[a"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '{"id": "a", "length": 1}\n{"id": "b"}', r"a\.jsonl, line 2: .*missing.*`length`"),
        ("a.jsonl", '{"id": 3, "length": 1}', r"line 1: Expected `str`, got `int` - at `\$\.id`"),
        ("a.jsonl", '{"id": "a", ', r"a\.jsonl, line 1"),
        ("a.jsonl", "\n", r"a\.jsonl has no rows"),
        ("a.json", "3", "should be a JSON list"),
        ("a.json", "{}", r"a\.json has no rows"),
        ("a.csv", "id,length\na,1\nb", r"a\.csv, row 2: it has more or fewer fields"),
        ("a.csv", "id,length\na,one", r"a\.csv, row 1: .*\$\.length"),
        ("a.json", '[{"id": "a", "length": 1}, {"id": "b"}]', r"a\.json, row 2: .*`length`"),
        ("a.tsv", "id,length", r"a\.tsv is not a data set.*\.jsonl"),
        ("a.jsonl.gz", "no", r"cannot read .*a\.jsonl\.gz"),
    ],
)
def test_what_is_wrong_names_file_row_and_field(tmp_path: Path, name: str, text: str, says: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=f"env.path: .*{says}"):
        load_ids(tmp_path / name)


def test_an_absent_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot read .*none\.jsonl: No such file"):
        load_ids(tmp_path / "none.jsonl")


def test_ids_are_unique(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(LINES + json.dumps(ROWS[0]))
    with pytest.raises(ConfigError, match=r"line 4: id: 'a' is also that of .*line 1"):
        list(give_ids(load_rows(str(tmp_path / "a.jsonl"), Word, "train"), ["id"]))


def test_ids_are_made_where_a_row_has_none(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text(LINES + json.dumps({"id": " ", "length": 3}))
    rows = load_rows(str(tmp_path / "a.jsonl"), Word, "train")
    assert [id for id, _ in give_ids(rows, ["id"], lambda row, number: f"{number}-{row.item.length}")][2] == "2-3"
    with pytest.raises(ConfigError, match="line 4: id: it is empty"):
        list(give_ids(rows, ["id"]))
    with pytest.raises(ConfigError, match="line 4: id: it is empty"):
        load_rows(str(tmp_path / "a.jsonl"), Word, "train", texts=["id"])


class Note(Struct):
    id: str
    text: str = "none"


def test_a_field_that_is_null_is_absent(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"id": "null", "text": null}')
    assert [row.item for row in load_rows(str(tmp_path / "a.jsonl"), Note, "train")] == [Note("null")]
    (tmp_path / "a.jsonl").write_text('{"id": null}')
    with pytest.raises(ConfigError, match=r"line 1: Object missing required field `id`"):
        load_rows(str(tmp_path / "a.jsonl"), Note, "train")
    (tmp_path / "a.jsonl").write_text('{"id": 3, "text": null}')
    with pytest.raises(ConfigError, match=r"line 1: Expected `str`, got `int`"):
        load_rows(str(tmp_path / "a.jsonl"), Note, "train")


class Datasets(ModuleType):
    @staticmethod
    def load_dataset(*arguments: str, split: str) -> list[dict[str, Any]]:
        if split != "train":
            raise ValueError("Unknown split")
        return [{"id": "/".join(arguments), "length": 3}]


def test_rows_of_the_hub(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "datasets", Datasets("datasets"))
    assert load_ids("hub:owner/name") == ["owner/name"]
    assert load_ids("hub:owner/name:small") == ["owner/name/small"]
    with pytest.raises(ConfigError, match=r"'owner/name' has no split 'dev' that can be loaded: ValueError"):
        load_ids("hub:owner/name", "dev")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"ludus-train\[hub\]"):
        load_ids("hub:owner/name")
