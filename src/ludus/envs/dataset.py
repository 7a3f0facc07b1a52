"""Rows of a data set: from a file, from a folder with a file or a folder for each split, from the package, or from the
hub.

    items.jsonl   items.jsonl.gz   items.json   items.csv   items.parquet   a file, whatever the split
    folder/                                           folder/<split>.jsonl, .jsonl.gz, .json, .csv or .parquet
    folder/                                           folder/<split>/ with one or more such files, read in their order
    hub:owner/name   hub:owner/name:configuration     the Hugging Face hub (extra `hub`)

A JSON file is a list of rows, an object with the list `data`, or an object of rows. The folder of a split may have
another of its usual names: `val` or `valid_seen` for `validation`, `valid_unseen` for `test`. Each row is checked
against a type. What is wrong is a `ConfigError` that names the file, the row and the field.
"""

import ast
import csv
import gzip
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError
from ludus.whole_files import open_regular, read_whole

T = TypeVar("T")
ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet")
SPLIT_NAMES = (("validation", "val", "valid", "dev", "valid_seen", "selection"), ("test", "valid_unseen"))
"""Names of the same split."""


class DataRow(Struct, Generic[T], frozen=True):
    """One row, and where it is: `items.jsonl, line 3`."""

    place: str
    item: T

    def refuse(self, what: str) -> ConfigError:
        """The error for a row that cannot be used. Begin `what` with the field."""
        return ConfigError(f"env.path: {self.place}: {what}")


def load_rows(
    source: str, kind: type[T], split: str, *, texts: Sequence[str] = (), configuration: str = ""
) -> list[DataRow[T]]:
    """The rows of a data set, each as a `kind`. `texts`: fields that must have words in them. `configuration`: that of
    a data set on the hub, if `source` names none.

    Raises:
        ConfigError: the source cannot be read, has no rows, or a row is wrong.
    """
    if source.startswith("hub:"):
        name, _, given = source.removeprefix("hub:").partition(":")
        place = f"{name}, split '{split}'"
        found = [(f"{place}, row {n}", row) for n, row in _fetch_rows(name, given or configuration, split)]
    else:
        paths = _find_files(Path(source).expanduser(), split)
        place = ", ".join(map(str, paths))
        found = [row for path in paths for row in _read_file(path)]
    rows = [DataRow(place, _convert(place, raw, kind)) for place, raw in found]
    if not rows:
        raise ConfigError(f"env.path: {place} has no rows")
    for row in rows:
        for field in texts:
            if not getattr(row.item, field).strip():
                raise row.refuse(f"{field}: it is empty")
    return rows


def load_bundled(name: str, kind: type[T]) -> list[DataRow[T]]:
    """The rows of a JSONL file in `ludus/envs/data`."""
    data = files("ludus.envs").joinpath("data", name).read_bytes()
    return [DataRow(place, _convert(place, raw, kind)) for place, raw in _split_lines(data, f"the bundled {name}")]


def give_ids(
    rows: Iterable[DataRow[T]], fields: Sequence[str], make: Callable[[DataRow[T], int], str] | None = None
) -> Iterator[tuple[str, DataRow[T]]]:
    """Each row with its id: the first of `fields` that has words in it, else what `make` makes of the row and its
    number.

    Raises:
        ConfigError: a row has no id, or that of an earlier row.
    """
    places: dict[str, str] = {}
    for number, row in enumerate(rows):
        given = ((field, str(getattr(row.item, field)).strip()) for field in fields)
        field, id = next((pair for pair in given if pair[1]), (fields[0] if fields else "id", ""))
        id = id or (make(row, number) if make else "")
        if not id:
            raise row.refuse(f"{field}: it is empty")
        if id in places:
            raise row.refuse(f"{field}: {id!r} is also that of {places[id]}: it must be unique")
        places[id] = row.place
        yield id, row


def require_path(path: str, name: str) -> str:
    """The path of an environment that comes without tasks. Raises ConfigError if there is none."""
    if not path:
        raise ConfigError(f"env.path: {name} comes without tasks: name a file or folder of them (see: ludus envs)")
    return path


def read_list_text(text: str) -> list[str]:
    """The items of a list that is written as text, in JSON or as Python writes it. Other text is one item."""
    if text.lstrip().startswith("["):
        for read in (msgspec.json.decode, ast.literal_eval):
            try:
                found: Any = read(text)
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
            if isinstance(found, list):
                return [str(item) for item in cast("list[Any]", found)]
    return [text]


