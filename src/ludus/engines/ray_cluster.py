"""The only module that knows Ray: a cluster, its nodes, and one worker process on a node.

Ray's own output to the terminal, its dashboard and its usage reports are off for clusters that are started here. Other
`RAY_*` variables are left alone. A worker is an actor that is bound to its node and belongs to this process, so Ray
ends it when this process ends.
"""

import asyncio
import importlib
import logging
import socket
import threading
import warnings
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ludus.errors import ConfigError, LudusError

WORKER = "ludus.node_worker:NodeWorker"
"""The class that runs on nodes. It is above this module, which only names it."""
OLDEST = (2, 49)
HEAD_SECONDS = 5.0
"""How long the head of a cluster may take to answer."""

STREAM = 256
"""Reports of one call. Ray keeps something of every item of a stream for as long as the call goes on."""

T = TypeVar("T")


@dataclass(frozen=True)
class RayNode:
    """A node of a cluster."""

    id: str
    name: str
    """Its host name and address, for people."""


class WorkerLost(Exception):
    """The process of a worker has ended, or its node has. The text says how."""


class RayCluster:
    """A connection to a cluster, which is started on this machine if no address is given."""

    def __init__(self, address: str) -> None:
        self._ray = _import_ray()
        self._connect(address)

    def _connect(self, address: str) -> None:
        ray = self._ray
        if address.startswith("ray://"):
            raise ConfigError(
                "engine.address: ray:// is Ray's client for other machines, which cannot stream results: start Ludus "
                "on a node of the cluster (ray job submit), and leave engine.address out"
            )
        if address not in ("", "auto", "local"):
            _require_head(address)
        logging.getLogger("ray").setLevel(logging.ERROR)
        quiet = {"log_to_driver": False, "configure_logging": False}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray's own, about its future versions
                if address:
                    ray.init(address=address, **quiet)
                else:
                    ray.init(address="local", include_dashboard=False, **quiet)
        except (ConnectionError, TimeoutError) as error:
            raise ConfigError(_explain_absent(address, error)) from None
        except RuntimeError as error:
            raise ConfigError(f"engine.address: Ray refuses this program: {_join_lines(error)}") from None
        except ValueError as error:
            raise ConfigError(f"engine.address: '{address}' is not an address: {_first_line(error)}") from None

        _silence()

    def list_nodes(self) -> list[RayNode]:
        """The nodes that are alive and may work: those with CPUs."""
        found: list[RayNode] = []
        for node in self._ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU", 0) > 0:
                name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
                found.append(RayNode(node["NodeID"], name))
        return found

    def list_draining(self) -> set[str]:
        """The ids of nodes that will end soon: they are drained, or their machine is preempted."""
        state = getattr(getattr(self._ray, "_private", None), "state", None)
        try:
            return set(state.state.get_draining_nodes())  # pyright: ignore[reportOptionalMemberAccess]
        except AttributeError:  # another version of Ray keeps it elsewhere
            return set()

    def start_worker(self, node: RayNode) -> "RayWorker":
        module, _, name = WORKER.partition(":")
        kind: Any = getattr(importlib.import_module(module), name)
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        actor = self._ray.remote(kind).options(
            num_cpus=0, max_restarts=0, max_concurrency=1000, scheduling_strategy=affinity(node.id, soft=False)
        )
        return RayWorker(self._ray, actor.remote(), node)

    async def ask(self, question: Callable[[], T], seconds: float) -> T:
        """Ask Ray. Raises `TimeoutError` if it does not answer: a cluster whose head is gone never does. Nothing waits
        for the thread that asks, not even the end of the program."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def settle(set_result: Callable[[Any], None], value: Any) -> None:
            if not answer.done():
                set_result(value)

        def work() -> None:
            with suppress(RuntimeError):  # the loop has ended
                try:
                    loop.call_soon_threadsafe(settle, answer.set_result, question())
                except Exception as error:
                    loop.call_soon_threadsafe(settle, answer.set_exception, error)

        threading.Thread(target=work, daemon=True).start()
        async with asyncio.timeout(seconds):
            return await answer

    def close(self) -> None:
        self._ray.shutdown()


class RayWorker:
    """A worker on a node. Its methods raise `WorkerLost`."""

    def __init__(self, ray: Any, actor: Any, node: RayNode) -> None:
        self._ray = ray
        self._actor = actor
        self.node = node

    async def open(self, order: bytes) -> bytes:
        return await self._call("open", order)

    async def take(self, lease: bytes) -> None:
        await self._call("take", lease)

    async def hear(self, word: bytes) -> None:
        await self._call("hear", word)

    async def close(self) -> None:
        await self._call("close")

    async def read_reports(self) -> AsyncGenerator[bytes, None]:
        errors, count = self._ray.exceptions, STREAM
        try:
            while count == STREAM:  # fewer: the worker is closing
                count = 0
                async for item in self._actor.reports.options(num_returns="streaming").remote(STREAM):
                    count += 1
                    yield await item
        except errors.RayTaskError as error:
            raise LudusError(f"node {self.node.name}: {error}") from error
        except errors.RayError as error:
            raise WorkerLost(_describe(error)) from error

    async def _call(self, method: str, *arguments: bytes) -> Any:
        errors = self._ray.exceptions
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except errors.RayTaskError as error:  # a bug of the worker
            raise LudusError(f"node {self.node.name}: {error}") from error
        except errors.RayError as error:
            raise WorkerLost(_describe(error)) from error

    def kill(self) -> None:
        """End its process, whatever it does."""
        self._ray.kill(self._actor)


def _import_ray() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray: Any = importlib.import_module("ray")
    except ModuleNotFoundError:
        raise ConfigError("engine.type ray: Ray is not installed: pip install 'ludus-train[ray]'") from None
    found = tuple(int(part) for part in ray.__version__.split(".")[:2])
    if found < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(
            f"engine.type ray: Ray {ray.__version__} is installed, and {oldest} or later is needed: "
            "pip install -U 'ludus-train[ray]'"
        )
    return ray


def _silence() -> None:
    """Keep Ray from printing about lost workers, for which it has no setting: the engine says what matters. Other
    versions of Ray may still print."""
    with suppress(ImportError):
        worker: Any = importlib.import_module("ray._private.worker")
        worker.print_to_stdstream = _print_nothing


def _print_nothing(*_: object, **__: object) -> None: ...


def _require_head(address: str) -> None:
    """Raise `ConfigError` if nothing answers at an address: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"engine.address: '{address}' should be HOST:PORT of the cluster's head, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), HEAD_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(_explain_absent(address, error)) from None


def _explain_absent(address: str, error: BaseException) -> str:
    where = "on this machine" if address == "auto" else f"at {address}"
    return (
        f"engine.address: there is no Ray cluster {where}. Start one with `ray start --head`, or leave engine.address "
        f"out to use this machine alone ({_first_line(error)})"
    )


def _join_lines(error: BaseException) -> str:
    """A message of several lines in one: of two versions that differ, Ray has each on a line of its own."""
    return " ".join(str(error).split()) or type(error).__name__


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _describe(error: BaseException) -> str:
    """How a worker ended, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line.startswith(("The actor is dead because", "Worker exit", "The node"))]
    return (told[0] if told else lines[0] if lines else type(error).__name__)[:500]
