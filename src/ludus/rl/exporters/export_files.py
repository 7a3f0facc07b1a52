"""Rows as files: JSON Lines, or Parquet (`ludus-train[parquet]`); and archives of files, for logs of Inspect.

A file is written beside its place and moved there when it is whole, so an interrupted export leaves no half file. A
column of Parquet has one type. The arguments of tool calls and the definitions of tools are objects with free keys, so
in Parquet they are texts of JSON in every format.
"""

import importlib
import shutil
import zipfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from ludus.encoding import to_json
from ludus.errors import ConfigError
from ludus.rl.exporters import JsonRow

ROWS_AT_ONCE = 1000
"""Rows of one row group of a Parquet file."""
MESSAGE_COLUMNS = ("messages", "prompt", "chosen", "rejected")
"""Columns that may hold messages, with calls in them."""


def write_rows(path: Path, rows: Iterable[JsonRow]) -> int:
    """Write rows to a `.jsonl` or `.parquet` file. Returns their number.

    Raises:
        ConfigError: the name has another ending, there are no rows to take a type from, or pyarrow is not installed.
    """
    writers = {".jsonl": _write_lines, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise ConfigError(f"--to: {path} should end in .jsonl or .parquet")
    with replace_file(path) as temporary:
        return writers[path.suffix](temporary, rows)


@contextmanager
def replace_file(path: Path) -> Generator[Path]:
    """A file to write that takes the place of `path` if nothing is raised."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--to: {path} cannot be written: {error}") from error


def write_archive(path: Path, members: Iterable[tuple[str, bytes | IO[bytes]]]) -> None:
    """Write members, each a name and its content, to a zip archive, one after the other. No two are in memory."""
    with (
        replace_file(path) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for name, content in members:
            info = zipfile.ZipInfo(name)  # without the time: equal exports are equal files
            info.compress_type = zipfile.ZIP_DEFLATED
            if isinstance(content, bytes):
                archive.writestr(info, content, compresslevel=1)
            else:
                with archive.open(info, "w", force_zip64=True) as member:
                    shutil.copyfileobj(content, member)


def _write_lines(path: Path, rows: Iterable[JsonRow]) -> int:
    count = 0
    with path.open("wb") as file:
        for row in rows:
            file.write(to_json(row) + b"\n")
            count += 1
    return count


def _write_parquet(path: Path, rows: Iterable[JsonRow]) -> int:
    arrow, parquet = load_parquet("--to")
    found = [_write_arguments(row) for row in rows]
    if not found:
        raise ConfigError(f"--to: there are no rows, so {path.name} would have no columns")
    columns = list(dict.fromkeys(name for row in found for name in row))  # pyarrow takes those of the first row alone
    table = arrow.Table.from_pydict({name: [row.get(name) for row in found] for name in columns})
    parquet.write_table(table, path, row_group_size=ROWS_AT_ONCE)
    return len(found)


def load_parquet(setting: str) -> tuple[Any, Any]:
    """The modules of Arrow and of its Parquet files. `setting`: what asks for them."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigError(f"{setting}: Parquet needs pyarrow ({error}): pip install 'ludus-train[parquet]'") from None


def _write_arguments(row: JsonRow) -> JsonRow:
    """The row with tools and the arguments as texts. Other rows share no part of it: it is changed in place."""
    if not isinstance(row.get("tools", ""), str):
        row["tools"] = to_json(row["tools"]).decode()
    for name in MESSAGE_COLUMNS:
        messages = row.get(name)
        for message in cast(list[JsonRow], messages) if isinstance(messages, list) else ():
            for call in message.get("tool_calls", ()):
                function = call["function"]
                if not isinstance(function["arguments"], str):
                    function["arguments"] = to_json(function["arguments"]).decode()
    return row