def _find_files(path: Path, split: str) -> list[Path]:
    """The files of a split."""
    if not path.is_dir():
        return [path]
    for name in list_split_names(split):
        for each in (path / f"{name}{ending}" for ending in ENDINGS):
            if each.is_file():
                return [each]
        if (path / name).is_dir():
            files = sorted(each for each in (path / name).iterdir() if each.name.endswith(ENDINGS))
            if not files:
                raise ConfigError(f"env.path: {path / name} has no file that ends in {', '.join(ENDINGS)}")
            return files
    names = ", ".join(f"{split}{ending}" for ending in ENDINGS)
    raise ConfigError(f"env.path: {path} has no file for split '{split}': it should have one of {names}, or {split}/")


def list_split_names(split: str) -> tuple[str, ...]:
    """The names that a split may have in a folder, its own first."""
    same = next((names for names in SPLIT_NAMES if split in names), ())
    return (split, *(name for name in same if name != split))


def _read_file(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file as plain values, each with its place."""
    if not path.name.endswith(ENDINGS):
        raise ConfigError(f"env.path: {path} is not a data set: the name of a file must end in {', '.join(ENDINGS)}")
    if path.suffix == ".parquet":
        return ((f"{path}, row {n}", row) for n, row in enumerate(_read_parquet(path), 1))
    try:
        data = read_whole(path)
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except OSError as error:
        raise ConfigError(f"env.path: cannot read {path}: {error.strerror or error}") from None
    if path.suffix == ".csv":
        return _split_csv(data, str(path))
    if path.suffix == ".json":
        return _split_list(data, str(path))
    return _split_lines(data, str(path))


def _split_lines(data: bytes, source: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            yield f"{source}, line {number}", msgspec.Raw(line)


def _split_list(data: bytes, source: str) -> Iterator[tuple[str, Any]]:
    try:
        rows = _read_list(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"env.path: {source} should be a JSON list of rows: {error}") from None
    for number, row in enumerate(rows, 1):
        yield f"{source}, row {number}", row


def _read_list(data: bytes | msgspec.Raw) -> list[msgspec.Raw]:
    """The items of a JSON list; of an object, those of `data`, or its values."""
    if not bytes(data).lstrip().startswith(b"{"):
        return msgspec.json.decode(data, type=list[msgspec.Raw])
    table = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    return _read_list(table["data"]) if "data" in table else list(table.values())


def _split_csv(data: bytes, source: str) -> Iterator[tuple[str, Any]]:
    """Rows under a header. Cells are text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"env.path: {source} is not UTF-8: {error}") from None
    csv.field_size_limit(2**30)
    try:
        for number, row in enumerate(csv.DictReader(io.StringIO(text, newline=""), strict=True), 1):
            if None in row or None in row.values():
                raise ConfigError(f"env.path: {source}, row {number}: it has more or fewer fields than the header")
            yield f"{source}, row {number}", row
    except csv.Error as error:
        raise ConfigError(f"env.path: {source} is not CSV: {error}") from None


def _convert(place: str, raw: Any, kind: type[T]) -> T:
    """The row as a `kind`. A field that is null is absent, as tables write it."""
    is_text = isinstance(raw, msgspec.Raw)
    try:
        if is_text and b"null" not in bytes(raw):
            return msgspec.json.decode(raw, type=kind)
        row: Any = msgspec.json.decode(raw) if is_text else raw
        if isinstance(row, dict):
            row = {name: value for name, value in cast("dict[str, Any]", row).items() if value is not None}
        return msgspec.convert(row, kind, strict=is_text)
    except UnicodeDecodeError:
        raise ConfigError(f"env.path: {place} is not UTF-8 text: save the file as UTF-8") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"env.path: {place}: {error}") from None


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet  # pyright: ignore  # an extra: heavy, and only used here
    except ImportError:
        raise ConfigError("env.path: reading Parquet needs: pip install 'ludus-train[parquet]'") from None
    try:
        open_regular(path).close()
        return pyarrow.parquet.read_table(path).to_pylist()  # pyright: ignore
    except (OSError, ValueError) as error:  # pyarrow's errors are of these
        raise ConfigError(f"env.path: cannot read {path}: {error}") from None


def _fetch_rows(name: str, configuration: str, split: str) -> Iterator[tuple[int, Any]]:
    """The split as the hub publishes it. It is downloaded once, into the hub's cache."""
    try:
        import datasets  # pyright: ignore  # an extra: heavy, and only used here
    except ImportError:
        raise ConfigError("env.path: reading from the hub needs: pip install 'ludus-train[hub]'") from None
    arguments = (name, configuration) if configuration else (name,)
    try:
        rows: Iterable[Any] = datasets.load_dataset(*arguments, split=split)  # pyright: ignore
    except Exception as error:  # the library and its readers raise anything
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"env.path: the hub's data set '{name}' has no split '{split}' that can be loaded: {what}"
        ) from error
    return enumerate((dict(row) for row in rows), 1)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
