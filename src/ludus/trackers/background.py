"""A thread that does the work of a tracker one by one, so that no server and no disk holds up the run.

The queue is bounded. What finds it full is dropped and counted. The first error ends the thread's work: it is raised by
the next call, and the tracker gets no more values (`ludus.trackers.TrackerSet`).
"""

import queue
import threading
from collections.abc import Callable

from ludus.errors import LudusError

Work = Callable[[], None]


class TrackerLost(LudusError):
    """A tracker could not keep what it got."""


class BackgroundWork:
    """Does pieces of work in their order, in a thread of its own."""

    def __init__(self, name: str, most: int = 1000) -> None:
        self.dropped = 0
        self._queue: queue.Queue[Work | None] = queue.Queue(most)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"ludus-{name}", daemon=True)
        self._thread.start()

    def do(self, work: Work) -> None:
        """Do something soon. Raises the error of earlier work."""
        self.check()
        try:
            self._queue.put_nowait(work)
        except queue.Full:
            self.dropped += 1

    def check(self) -> None:
        """Raise the error of earlier work, if there was one."""
        if self._error is not None:
            raise self._error

    def close(self, seconds: float = 60.0) -> None:
        """Wait until everything is done, but not for ever. Raises what went wrong, and `TrackerLost` for what was
        dropped or is left."""
        try:
            self._queue.put(None, timeout=seconds)
            self._thread.join(seconds)
        except queue.Full:
            pass
        self.check()
        left = self._queue.qsize() if self._thread.is_alive() else 0
        if self.dropped or left:
            raise TrackerLost(
                f"{self.dropped} pieces were dropped because it was too slow, {left} were not sent in {seconds:.0f} s"
            )

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            if self._error is None:
                try:
                    work()
                except Exception as error:  # foreign code and its servers: raised by the next call
                    self._error = error
