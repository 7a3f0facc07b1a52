"""A run on a Ray cluster that is finished although its parts are killed, one after another.

    plan_kills(seed, count) ──> Ordeal: driver and cluster ──> a row for each kill ──> the store, as if undisturbed

The agent counts how often it was begun for each task, so a row says how much work was done again because of the kill.
A run must be over only after its last kill; then nothing may be missing, nothing may be there twice, and every outcome
must be what it is without kills, but for times.
"""

import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.node_kit import LUDUS, QUIET, RayCluster, wait_until
from tests.ray_kit import read_store

Target = Literal["worker", "driver", "raylet", "head"]
SHARES: dict[Target, int] = {"worker": 8, "driver": 5, "raylet": 5, "head": 2}
"""How often each is killed, of twenty times."""
WORKER = "ray::NodeWorker"
"""How the command line of a worker begins."""
EACH = 100
"""Tasks for each kill: others go on while a part is started again."""
MOST = 24
"""Outcomes that are stored between two kills, at least."""

FILE = '''
import asyncio
import os
from typing import ClassVar

from ludus.env import Env
from ludus.types import Score, Task


class Counting(Env, frozen=True):
    """Square a number."""

    name: ClassVar[str] = "counting"
    sandbox: ClassVar[None] = None
    size: int = 100

    def tasks(self, split):
        for n in range(self.size):
            yield Task(id=f"n{{n}}", prompt=str(n), split=split, answer=str(n * n))

    async def verify(self, rollout, box):
        return Score.of(float(rollout.answer == rollout.task.answer))


async def act(messages, tools, sampling):
    """Right but for every third number, after 0.1 to 0.8 s."""
    n = int(messages[-1].content)
    with open("{begun}", "ab", buffering=0) as file:
        file.write(b"%d %d\\n" % (n, os.getpid()))
    await asyncio.sleep(0.1 + n * 7919 % 100 / 140)
    return str(n * n if n % 3 else n)


async def act_slower(messages, tools, sampling):
    """Begins fast, and takes ten times as long after 40 replies."""
    n = int(messages[-1].content)
    with open("{begun}", "ab", buffering=0) as file:
        file.write(b"%d %d\\n" % (n, os.getpid()))
        slow = file.tell() > 400
    await asyncio.sleep(0.3 if slow else 0.03)
    return str(n)


async def act_together(messages, tools, sampling):
    """The same, when two workers have begun."""
    reply = await act(messages, tools, sampling)
    while len({{line.split()[1] for line in open("{begun}", "rb")}}) < 2:
        await asyncio.sleep(0.1)
    return reply
'''


@dataclass(frozen=True)
class Kill:
    """What is killed, and when."""

    number: int
    target: Target
    outcomes: int
    """How many more outcomes are stored before it."""
    seconds: float
    """How long after the last of them."""
    choice: float
    """Which of several, as a part of 1."""


def plan_kills(seed: int, count: int) -> list[Kill]:
    """Kills at random points; the same for one seed."""
    chance = random.Random(seed)
    targets = list(SHARES)
    return [
        Kill(
            number,
            chance.choices(targets, list(SHARES.values()))[0],
            chance.randint(0, MOST),
            chance.uniform(0, 0.5),
            chance.random(),
        )
        for number in range(1, count + 1)
    ]


@dataclass
class Row:
    """A kill and what came of it."""

    number: int
    target: Target
    stored: int
    """Outcomes in the store when it happened."""
    again: int = 0
    """Rollouts that were begun a second time before the next kill."""
    recovery: float = 0.0
    """Seconds until the next outcome was stored."""
    ended: str = ""
    """How the driver ended, if it did."""

    def __str__(self) -> str:
        return f"| {self.number} | {self.target} | {self.stored} | {self.again} | {self.recovery:.1f} | {self.ended} |"


HEADING = (
    "| kill | what | outcomes stored then | begun again | seconds to the next outcome | driver |\n"
    "|---|---|---|---|---|---|"
)


