"""A program on this host as a `Channel`: `ssh`, `apptainer`, or any other that passes on its stdin and stdout."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from ludus.errors import SandboxError

_READ_BYTES = 2**18
_STDERR_BYTES = 4096
_END_SECONDS = 3.0


class ProgramChannel:
    """The stdin and stdout of a child process. The last part of its stderr is kept, for error messages."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._stderr = b""
        self._stderr_task = asyncio.create_task(self._collect_stderr(process.stderr))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, data: bytes) -> None:
        self._stdin.write(data)

    async def drain(self) -> None:
        await self._stdin.drain()

    async def receive(self) -> bytes:
        data = await self._stdout.read(_READ_BYTES)
        if not data:  # its stderr may end a moment after its stdout
            await asyncio.wait((self._stderr_task,), timeout=1.0)
        return data

    def get_stderr(self) -> str:
        return self._stderr.decode(errors="replace").strip()

    async def close(self) -> None:
        """Close its stdin. A program that does not end then is killed; what it started elsewhere ends nevertheless."""
        self._stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._stderr_task.cancel()
        await asyncio.wait((self._stderr_task,))
        with suppress(OSError):
            await self._stdin.wait_closed()

    async def _collect_stderr(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(_STDERR_BYTES):
            self._stderr = (self._stderr + data)[-_STDERR_BYTES:]


async def run_program(command: Sequence[str]) -> ProgramChannel:
    """Start a program. Raises SandboxError if it cannot be started."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=_READ_BYTES
        )
    except OSError as error:
        raise SandboxError(f"{command[0]} did not start: {error}", retryable=False) from error
    return ProgramChannel(process)
