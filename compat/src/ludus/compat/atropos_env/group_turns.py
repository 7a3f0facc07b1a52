"""Whether the groups of a file run side by side, or one after another.

    state_analysis (the code)      ┐
    state_watch (while groups run) ├──> one at a time, told and recorded by the attribute's name
    an earlier process of the run  ┘

A file that carries state through a group on its environment object expects one group after another, as atroposlib's
`process` runs them. All others run side by side. A group that the watch finds spoiled is made again, alone, with the
replies that it already has; from then on the run goes on one group at a time.
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ludus.compat.atropos_env.state_analysis import find_carried
from ludus.compat.atropos_env.state_watch import StateWatch, watch_object
from ludus.store import RunDir

T = TypeVar("T")
R = TypeVar("R")
KIND = "file_shared"
_ALONE = -1


class GroupTurns:
    """Lets groups in: any number of them, or one at a time."""

    def __init__(self, env: object, run: RunDir, tell: Callable[[str], None]) -> None:
        self._env, self._run, self._tell = env, run, tell
        self._watch = StateWatch()
        self._inside = 0
        """How many groups have a turn, or `_ALONE`."""
        self._changed = asyncio.Condition()
        self.shared: list[str] = []
        """Attributes through which groups would mix. If there are any, groups run one at a time."""
        self._share(read_shared(run) or find_carried(type(env)))
        if not self.shared:
            watch_object(env, self._watch)

    def _share(self, names: Iterable[str]) -> None:
        new = [name for name in names if name not in self.shared]
        self.shared += new
        for name in new:
            self._run.put_record(f"file/shared/{name}", KIND, name.encode())
        if new:
            listed = ", ".join(f"self.{name}" for name in new)
            self._tell(
                f"groups run one at a time: the file keeps {listed} from one part of a group to the next, and groups "
                "that run side by side would read each other's"
            )

    def read_state(self, group: str) -> dict[str, Any]:
        """The attributes that belong to the item which was just taken for a group."""
        names = {path.partition(".")[0].partition("[")[0] for path in self.shared}
        kept = {name: copy.copy(getattr(self._env, name)) for name in names if hasattr(self._env, name)}
        return {**self._watch.end(group), **kept}

    @asynccontextmanager
    async def enter(self) -> AsyncGenerator[None]:
        """A turn: beside others, or alone if groups run one at a time."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._inside == 0 or (self._inside > 0 and not self.shared))
            alone = bool(self.shared)
            self._inside = _ALONE if alone else self._inside + 1
        try:
            yield
        finally:
            async with self._changed:
                self._inside = 0 if alone else self._inside - 1
                self._changed.notify_all()

    async def run(
        self,
        group: str,
        work: Callable[[], Awaitable[T]],
        finish: Callable[[T], Awaitable[R]],
        failures: tuple[type[Exception], ...],
    ) -> R:
        """Do the work of a group, and finish it, in a turn of its own. If another group has spoiled the work, it is
        done again, alone.

        Raises:
            What `work` and `finish` raise. If the work was spoiled, `failures` do not count.
        """
        spoiled = self._watch.spoiled
        try:
            async with self.enter():
                done = await work()
                if group not in spoiled:
                    return await finish(done)
        except failures:
            if group not in spoiled:
                raise
        finally:
            name, taken = spoiled.get(group, ""), self._watch.end(group)
        self._share([name])
        async with self.enter():
            for each in taken.keys() & set(self.shared):
                setattr(self._env, each, taken[each])
            return await finish(await work())


def read_shared(run: RunDir) -> list[str]:
    """The attributes for which the groups of a run are made one at a time."""
    return [body.decode() for _, body in run.read_records(KIND)]
