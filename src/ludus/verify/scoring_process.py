"""Runs a scorer of foreign code in a process of its own.

Libraries that read an agent's answer (symbolic mathematics, spreadsheets) can be kept busy for ever, or made to use all
memory, by a hostile one. In the driver that would stop every rollout. Here it costs a child process, which is killed.
The child has no variables of the driver, so no keys; it has a limit of memory, a fixed hash seed, so that two processes
sample and score alike, and an empty folder of its own as home and working folder, which is removed with it.

    score = await run_scorer("my_package.scoring:score", answer, seconds=20)

Children are kept warm and used again, because importing such a library takes about a second. A scorer keeps nothing
between two calls. A call that takes too long raises `TimeoutError`. `verify` passes it on, and `ludus.judging` finds
out whether the agent's answer or this machine is the cause.
"""

import asyncio
import atexit
import subprocess
import sys
import tempfile
import threading
from typing import Any

import msgspec

from ludus.verify import scoring_child

SECONDS = 20.0
"""The default time for one call, without the import of the library."""
START_SECONDS = 300.0
"""Time for the start of a child and its imports, on a busy machine too."""
MOST = 4
"""How many children run at once."""


class ScorerFailed(Exception):
    """A scorer raised, or its process ended."""


async def run_scorer(function: str, *arguments: Any, seconds: float = SECONDS) -> Any:
    """Call `function` (`module:name`) with plain JSON values in a child process, and return its result.

    Raises:
        TimeoutError: it took more than `seconds`.
        ScorerFailed: it raised, or its process died (out of memory, a crash in C code).
    """
    return await asyncio.to_thread(run_scorer_now, function, *arguments, seconds=seconds)


def run_scorer_now(function: str, *arguments: Any, seconds: float = SECONDS) -> Any:
    """`run_scorer` for code that is not asynchronous, such as `Env.tasks`."""
    return _POOL.call(function, arguments, seconds)


class ScoringPool:
    """Child processes that are idle or at work."""

    def __init__(self, most: int = MOST) -> None:
        self._room = threading.BoundedSemaphore(most)
        self._idle: list[_Child] = []

    def call(self, function: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        with self._room:
            child = self._idle.pop() if self._idle else _Child()
            try:
                value = child.call(function, arguments, seconds)
            except ScorerFailed:
                if child.is_alive:
                    self._idle.append(child)
                raise
            except BaseException:
                child.close()
                raise
            self._idle.append(child)
            return value

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class _Child:
    """One process. It serves one call at a time."""

    def __init__(self) -> None:
        path = ":".join(place for place in sys.path if place)
        self._folder = tempfile.TemporaryDirectory(prefix="ludus-scorer-", ignore_cleanup_errors=True)
        home = self._folder.name
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", scoring_child.__name__],  # -P: no module is imported from its folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONHASHSEED": "0", "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1", "HOME": home, "TMPDIR": home},
            cwd=home,
            start_new_session=True,  # a Ctrl-C is for the driver, which finishes what runs
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def call(self, function: str, arguments: tuple[Any, ...], seconds: float) -> Any:
        assert self._process.stdin is not None
        request = msgspec.json.encode({"function": function, "arguments": arguments})
        try:
            self._process.stdin.write(request + b"\n")
            self._process.stdin.flush()
        except OSError:
            self.close()
            raise ScorerFailed("the scoring process has ended") from None
        started = self._read(START_SECONDS, "the scoring process did not start")
        answer = started or self._read(seconds, f"the scorer took more than {seconds:g} seconds")
        if "error" in answer:
            raise ScorerFailed(answer["error"])
        return answer["value"]

    def _read(self, seconds: float, late: str) -> dict[str, Any]:
        assert self._process.stdout is not None
        expired = threading.Event()

        def end() -> None:
            expired.set()
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            return msgspec.json.decode(line)
        self.close()
        if expired.is_set():
            raise TimeoutError(late)
        raise ScorerFailed("the scoring process died: out of memory, or a crash in a library")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    continue
        self._folder.cleanup()


_POOL = ScoringPool()
"""The pool of this process. It only keeps children warm: no score depends on it."""
atexit.register(_POOL.close)
