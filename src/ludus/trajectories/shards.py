"""Trajectories as files: rows of messages and tool definitions, in shards of JSON Lines or Parquet.

    <run>/shards/part-00000.jsonl …     the rows, in the order of the file of prompts
          shards/index.json             the shards with their rows and bytes; written last

Each file is replaced as a whole, so a reader never sees half of one. In Parquet all shards have one schema, whatever
their rows have: the definitions of tools, metadata, the arguments of calls and a content of several parts are texts of
JSON there.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ludus.batch_settings import BatchSettings
from ludus.chat_form import write_message, write_tools
from ludus.encoding import to_json
from ludus.rl.exporters.export_files import ROWS_AT_ONCE, load_parquet, replace_file
from ludus.store import RunDir
from ludus.trajectories.prompt_rows import get_details
from ludus.types import JsonObject, Rollout, ToolSpec

FOLDER = "shards"
INDEX = f"{FOLDER}/index.json"


class Shard(Struct, frozen=True):
    """One file of trajectories."""

    name: str
    """Below the run directory."""
    rows: int
    bytes: int


def make_row(rollout: Rollout, tools: Sequence[ToolSpec]) -> JsonObject:
    """The trajectory of a rollout, with all that is needed to train on it. It has no times: equal rollouts have equal
    rows."""
    origin, score, usage = rollout.provenance, rollout.score, rollout.usage
    errors = [result.call.name for turn in rollout.turns for result in turn.results if result.error]
    calls = [result.call.name for turn in rollout.turns for result in turn.results]
    names = dict.fromkeys((*origin.tools, *calls))
    return {
        "id": rollout.task.id,
        "replicate": origin.replicate,
        "kind": rollout.task.kind,
        "messages": [write_message(message) for message in rollout.messages],
        "tools": write_tools(tools),
        "stop": rollout.stop.value,
        "score": score.value if score else None,
        "passed": score.passed if score else None,
        "feedback": score.feedback if score else "",
        "model": origin.model,
        "policy": origin.policy,
        "toolsets": list(origin.toolsets),
        "tool_stats": [{"tool": name, "calls": calls.count(name), "errors": errors.count(name)} for name in names],
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "metadata": get_details(rollout.task).get("metadata", {}),
    }


def write_shards(directory: RunDir, rows: Iterable[JsonObject], settings: BatchSettings) -> list[Shard]:
    """Write rows into the shards of a run, in place of those that it has. No more than one row is held."""
    shards: list[Shard] = []
    write = _write_parquet if settings.format == "parquet" else _write_lines
    for number, part in enumerate(_split(iter(rows), settings.shard_rows)):
        name = f"{FOLDER}/part-{number:05d}.{settings.format}"
        count = write(directory, name, part)
        shards.append(Shard(name, count, (directory.path / name).stat().st_size))
    kept = {directory.path / shard.name for shard in shards}
    for path in list_shards(directory.path):
        if path not in kept:
            path.unlink()
    directory.write(INDEX, to_json(shards) + b"\n")
    return shards


def list_shards(run: Path) -> list[Path]:
    """The shards of a run, in their order; none if there are none."""
    return sorted((run / FOLDER).glob("part-*"))


def _split(rows: Iterator[JsonObject], size: int) -> Iterator[Iterator[JsonObject]]:
    """Parts of `size` rows. Each must be read before the next is taken."""
    for first in rows:
        yield itertools.chain([first], itertools.islice(rows, size - 1))


def _write_lines(directory: RunDir, name: str, rows: Iterable[JsonObject]) -> int:
    count = 0

    def encode() -> Iterator[bytes]:
        nonlocal count
        for row in rows:
            count += 1
            yield to_json(row) + b"\n"

    directory.write(name, encode())
    return count


# ---- Parquet ------------------------------------------------------------------------------------------------------


def _write_parquet(directory: RunDir, name: str, rows: Iterator[JsonObject]) -> int:
    arrow, parquet = load_parquet("batch.format")
    schema, count = _make_schema(arrow), 0
    with replace_file(directory.path / name) as path, parquet.ParquetWriter(path, schema) as file:
        while group := [_flatten(row) for row in itertools.islice(rows, ROWS_AT_ONCE)]:
            file.write_table(arrow.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


def _make_schema(arrow: Any) -> Any:
    text, whole = arrow.string(), arrow.int64()
    function = arrow.struct([("name", text), ("arguments", text)])
    call = arrow.struct([("id", text), ("type", text), ("function", function)])
    message = [("role", text), ("content", text), ("reasoning_content", text), ("tool_calls", arrow.list_(call))]
    use = arrow.struct([("tool", text), ("calls", whole), ("errors", whole)])
    types = {
        "replicate": whole,
        "messages": arrow.list_(arrow.struct([*message, ("tool_call_id", text)])),
        "score": arrow.float64(),
        "passed": arrow.bool_(),
        "toolsets": arrow.list_(text),
        "tool_stats": arrow.list_(use),
        "prompt_tokens": whole,
        "completion_tokens": whole,
    }
    return arrow.schema([(name, types.get(name, text)) for name in _COLUMNS])


_COLUMNS = (
    "id",
    "replicate",
    "kind",
    "messages",
    "tools",
    "stop",
    "score",
    "passed",
    "feedback",
    "model",
    "policy",
    "toolsets",
    "tool_stats",
    "prompt_tokens",
    "completion_tokens",
    "metadata",
)
"""Those of `make_row`."""


def _flatten(row: JsonObject) -> JsonObject:
    """The row with texts of JSON in place of values that have no fixed type."""
    messages = [{**each, "content": _write_text(each["content"])} for each in row["messages"]]
    return {**row, "messages": messages, **{name: _write_text(row[name]) for name in ("tools", "metadata")}}


def _write_text(value: Any) -> str:
    return value if isinstance(value, str) else to_json(value).decode()
