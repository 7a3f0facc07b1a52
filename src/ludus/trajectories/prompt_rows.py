"""Files of prompts: JSON Lines, one task in each row.

    {"prompt": "Write a haiku about rain into haiku.txt"}
    {"id": "q7", "messages": [{"role": "user", "content": "…"}], "system": "Be brief.", "answer": "42", "topic": "sums"}

A row has a `prompt` or `messages`, and may have the other fields of `PromptRow`; whatever else it has is kept as
metadata. The id of a task is the row's own, or a hash of the row's content: it does not depend on the row's place. A
row that repeats an earlier one is the same task, and is run once. What is wrong with a row is said with its line and
field.

`PromptFile.scan` reads the file once and keeps where the good rows begin. After that, rows are read one by one.
"""

import dataclasses
import hashlib
from array import array
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from msgspec import UNSET, Struct, field

from ludus.chat_form import read_messages
from ludus.errors import ConfigError
from ludus.images import describe_bad_url, read_image
from ludus.types import JsonObject, Message, Task
from ludus.whole_files import open_regular

SHOWN = 5
"""How many places of rows are named in a message; the others are counted."""


class PromptRow(Struct, frozen=True, kw_only=True):
    """The fields of a row that Ludus reads. A field that is null is absent."""

    id: str | int | None = None
    """The task's id; default: a hash of the row."""
    prompt: str = ""
    messages: tuple[JsonObject, ...] = ()
    """The conversation so far, in OpenAI's form, in place of `prompt`. The last message is the user's."""
    system: str = ""
    """The system text of this row."""
    image: str = ""
    """The image of the row's slot, for backends that have images."""
    docker_image: str = ""
    """The same."""
    cwd: str = ""
    """The folder of the slot in which the agent's shell begins; a relative one is below /workspace."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Text files in the slot, by their paths below /workspace."""
    images: tuple[str, ...] = ()
    """Pictures that are shown after the prompt: files beside the file of prompts, `data:` URLs or web addresses."""
    kind: str = ""
    answer: Any = None
    """What the checker knows and the agent must not know."""


_FIELDS = frozenset(PromptRow.__struct_fields__)


def make_task(line: bytes, folder: Path, *, show: bool = True) -> Task:
    """The task of a row. `folder`: where the files of pictures are. Without `show` they are only looked for.

    Raises:
        ValueError: the row cannot be used. The message begins with the field.
    """
    return _build_task(*_read_row(line), folder, show=show)


def _build_task(row: PromptRow, values: JsonObject, folder: Path, *, show: bool) -> Task:
    if row.image and row.docker_image and row.image != row.docker_image:
        raise ValueError("docker_image: it is not the same as image; leave one of them out")
    messages = _read_conversation(row)
    system, *rest = (
        messages if messages and messages[0].role == "system" else (Message("system", row.system), *messages)
    )
    details: JsonObject = {
        "system": system.content,
        "messages": list(row.messages[len(row.messages) - len(rest) :]) if row.messages else [],
        "image": row.image or row.docker_image,
        "cwd": row.cwd,
        "metadata": {name: value for name, value in values.items() if name not in _FIELDS},
    }
    found = {name: value for name, value in details.items() if value}
    return Task(
        id=_name_row(row, values),
        prompt=row.prompt or rest[-1].content,
        files=row.files,
        kind=row.kind,
        images=tuple(_find_picture(url, folder, show=show) for url in row.images),
        answer=row.answer,
        details=found or UNSET,
    )


def _read_row(line: bytes) -> tuple[PromptRow, JsonObject]:
    """The row, and all its values that are not null."""
    given: Any = msgspec.json.decode(line)
    if not isinstance(given, dict):
        raise ValueError("it is not a JSON object")
    values = {name: value for name, value in cast(JsonObject, given).items() if value is not None}
    return msgspec.convert(values, PromptRow), values


def _read_conversation(row: PromptRow) -> list[Message]:
    """The messages of a row that has them; none if it has a prompt."""
    if row.prompt and row.messages:
        raise ValueError("messages: the row has a prompt, too; leave one of them out")
    if not row.messages:
        if not row.prompt.strip():
            raise ValueError("prompt: there is none; a row has a prompt or messages")
        return []
    if row.images:
        raise ValueError("images: put pictures into the messages")
    messages = read_messages(row.messages)
    if messages[-1].role != "user":
        raise ValueError(f"messages: the last one is from '{row.messages[-1].get('role')}', not from the user")
    if any(message.role == "system" for message in messages[1:]):
        raise ValueError("messages: only the first one may be from 'system'")
    if messages[0].role == "system" and row.system:
        raise ValueError("system: the first of the messages is one, too; leave one of them out")
    return messages


def _name_row(row: PromptRow, values: Mapping[str, Any]) -> str:
    if row.id is None:
        return _hash_values(values).hex()[:16]
    if not str(row.id).strip():
        raise ValueError("id: it is empty; leave it out for a hash of the row")
    return str(row.id)


