"""A child process of the driver."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress


class Child:
    """A child process whose exit can be awaited without a thread."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)
        self._loop = asyncio.get_running_loop()
        self._exit_code: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def pid(self) -> int:
        """The pid; 0 once the process has exited, since the kernel may then reuse the number."""
        return 0 if self._exit_code.done() else self._popen.pid

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exit_code.set_result(self._popen.wait())  # not earlier: until it is reaped, the pid is not reused

    def stop(self) -> None:
        """Stop the process and wait until it has stopped or exited. This blocks: call it in a thread."""
        if not self._exit_code.done():
            self._popen.send_signal(signal.SIGSTOP)
            with suppress(ChildProcessError):  # reaped meanwhile
                os.waitid(os.P_PID, self._popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        if not self._exit_code.done():
            self._popen.kill()

    def on_exit(self, react: Callable[[], None]) -> None:
        """Call `react` when the process has exited, or soon if it has already."""
        self._exit_code.add_done_callback(lambda _: react())

    async def wait(self) -> int:
        """Wait for the exit code. Several tasks may wait, also after the exit."""
        return await asyncio.shield(self._exit_code)
