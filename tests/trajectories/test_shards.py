"""Shards: rows, sizes, replacement, and Parquet with one schema."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.build import make_rollout, make_task, make_turn

from ludus.batch_settings import BatchSettings
from ludus.errors import ConfigError
from ludus.rl.exporters import export_files
from ludus.store import RunDir
from ludus.trajectories.shards import INDEX, list_shards, make_row, write_shards
from ludus.types import Call, Provenance, Rollout, ToolResult, ToolSpec

TOOL = ToolSpec("terminal", "Run a command.", {"type": "object"})


def make_one(number: int = 0, score: float = 1.0) -> Rollout:
    return make_rollout(
        score,
        make_turn("", ToolResult(Call("c", "terminal", '{"command": "ls"}'), "x", "failed"), thinking="hm"),
        f"done {number}",
        task=make_task(f"t{number}", details={"metadata": {"topic": number}}),
        provenance=Provenance(policy="p", model="m", tools=("terminal",), toolsets=("terminal",)),
    )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    with RunDir.open(tmp_path / "r", {}) as directory:
        yield directory


def test_a_row_has_the_conversation_its_tools_and_where_it_comes_from():
    row = make_row(make_one(7), [TOOL])
    assert [message["role"] for message in row["messages"]] == ["assistant", "tool", "assistant"]
    assert row["messages"][0]["reasoning_content"] == "hm"
    assert row["tools"][0]["function"]["name"] == "terminal"
    assert row["tool_stats"] == [{"tool": "terminal", "calls": 1, "errors": 1}]
    assert (row["id"], row["score"], row["passed"], row["metadata"]) == ("t7", 1.0, True, {"topic": 7})


def test_shards_are_of_the_size_that_is_asked_for_and_replace_the_earlier_ones(run: RunDir):
    rows = [make_row(make_one(number), [TOOL]) for number in range(5)]
    shards = write_shards(run, iter(rows), BatchSettings(shard_rows=2))
    assert [(shard.name, shard.rows) for shard in shards] == [
        (f"shards/part-0000{n}.jsonl", 2 - n // 2) for n in range(3)
    ]
    assert [shard.bytes for shard in shards] == [path.stat().st_size for path in list_shards(run.path)]
    assert [json.loads(line) for path in list_shards(run.path) for line in path.read_text().splitlines()] == rows
    write_shards(run, iter(rows[:3]), BatchSettings(shard_rows=3))
    assert [path.name for path in list_shards(run.path)] == ["part-00000.jsonl"]
    assert json.loads((run.path / INDEX).read_text())[0]["rows"] == 3
    assert write_shards(run, iter([]), BatchSettings()) == []
    assert list_shards(run.path) == []


def test_rows_are_not_held(run: RunDir):
    """The second row is made after the first was written."""
    made: list[int] = []

    def list_rows():
        for number in range(4):
            made.append(len(list_shards(run.path)))
            yield {"number": number}

    write_shards(run, list_rows(), BatchSettings(shard_rows=1))
    assert made == [0, 1, 2, 3]


def test_parquet_shards_have_one_schema_whatever_their_rows_have(run: RunDir):
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")
    bare = make_row(make_rollout(1.0, "done", task=make_task("t9")), [])
    rows = [make_row(make_one(), [TOOL]), {**bare, "score": None, "passed": None}]
    shards = write_shards(run, iter(rows), BatchSettings(format="parquet", shard_rows=1))
    tables = [parquet.read_table(run.path / shard.name) for shard in shards]
    assert tables[0].schema == tables[1].schema
    (first,), (second,) = tables[0].to_pylist(), tables[1].to_pylist()
    assert first["messages"][0]["tool_calls"][0]["function"]["arguments"] == '{"command": "ls"}'
    assert (json.loads(first["tools"])[0]["type"], json.loads(first["metadata"])) == ("function", {"topic": 0})
    assert (second["id"], second["score"], second["tool_stats"], second["metadata"]) == ("t9", None, [], "{}")


def test_parquet_without_its_extra_says_what_to_install(run: RunDir, monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(export_files.importlib, "import_module", refuse)
    with pytest.raises(ConfigError, match=r"batch\.format: .*ludus-train\[parquet\]"):
        write_shards(run, iter([make_row(make_one(), [])]), BatchSettings(format="parquet"))
