"""A program on this host as a `Channel`: `ssh`, `apptainer`, or anything else that passes its stdin and stdout on."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ludus.errors import SandboxError

_READ_BYTES = 2**18
_WORDS_BYTES = 4096
_END_SECONDS = 3.0


class ProgramChannel:
    """The stdin and stdout of a child process. Its last words on stderr are kept, for errors."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._words = b""
        self._ear = asyncio.create_task(self._collect_stderr(process.stderr))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, data: bytes) -> None:
        self._stdin.write(data)

    async def drain(self) -> None:
        await self._stdin.drain()

    async def receive(self) -> bytes:
        data = await self._stdout.read(_READ_BYTES)
        if not data:  # what it has to say may come a moment after its output ends
            await asyncio.wait((self._ear,), timeout=1.0)
        return data

    def words(self) -> str:
        return self._words.decode(errors="replace").strip()

    async def close(self) -> None:
        """Close its stdin; a program that does not end of it is killed. What it ran elsewhere ends all the same."""
        self._stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._ear.cancel()
        await asyncio.wait((self._ear,))
        with suppress(OSError):
            await self._stdin.wait_closed()

    async def _collect_stderr(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(_WORDS_BYTES):
            self._words = (self._words + data)[-_WORDS_BYTES:]


async def run_program(command: Sequence[str], env: Mapping[str, str] | None = None) -> ProgramChannel:
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True, limit=_READ_BYTES
        )
    except OSError as error:
        raise SandboxError(f"{command[0]} did not start: {error}", retryable=False) from error
    return ProgramChannel(process)