def summarize_rows(rows: Sequence[Row]) -> str:
    """One line for each kind of target."""
    lines = [
        "| killed | times | begun again, mean | most | seconds to the next outcome, median | most |",
        "|---|---|---|---|---|---|",
    ]
    for target in SHARES:
        found = [row for row in rows if row.target == target]
        if found:
            again, waits = [row.again for row in found], sorted(row.recovery for row in found)
            lines.append(
                f"| {target} | {len(found)} | {sum(again) / len(again):.1f} | {max(again)} "
                f"| {waits[len(waits) // 2]:.1f} | {waits[-1]:.1f} |"
            )
    return "\n".join(lines)


def write_env(folder: Path) -> None:
    (folder / "counting.py").write_text(FILE.format(begun=folder / "begun"))
    (folder / "begun").touch()


def make_command(out: Path, size: int, *more: str, act: str = "act", at_once: int = 16) -> list[str]:
    model = ["--model.type", "scripted", "--model.script", f"counting.py:{act}"]
    words = ["evaluate", "counting.py:Counting", "--env.size", str(size), *model, "--out", str(out), "--resume"]
    return [*LUDUS, *words, "--run.concurrency", str(at_once), "--quiet", *more]


def count_begun(folder: Path) -> Counter[int]:
    """How often each task was begun."""
    return Counter(int(line.split()[0]) for line in (folder / "begun").read_text().splitlines())


def count_stored(out: Path) -> int:
    """How many outcomes have a score. 0 as long as there is no store."""
    if not (out / "store.sqlite").exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{out / 'store.sqlite'}?mode=ro", uri=True, timeout=10)) as store:
            return store.execute("SELECT count(*) FROM outcomes WHERE score IS NOT NULL").fetchone()[0]
    except sqlite3.OperationalError:  # it is being made
        return 0


def count_bodies(out: Path) -> int:
    """How many rollouts a store has. As many as outcomes, if nothing is there twice."""
    with closing(sqlite3.connect(f"file:{out / 'store.sqlite'}?mode=ro", uri=True)) as store:
        return store.execute("SELECT count(*) FROM rollouts").fetchone()[0]