def _hash_values(values: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(msgspec.json.encode(values, order="deterministic")).digest()[:16]


def _find_picture(url: str, folder: Path, *, show: bool) -> str:
    """The address of a picture that the model is sent."""
    if url.startswith(("data:", "http:", "https:")):
        if problem := describe_bad_url(url):
            raise ValueError(f"images: {problem}")
        return url
    path = folder / url
    if not path.is_file():
        raise ValueError(f"images: there is no file {path}")
    return read_image(path) if show else url


# ---- files --------------------------------------------------------------------------------------------------------


@dataclass
class Places:
    """Rows of a file that are of one kind: how many, and the first of them."""

    count: int = 0
    first: list[str] = dataclasses.field(default_factory=list[str])

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(place)

    def __str__(self) -> str:
        more = self.count - len(self.first)
        return "; ".join(self.first) + (f"; and {more} more" if more else "")


@dataclass(frozen=True)
class PromptFile:
    """A file of prompts whose rows have been checked."""

    path: Path
    starts: "array[int]"
    """Where each row begins that is run, in bytes."""
    bad: Places = dataclasses.field(default_factory=Places)
    """Rows that cannot be used."""
    repeated: Places = dataclasses.field(default_factory=Places)
    """Rows that repeat an earlier one."""
    with_image: Places = dataclasses.field(default_factory=Places)
    """Rows whose slots have an image of their own."""
    with_cwd: Places = dataclasses.field(default_factory=Places)
    """Rows with a working folder."""

    @classmethod
    def scan(
        cls, path: Path, *, skip_bad: bool = False, ids: Collection[str] | None = None, limit: int | None = None
    ) -> "PromptFile":
        """Check every row. Those with one of the `ids` are run, or all; the first `limit` of them.

        Raises:
            ConfigError: the file cannot be read, has no row, lacks one of the ids, or has a row that cannot be used and
                `skip_bad` is not set.
        """
        found, seen, folder = cls(path, array("Q")), dict[str, bytes](), path.parent
        for number, start, line in _read_lines(path):
            try:
                row, values = _read_row(line)
                task = _build_task(row, values, folder, show=False)
                is_new = _is_new(task.id, _hash_values(values), seen)
            except (ValueError, RecursionError, ConfigError) as error:  # msgspec's errors are ValueErrors
                if not skip_bad:
                    raise ConfigError(f"{path}, line {number}: {error} (leave such rows out: --skip-bad)") from None
                found.bad.add(f"line {number}: {error}")
                continue
            if not is_new:
                found.repeated.add(f"line {number}")
            elif (ids is None or task.id in ids) and (limit is None or len(found) < limit):
                found._add(task, number, start)
        found._check(ids, seen)
        return found

    def _add(self, task: Task, number: int, start: int) -> None:
        self.starts.append(start)
        details = get_details(task)
        for name, places in (("image", self.with_image), ("cwd", self.with_cwd)):
            if name in details:
                places.add(f"line {number}")

    def _check(self, ids: Collection[str] | None, seen: Collection[str]) -> None:
        unknown = [id for id in ids or () if id not in seen]
        if unknown:
            raise ConfigError(f"env.ids: no row of {self.path} has the id {', '.join(map(repr, unknown[:SHOWN]))}")
        if not len(self):
            raise ConfigError(f"{self.path} has no prompt" + (f": {self.bad}" if self.bad.count else ""))

    def __len__(self) -> int:
        return len(self.starts)

    def read_tasks(self) -> Iterator[Task]:
        """The tasks of all rows that are run, in their order.

        Raises:
            ConfigError: the file has changed since it was checked.
        """
        folder = self.path.parent
        with _open(self.path) as file:
            for start in self.starts:
                file.seek(start)
                try:
                    yield make_task(file.readline(), folder)
                except ValueError as error:
                    raise ConfigError(f"{self.path} has changed since it was checked: {error}") from None


class _ImageField(Struct):
    image: str | None = None
    docker_image: str | None = None


def has_images(path: Path) -> bool:
    """Whether a row of the file names an image. Rows that cannot be read are left to `scan`."""
    decoder = msgspec.json.Decoder(_ImageField)
    for _, _, line in _read_lines(path):
        if b"image" in line:
            with suppress(ValueError, RecursionError):  # msgspec's errors are ValueErrors
                row = decoder.decode(line)
                if row.image or row.docker_image:
                    return True
    return False


def get_details(task: Task) -> JsonObject:
    return task.details or {}


def _is_new(id: str, digest: bytes, seen: dict[str, bytes]) -> bool:
    """Whether no earlier row is this task. Raises `ValueError` if an earlier one has its id and another content."""
    if seen.setdefault(id, digest) is digest:
        return True
    if seen[id] != digest:
        raise ValueError(f"id: an earlier row with other content has the id '{id}'")
    return False


def _read_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """The number, the start and the content of each line that is not empty."""
    start = 0
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, start, line
            start += len(line)


def _open(path: Path) -> BinaryIO:
    if path.suffix != ".jsonl":
        raise ConfigError(f"env.path: {path} is not a file of prompts: its name must end in .jsonl")
    try:
        return open_regular(path)
    except OSError as error:
        raise ConfigError(f"env.path: cannot read {path}: {error.strerror or error}") from None
