"""Checks large bodies, each in a process of its own.

    server: body ──> a file without a name ──> the process: check ──> the same file: what the groups are, and their JSON

Decoding tens of megabytes takes seconds, in which the server could answer nobody. A checker of the pool has room for
smaller ones, and more of them wait for it. A process that ends gives its memory back, and if a body takes more memory
than there is, only its own process ends.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from typing import IO

import msgspec
from msgspec import Struct

from ludus.rl.api.posted_groups import BadGroup, CheckedGroup, check_group, check_groups

SHOWN_MESSAGE = 2000
LARGE = 4 * 1024 * 1024
"""A body of this many bytes is large."""


class CheckFailed(Exception):
    """The process that checked a body ended without an answer."""


class _Group(Struct, array_like=True):
    length: int
    size: int
    env_id: int | None
    version: int | None
    crc: int


class _Answer(Struct, array_like=True):
    groups: list[_Group]
    place: tuple[str | int, ...] = ()
    message: str = ""
    """Why the body is refused; empty: it is good."""
    kind: str = ""


_decode = msgspec.msgpack.Decoder(_Answer).decode


class LargeBodies:
    """Checks some bodies at the same time, and lets others wait."""

    def __init__(self, at_once: int = 1) -> None:
        self._room = asyncio.Semaphore(at_once)

    async def check(self, body: bytes, *, many: bool) -> list[CheckedGroup]:
        """Check the body of a post: of one group, or of a list (`many`).

        Raises:
            BadGroup: with the place and the reason.
            CheckFailed: the process ended, for example because there was too little memory.
        """
        async with self._room:
            with tempfile.TemporaryFile() as file:
                await asyncio.to_thread(_write, file, body)
                await _run(file, many)
                return await asyncio.to_thread(_read_answer, file)


async def _run(file: IO[bytes], many: bool) -> None:
    words = ("-m", "ludus.rl.api.large_bodies", str(file.fileno()), "list" if many else "group")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, pass_fds=(file.fileno(),), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        raise
    if code:
        raise CheckFailed("the body could not be checked: its process ended, perhaps for want of memory")


def _write(file: IO[bytes], body: bytes) -> None:
    file.write(body)
    file.flush()


def _read_answer(file: IO[bytes]) -> list[CheckedGroup]:
    file.seek(0)
    answer = _decode(file.read(int.from_bytes(file.read(8), "little")))
    if answer.message:
        raise BadGroup(answer.place, answer.message, answer.kind)
    return [
        CheckedGroup(file.read(each.length), each.size, each.env_id, each.version, each.crc) for each in answer.groups
    ]


# ---- in the process -----------------------------------------------------------------------------------------------


def main() -> None:
    with os.fdopen(int(sys.argv[1]), "r+b") as file:
        file.seek(0)
        body = file.read()
        try:
            groups = check_groups(body) if sys.argv[2] == "list" else [check_group(body)]
        except BadGroup as error:
            groups, answer = [], _Answer([], error.place, error.message[:SHOWN_MESSAGE] or "refused", error.kind)
        else:
            answer = _Answer([_Group(len(g.body), g.size, g.env_id, g.version, g.crc) for g in groups])
        data = msgspec.msgpack.encode(answer)
        file.seek(0)
        file.writelines((len(data).to_bytes(8, "little"), data, *(group.body for group in groups)))


if __name__ == "__main__":
    main()
