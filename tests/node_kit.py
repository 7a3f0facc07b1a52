"""Ray clusters for tests, started as users start them: one `ray start --block` for each node, all on this machine.

A node is a process with children (raylet, GCS on the head, workers), which a test can find and kill one by one. A
command before `ray` puts a node elsewhere: in a network namespace, or under another clock.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs_kit import ROOT
from tests.sandbox.remote.machinery import find_free_port

RAY = Path(sys.executable).with_name("ray")
LUDUS = [sys.executable, "-c", "import sys; from ludus.cli import main; sys.exit(main())"]
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'compat' / 'src'}",
}
QUICK_LOSS = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray misses a node that does not answer after seconds, not after half a minute."""


def wait_until(ready: Callable[[], object], what: str, seconds: float = 90.0) -> None:
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, f"it did not happen within {seconds:.0f} s: {what}"
        time.sleep(0.05)


@dataclass
class Process:
    """One process of a node."""

    pid: int
    parent: int
    command: str

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def list_processes() -> list[Process]:
    """Every process of this machine."""
    found: list[Process] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            found.append(Process(int(folder.name), parent, command))
    return found


def list_descendants(pid: int) -> list[Process]:
    """The processes below one, and itself."""
    everything, pids = list_processes(), {pid}
    while more := {each.pid for each in everything if each.parent in pids} - pids:
        pids |= more
    return [each for each in everything if each.pid in pids]


@dataclass
class RayNode:
    """A node, from its start to its end."""

    arguments: Sequence[str]
    log: Path
    before: Sequence[str] = ()
    """A command that runs the command after it, such as `ip netns exec NAME`."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    known: set[int] = field(default_factory=set[int])
    """Processes that were found below the node: they outlive it if only it is killed."""

    def __post_init__(self) -> None:
        small = ["--object-store-memory", "80000000", "--num-cpus", "2"]
        command = [*self.before, str(RAY), "start", "--block", *small, *self.arguments]
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **QUIET, **self.env},
                start_new_session=True,
            )

    def wait(self) -> "RayNode":
        """Wait until it has joined."""
        wait_until(lambda: self.has_started() or self.process.poll() is not None, "the node starts")
        assert self.process.poll() is None, self.log.read_text()
        self.list_processes()
        return self

    def has_started(self) -> bool:
        return "Ray runtime started" in self.log.read_text(errors="replace")

    def list_processes(self) -> list[Process]:
        found = list_descendants(self.process.pid)
        self.known.update(each.pid for each in found)
        return found

    def find(self, part: str) -> list[Process]:
        """The processes of the node with a word in their command line."""
        return [each for each in self.list_processes() if part in each.command]

    def kill(self) -> None:
        """End all of it at once, as a power cut does."""
        for each in self.list_processes():
            each.kill()
        for pid in self.known - {self.process.pid}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@dataclass
class RayCluster:
    """A head and its nodes."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    ip: str = "127.0.0.1"
    nodes: list[RayNode] = field(default_factory=list[RayNode])
    started: int = 0

    def start_head(self) -> RayNode:
        self.port = find_free_port()
        quiet = ["--include-dashboard", "false", "--temp-dir", str(self.folder)]
        return self._start("--head", "--port", str(self.port), *quiet)

    def start_node(self, *arguments: str, before: Sequence[str] = (), env: Mapping[str, str] | None = None) -> RayNode:
        return self._start("--address", self.address, *arguments, before=before, env=env)

    def _start(self, *arguments: str, before: Sequence[str] = (), env: Mapping[str, str] | None = None) -> RayNode:
        self.started += 1
        place = [] if "--node-ip-address" in arguments else ["--node-ip-address", self.ip]
        log = self.folder / f"node-{self.started}.log"
        node = RayNode([*arguments, *place], log, before, {**self.env, **(env or {})})
        self.nodes.append(node)
        return node

    @property
    def address(self) -> str:
        return f"{self.ip}:{self.port}"

    @property
    def head(self) -> RayNode:
        return self.nodes[0]

    def kill(self) -> None:
        for node in reversed(self.nodes):
            node.kill()
        self.nodes.clear()


@contextmanager
def start_cluster(nodes: int = 1, env: Mapping[str, str] | None = None, ip: str = "127.0.0.1") -> Iterator[RayCluster]:
    """A head and so many nodes beside it."""
    folder = Path(tempfile.mkdtemp(prefix="lr-"))  # short: Ray's sockets are below it
    cluster = RayCluster(folder, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), **(env or {})}, ip)
    try:
        cluster.start_head().wait()
        for _ in range(nodes):  # one after another: two that start at once on one machine take the same socket
            cluster.start_node().wait()
        yield cluster
    finally:
        cluster.kill()
        shutil.rmtree(folder, ignore_errors=True)