@dataclass
class Ordeal:
    """A run and the cluster that it is on."""

    folder: Path
    cluster: RayCluster
    size: int
    nodes: int = 2
    """Beside the head."""
    act: str = "act"
    driver: subprocess.Popen[bytes] | None = None
    drivers: int = 0
    rows: list[Row] = field(default_factory=list[Row])

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_env(self.folder)

    @property
    def out(self) -> Path:
        return self.folder / "run"

    @property
    def log(self) -> Path:
        return self.folder / f"driver-{self.drivers}.log"

    def start_driver(self) -> None:
        self.drivers += 1
        engine = ["--engine", "ray", "--engine.address", self.cluster.address]
        with self.log.open("wb") as file:
            self.driver = subprocess.Popen(
                make_command(self.out, self.size, *engine, act=self.act),
                cwd=self.folder,
                env={**os.environ, **QUIET, **self.cluster.env},
                stdout=file,
                stderr=file,
            )

    def start_cluster(self) -> None:
        """The head, if there is none, and its nodes; these may still be starting."""
        if not self.cluster.nodes:
            self.cluster.start_head().wait()
        self.fill_cluster()

    def fill_cluster(self) -> None:
        """Start nodes in place of those that are gone. One at a time: two that start at once take the same socket."""
        self.cluster.nodes = [node for node in self.cluster.nodes if node.process.poll() is None]
        missing = self.nodes + 1 - len(self.cluster.nodes)
        if missing and all(node.has_started() for node in self.cluster.nodes):
            self.cluster.start_node()

    def work(self, kills: Sequence[Kill]) -> Iterator[Row]:
        """Kill, one after another, and let the run end. Yields a row for each kill, when the next one comes."""
        self.start_cluster()
        self.start_driver()
        begun = 0
        for kill in kills:
            row = self._strike(kill)
            if self.rows:
                self.rows[-1].again = self._count_again() - begun
                yield self.rows[-1]
            begun = self._count_again()
            self.rows.append(row)
            self._recover(row)
        self._wait(lambda: self._poll() is not None, "the run ends", 120 + self.size / 5)
        self.rows[-1].again = self._count_again() - begun
        yield self.rows[-1]

    def check(self) -> None:
        """Nothing is missing, nothing is there twice, and everything is as without kills."""
        stored = read_store(self.out)
        assert len(stored) == count_bodies(self.out) == self.size
        assert stored == read_store(self.run_undisturbed())

    def _strike(self, kill: Kill) -> Row:
        stored = count_stored(self.out)
        self._wait(lambda: count_stored(self.out) >= stored + kill.outcomes, f"{kill.outcomes} outcomes are stored")
        time.sleep(kill.seconds)
        assert self._poll() is None, f"the run ended before kill {kill.number}: {self.log.read_text()[-2000:]}"
        pids = self._find(kill)
        row = Row(kill.number, kill.target, count_stored(self.out))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return row

    def _find(self, kill: Kill) -> list[int]:
        """The processes of a target. Waits until there is one."""
        if kill.target == "driver":
            assert self.driver is not None
            return [self.driver.pid]
        found: list[int] = []

        def look() -> bool:
            found[:] = self._list_targets(kill.target)
            return bool(found)

        self._wait(look, f"there is a {kill.target}")
        if kill.target == "head":
            return found
        return [found[int(kill.choice * len(found))]]

    def _list_targets(self, target: Target) -> list[int]:
        head, *others = self.cluster.nodes
        if target == "head":
            return [each.pid for each in head.find("gcs_server ")]
        if target == "raylet":
            return [each.pid for node in others if node.has_started() for each in node.find("raylet/raylet ")]
        return [each.pid for node in self.cluster.nodes for each in node.find(WORKER)]

    def _recover(self, row: Row) -> None:
        """Start again what a user would start again, and wait for an outcome."""
        killed = time.monotonic()
        if row.target == "driver":
            self._end_driver(row, killed)
        if row.target == "head":
            self._end_driver(row, killed)
            self.cluster.kill()
            self.start_cluster()
        if self.driver is None:
            self.start_driver()
        self._wait(lambda: count_stored(self.out) > row.stored or self._poll() == 0, "an outcome after the kill")
        row.recovery = time.monotonic() - killed

    def _end_driver(self, row: Row, killed: float) -> None:
        assert self.driver is not None
        code = self.driver.wait(timeout=120)
        row.ended = f"{code}, after {time.monotonic() - killed:.1f} s"
        if row.target == "head" and code < 0:
            raise AssertionError(f"the head was lost, and the driver ended by signal {-code}: {self.log.read_text()}")
        self.driver = None

    def _poll(self) -> int | None:
        assert self.driver is not None
        return self.driver.poll()

    def _wait(self, ready: Any, what: str, seconds: float = 180.0) -> None:
        def is_ready() -> bool:
            self.fill_cluster()
            failed = self.driver is not None and self.driver.poll() not in (None, 0)
            assert not failed, f"the driver ended by itself: {self.log.read_text()}"
            return ready()

        wait_until(is_ready, f"{what}; driver {self.drivers}: {self.log.read_text()[-3000:]}", seconds)

    def _count_again(self) -> int:
        begun = count_begun(self.folder)
        return begun.total() - len(begun)

    def run_undisturbed(self) -> Path:
        """The same run in one process. Returns its directory."""
        out = self.folder / "undisturbed"
        subprocess.run(
            make_command(out, self.size, at_once=256, act=self.act),
            cwd=self.folder,
            env={**os.environ, **QUIET},
            check=True,
        )
        return out

    def close(self) -> None:
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()
