"""Summaries that a model has written, kept beside the file that they are for until it is whole.

A summary costs money. It is written to the journal when it ends, under the hash of all that decides it. So the same
command, started again after a kill, asks only for what is missing. An incomplete last line is of a killed process: it
is removed.
"""

import hashlib
import os
from pathlib import Path
from typing import Self

import msgspec

from ludus.encoding import to_json
from ludus.errors import ConfigError


class _Line(msgspec.Struct, frozen=True):
    key: str
    summary: str


class SummaryJournal:
    """The summaries of one output."""

    def __init__(self, output: Path) -> None:
        self._path = output.with_name(f".{output.name}.summaries")
        self._known: dict[str, str] = {}
        self._file = -1

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._read()
        except OSError as error:
            raise ConfigError(f"{self._path} cannot be written: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def _read(self) -> None:
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        os.ftruncate(self._file, whole)
        decoder = msgspec.json.Decoder(_Line)
        try:
            lines = [decoder.decode(line) for line in data[:whole].splitlines()]
        except ValueError as error:  # msgspec's errors are ValueErrors
            raise ConfigError(f"{self._path} is not a journal of summaries: {error}. Remove it") from None
        self._known = {line.key: line.summary for line in lines}

    def get(self, key: str) -> str | None:
        return self._known.get(key)

    def put(self, key: str, summary: str) -> None:
        """Keep a summary. It is written when this returns."""
        self._known[key] = summary
        data = to_json(_Line(key, summary)) + b"\n"
        if os.write(self._file, data) != len(data):
            raise ConfigError(f"{self._path} cannot be written: the disk is full")

    def remove(self) -> None:
        """The output is whole: nothing of this is needed any more."""
        self._path.unlink(missing_ok=True)


def make_summary_key(*parts: str) -> str:
    """The hash of all that decides a summary."""
    return hashlib.sha256(to_json(parts)).hexdigest()
