"""Transcripts in: the sessions of files and folders, of every format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ludus.transcripts.past_session import Counts, Format, PastSession


@dataclass(frozen=True)
class IntakeLimits:
    """What is read of transcripts at most. What is beyond a limit is counted."""

    file_bytes: int = 200_000_000
    line_bytes: int = 20_000_000
    depth: int = 100
    """The deepest nesting of JSON."""
    files: int = 100_000
    sessions: int = 100_000


@dataclass(frozen=True)
class ReadFile:
    """What became of one file."""

    path: str
    format: Format | Literal[""]
    """Empty: no format that is known."""
    sessions: int
    dropped: Counts = field(default_factory=dict[str, int])
    """What was left out of the file, apart from what its sessions say of themselves."""


@dataclass
class IntakeReport:
    """What was read, and what was left out. It grows while `read_sessions` goes on."""

    files: list[ReadFile] = field(default_factory=list[ReadFile])

    @property
    def dropped(self) -> Counts:
        """What was left out of all files, by kind."""
        total: dict[str, int] = {}
        for file in self.files:
            for kind, count in file.dropped.items():
                total[kind] = total.get(kind, 0) + count
        return total


def read_sessions(
    paths: Sequence[Path],
    format: Format | Literal["auto"] = "auto",
    report: IntakeReport | None = None,
    limits: IntakeLimits = IntakeLimits(),
) -> Iterator[PastSession]:
    """The sessions of files and folders, one after the other. They are not masked.

    Raises:
        ConfigError: a path does not exist, or a file that is named is not of the format.
    """
    raise NotImplementedError
