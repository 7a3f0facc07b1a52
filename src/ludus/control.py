"""What can be changed in a run while it runs: `RunControl`, its one home.

    Ctrl-C, `ludus ctl`, limits ──> RunControl ──> engines, feeds and workers, which are told of each change

Whoever runs rollouts reads the control before each start, and watches it. Nothing is cancelled by a change: fewer at a
time, a pause and a stop all let what runs go on to its end.
"""

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager

OnChange = Callable[[], None]


class RunControl:
    """What the user and the run's own limits have asked for. It belongs to one event loop."""

    def __init__(self) -> None:
        self._concurrency: int | None = None
        self._paused = False
        self._stopping = False
        self._reason = ""
        self._failing = False
        self._requeued: dict[str, None] = {}
        self._watchers: list[OnChange] = []

    @property
    def concurrency(self) -> int | None:
        """How many rollouts run at a time; None: as many as the settings say."""
        return self._concurrency

    @property
    def paused(self) -> bool:
        """Whether nothing new starts for now."""
        return self._paused

    @property
    def is_stopping(self) -> bool:
        """Whether the run drains: nothing new starts, and what runs is finished and recorded."""
        return self._stopping

    @property
    def reason(self) -> str:
        """Why it drains, in words; empty if nobody said."""
        return self._reason

    @property
    def is_failing(self) -> bool:
        """Whether it drains because too many rollouts fail."""
        return self._failing

    @property
    def requeued(self) -> tuple[str, ...]:
        """The addresses that were asked for again and have not been started."""
        return tuple(self._requeued)

    def set_concurrency(self, rollouts: int) -> None:
        if rollouts < 1:
            raise ValueError(f"concurrency is {rollouts}: use 1 or more, or pause the run")
        self._concurrency = rollouts
        self._tell()

    def pause(self) -> None:
        """Start nothing until `resume`. A run that drains is not paused: what it has begun must end."""
        self._paused = not self._stopping
        self._tell()

    def resume(self) -> None:
        self._paused = False
        self._tell()

    def stop(self, reason: str = "", *, failing: bool = False) -> None:
        """Drain the run. The first reason stays. `failing`: not the user asks for it, but the world does not work."""
        if not self._stopping:
            self._stopping, self._reason, self._failing, self._paused = True, reason, failing, False
        self._tell()

    def requeue(self, keys: Iterable[str]) -> None:
        """Ask for outcomes without a score again, by their content addresses."""
        self._requeued.update(dict.fromkeys(keys))
        self._tell()

    def take_requeued(self, among: Collection[str]) -> list[str]:
        """The addresses that were asked for again, as far as they are among these. Whoever takes them runs them."""
        taken = [key for key in self._requeued if key in among]
        for key in taken:
            del self._requeued[key]
        return taken

    async def wait_for_stop(self) -> None:
        changed = asyncio.Event()
        with self.watch(changed.set):
            while not self._stopping:
                await changed.wait()
                changed.clear()

    @contextmanager
    def watch(self, on_change: OnChange) -> Generator[None]:
        """Call `on_change` after each change while the block runs."""
        self._watchers.append(on_change)
        try:
            yield
        finally:
            self._watchers.remove(on_change)

    def _tell(self) -> None:
        for on_change in tuple(self._watchers):
            on_change()
