"""The driver of a run on a Ray cluster: a worker on every node, leases to it, its reports to the record.

    run(jobs) ──> LeaseQueue ──lease──> NodeWorker on a node ──report──> record(job, rollout)
                     ^────────────── a worker is lost ──────┘

Workers pull: each has what it can run at once and a few seconds of work ahead, so nothing queues inside of Ray and the
driver's memory does not grow. Ray runs a call at most once and may report an error for one that did run. Both are safe:
an outcome has a content address, and a unit that is not at a worker any more is not recorded a second time.

A node that joins gets a worker; one that drains gets no more leases; the units of one that is lost return to the queue.
A node whose worker refuses (another version, a missing file) is named and left out, and the run goes on without it.
"""

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from ludus.activity import enter_phase
from ludus.engine import list_groups
from ludus.engines.lease_queue import LeaseQueue, Unit, choose_window, is_worth_a_lease, split_evenly
from ludus.engines.ray_cluster import RayCluster, RayNode, RayWorker, WorkerLost
from ludus.engines.relay import RelayDesk
from ludus.engines.settings import EngineSettings
from ludus.engines.slice_ledger import GrantBook
from ludus.engines.wire import (
    DRAINS,
    GrantRequest,
    NodeHello,
    NodeLease,
    NodeOrder,
    NodeReport,
    NodeSlots,
    UnitEnd,
    WireJob,
    WireUnit,
    Word,
    decode_files,
    decode_report,
    describe_stop,
    encode,
    encode_lease,
    make_error,
    make_patch,
    name_patch,
    pack_acted,
    read_rollout,
)
from ludus.errors import BudgetExhausted, ConfigError, EngineLost, LudusError
from ludus.models import Model
from ludus.models.ledger import Ledger
from ludus.rollout import make_failed
from ludus.runner import Job, NodeFacts, Record, Runner
from ludus.types import Failure

LOOK_SECONDS = 1.0
"""How often the driver looks which nodes there are."""
SILENCE_SECONDS = 20.0
"""A cluster that does not say which nodes there are for so long is lost. Ray itself would end this process, without a
word of ours, when its head has been gone for a minute."""
CLOSE_SECONDS = 20.0
"""How long leaving a cluster may take."""
OPENINGS = 3
"""How often the worker of a node may die while it opens."""
UNPLACED = 4
"""A node on which so many units in a row find no slot that works gets no more, if other nodes work."""
RESTART_SECONDS = (0.2, 1.0, 5.0, 15.0)
"""How long a node whose worker died waits for the next one; the last counts for all further ones."""

T = TypeVar("T")
Jobs = tuple[Job, ...]
Tell = Callable[[str], None]


@dataclass(eq=False)
class _Batch:
    """The jobs of one call of `run`."""

    runner: Runner
    record: Record
    source: int = 0
    models: dict[str, Model] = field(default_factory=dict[str, Model])
    """The models of its policies."""
    stopped: list[LudusError] = field(default_factory=list[LudusError])
    ended: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def is_stopping(self) -> bool:
        return bool(self.stopped) or self.runner.options.is_stopping

    def fail(self, error: BaseException) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)


@dataclass(eq=False)
class _Node:
    """A node with its worker."""

    node: RayNode
    worker: RayWorker
    opened: float = field(default_factory=time.monotonic)
    slots: int = 0
    changes: int = 0
    """How often the slots were changed."""
    seconds: float | None = None
    """What a unit takes on average."""
    known: set[str] = field(default_factory=set[str])
    """The policies that it has."""
    draining: bool = False
    ended: int = 0
    """How many units it has run."""
    unplaced: int = 0
    """How many units in a row had no slot that works."""
    why_unplaced: str = ""
    """What the last of them said."""
    asked: "dict[int, asyncio.Task[None]]" = field(default_factory=dict[int, "asyncio.Task[None]"])
    """Calls of models of this process."""


class RayEngine:
    """Runs jobs on a Ray cluster. Use it as an async context manager."""

    def __init__(
        self, settings: EngineSettings, concurrency: int, order: NodeOrder, ledger: Ledger, tell: Tell
    ) -> None:
        self._settings = settings
        self._concurrency = concurrency
        self._order = encode(order)
        self._ledger = ledger
        self._grants = GrantBook(ledger)
        self._desk = RelayDesk(self._find_model)
        self._tell = tell
        self._queue: LeaseQueue[Jobs] = LeaseQueue(settings.deaths)
        self._batches: dict[int, _Batch] = {}
        self._nodes: dict[str, _Node] = {}
        """Nodes with an open worker."""
        self._keepers: dict[str, asyncio.Task[None]] = {}
        """What keeps a worker on each node."""
        self._refusals: dict[str, str] = {}
        self._facts: dict[str, NodeFacts] = {}
        """What nodes have done with workers that are gone."""
        self._background: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._lost: EngineLost | None = None
        """That the cluster as a whole is gone."""
        self._mark: enter_phase | None = None
        self._cluster: RayCluster

    # ---- opening and closing --------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._cluster = RayCluster(self._settings.address)
        self._ledger.watch_waiting(self._recall)
        try:
            self._look(self._cluster.list_nodes(), set())
            await self._wait_for_worker()
        except BaseException:
            await self._close()
            raise
        self._spawn(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        workers = [node.worker for node in self._nodes.values()]
        tasks = [*self._background, *self._keepers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._lost is None:
            await self._close_workers(workers)
        with suppress(TimeoutError):  # of a cluster that does not answer
            await self._cluster.ask(self._cluster.close, CLOSE_SECONDS)

    async def _close_workers(self, workers: Sequence[RayWorker]) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.gather(*(worker.close() for worker in workers), return_exceptions=True)
        for worker in workers:
            worker.kill()

    async def _wait_for_worker(self) -> None:
        """Wait until one node can work. Raises `ConfigError` if none can."""
        while not self._nodes:
            if len(self._refusals) == len(self._keepers):
                reasons = "; ".join(self._refusals.values()) or "it has no node with CPUs"
                raise ConfigError(f"engine.type ray: no node of the cluster can work: {reasons}")
            self._changed.clear()
            await self._changed.wait()

    def list_nodes(self) -> tuple[NodeFacts, ...]:
        open_now = {id: _add_work(self._find_facts(node.node), node) for id, node in self._nodes.items()}
        return tuple({**self._facts, **open_now}.values())

    def _find_facts(self, node: RayNode) -> NodeFacts:
        return self._facts.get(node.id, NodeFacts(name=node.name))

    # ---- nodes ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Follow the nodes that join, drain and leave."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                nodes = await self._ask(self._cluster.list_nodes)
                draining = await self._ask(self._cluster.list_draining)
            except EngineLost:
                return
            self._look(nodes, draining)
            self._queue.pardon(self._list_usable())
            self._rebalance()

    async def _ask(self, question: Callable[[], T]) -> T:
        """Ask the cluster. One that does not answer is lost, and the run ends."""
        try:
            return await self._cluster.ask(question, SILENCE_SECONDS)
        except TimeoutError:
            which = f" at {self._settings.address}" if self._settings.address else ""
            self._lost = EngineLost(
                f"the Ray cluster{which} has not answered for {SILENCE_SECONDS:g} s: its head is gone or out of reach. "
                "What has ended is kept; start a cluster (engine.address names it), then resume"
            )
            self._fail_all(self._lost)
            raise self._lost from None

    def _look(self, nodes: Sequence[RayNode], draining: set[str]) -> None:
        for node in nodes:
            if node.id not in self._keepers and node.id not in draining:
                self._keepers[node.id] = asyncio.create_task(self._keep_worker(node))
        for leaving in [self._nodes[id] for id in draining & self._nodes.keys()]:
            if not leaving.draining:
                self._stop_lending(leaving, f"node {leaving.node.name} is drained: it finishes what it has")
        alive = {node.id for node in nodes}
        for id in self._keepers.keys() - alive:
            self._keepers.pop(id).cancel()
            self._refusals.pop(id, None)
        self._supply()

    def _stop_lending(self, node: _Node, notice: str) -> None:
        """Give a node no more work; the others share what it had room for."""
        node.draining = True
        self._queue.excuse(node.node.id)
        self._tell(notice)
        self._share()

    async def _keep_worker(self, node: RayNode) -> None:
        """Keep a worker on a node for as long as the node is there."""
        failures = 0
        try:
            while (worker := await self._open_worker(node)) is not None:
                ended = await self._serve(worker)
                failures = 0 if ended else failures + 1
                await asyncio.sleep(RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)])
        except asyncio.CancelledError:
            self._lose(node, "its node was lost")
            raise
        except Exception as error:  # a bug: nothing may wait for this worker for ever
            self._fail_all(error)

    async def _open_worker(self, node: RayNode) -> RayWorker | None:
        """Open a worker. None: its node refuses, and is left out."""
        hello = NodeHello()
        for _ in range(OPENINGS):
            worker = await self._ask(lambda: self._cluster.start_worker(node))
            try:
                async with asyncio.timeout(self._settings.open_seconds):
                    hello = msgspec.msgpack.decode(await worker.open(self._order), type=NodeHello)
                if not hello.refusal:
                    return worker
                worker.kill()
                break
            except TimeoutError:
                worker.kill()
                hello = NodeHello(refusal=f"its worker did not open in {self._settings.open_seconds:g} s")
                break
            except WorkerLost as lost:
                hello = NodeHello(refusal=f"its worker could not be started ({lost}): is Ludus installed there?")
        self._refusals[node.id] = f"node {node.name}: {hello.refusal}"
        self._facts[node.id] = msgspec.structs.replace(self._find_facts(node), refusal=hello.refusal)
        self._tell(f"{self._refusals[node.id]}. The run goes on without it")
        self._changed.set()
        return None

    async def _serve(self, worker: RayWorker) -> bool:
        """Give a worker leases and read its reports until it is lost. Returns whether it has ended a unit."""
        node = _Node(worker.node, worker)
        self._nodes[worker.node.id] = node
        self._changed.set()
        self._share()
        self._supply()
        try:
            async for data in worker.read_reports():
                self._read(node, decode_report(data))
        except WorkerLost as lost:
            self._lose(node.node, str(lost))
        return node.ended > 0

    def _lose(self, node: RayNode, how: str) -> None:
        """The units of a lost worker return to the queue. One that has killed too many of them has failed."""
        facts, gone = self._find_facts(node), self._nodes.pop(node.id, None)
        if gone is not None:
            facts = _add_work(facts, gone)
            self._facts[node.id] = msgspec.structs.replace(facts, losses=(*facts.losses, how))
        self._ledger.activity.merge(node.name, None)
        self._grants.lose(node.id)
        self._desk.lose(node.id)
        loss = self._queue.lose(node.id, f"{node.name}: {how}")
        if loss.returned or loss.poisoned:
            self._tell(f"node {node.name}: its worker was lost ({how}); {len(loss.returned)} rollouts run again")
        for unit in loss.poisoned:
            self._fail_unit(unit)
        self._share()
        self._supply()

    def _fail_unit(self, unit: Unit[Jobs]) -> None:
        batch = self._batches[unit.source]
        ways = "; ".join(unit.losses)
        message = f"its worker was lost {len(unit.losses)} times, {unit.alone} of them while it ran alone: {ways}"
        failure = Failure("node", message, retryable=False)
        self._record(batch, [(job, lambda job=job: make_failed(job, batch.runner, failure)) for job in unit.body])
        self._finish(batch)

    # ---- jobs -----------------------------------------------------------------------------------------------------

    async def run(self, jobs: Iterable[Job], runner: Runner, record: Record) -> None:
        if self._lost is not None:
            raise self._lost
        batch = _Batch(runner, record)
        batch.source = self._queue.add(self._list_units(jobs, batch))
        self._batches[batch.source] = batch
        try:
            with runner.options.control.watch(lambda: self._follow(batch)):
                self._follow(batch)
                await batch.ended
        finally:
            self._queue.drop(batch.source)
            del self._batches[batch.source]
        if batch.stopped:
            raise batch.stopped[0]

    def _list_units(self, jobs: Iterable[Job], batch: _Batch) -> Iterator[tuple[Jobs, Hashable]]:
        units = list_groups(jobs) if batch.runner.env.judges_groups else ((job,) for job in jobs)
        for unit in units:
            yield tuple(unit), _find_image(unit[0], batch.runner)

    def _follow(self, batch: _Batch) -> None:
        """Do as the control of a batch says now."""
        self._share()
        if batch.is_stopping:
            self._drain(batch)
        self._supply()
        self._finish(batch)

    def _drain(self, batch: _Batch) -> None:
        """Nothing more of a batch begins: workers give back what they have not begun."""
        self._queue.drop(batch.source)
        for node in self._nodes.values():
            if any(unit.source == batch.source for unit in self._queue.list_out(node.node.id)):
                self._say(node, Word(give_back=True))
        self._finish(batch)

    def _finish(self, batch: _Batch) -> None:
        """End a batch of which nothing is left."""
        if not batch.ended.done() and self._queue.is_drained(batch.source):
            batch.ended.set_result(None)

    # ---- leases ---------------------------------------------------------------------------------------------------

    def _share(self) -> None:
        """Divide what runs at once among the nodes."""
        self._mark_waiting()
        working = [id for id, node in self._nodes.items() if not node.draining]
        options = [batch.runner.options for batch in self._batches.values()]
        wanted = sum(0 if each.control.paused else each.at_once for each in options)
        most = max([self._concurrency, *(each.control.concurrency or 0 for each in options)])
        shares = split_evenly(min(most, wanted), working, self._settings.per_node)
        for id, slots in shares.items():
            node = self._nodes[id]
            if slots != node.slots:
                node.slots = slots
                node.changes += 1
                self._say(node, Word(slots=NodeSlots(node.changes, slots)))

    def _mark_waiting(self) -> None:
        """Have it on the board if nothing can run for lack of a node."""
        lacks = bool(self._batches) and not self._nodes
        if lacks and self._mark is None:
            self._mark = enter_phase("node", self._ledger.activity, "a node to work on").__enter__()
        elif self._mark is not None and not lacks:
            self._mark.__exit__()
            self._mark = None

    def _supply(self) -> None:
        """Give all workers what they lack, in turn, so that a few jobs are spread over the nodes."""
        given: dict[str, list[Unit[Jobs]]] = {}
        while True:
            before = sum(map(len, given.values()))
            for id, node in self._nodes.items():
                given.setdefault(id, []).extend(
                    self._queue.give(id, min(self._count_lacking(node), node.slots // 4 + 1))
                )
            if sum(map(len, given.values())) == before:
                break
        for id, units in given.items():
            self._lend(self._nodes[id], units)

    def _rebalance(self) -> None:
        """If a node has nothing to do while another has units that it has not begun, have them given back."""
        nodes = [node for node in self._nodes.values() if not node.draining]
        ahead = {node.node.id: self._queue.count_out(node.node.id) - node.slots for node in nodes}
        if any(missing < 0 for missing in ahead.values()):
            for node in nodes:
                if ahead[node.node.id] > 0:
                    self._say(node, Word(give_back=True))

    def _count_lacking(self, node: _Node) -> int:
        """How many units a worker gets now."""
        window = (
            0 if node.draining else choose_window(node.slots, node.seconds, node.ended, self._settings.lease_seconds)
        )
        free = window - self._queue.count_out(node.node.id)
        return free if free > 0 and is_worth_a_lease(free, window) else 0

    def _lend(self, node: _Node, units: Sequence[Unit[Jobs]]) -> None:
        if units:
            self._call(node, self._take(node, self._make_lease(node, units)))

    async def _take(self, node: _Node, lease: NodeLease) -> None:
        await node.worker.take(encode_lease(lease))
        node.known.update(lease.policies)  # not before: the worker may get a later lease first

    def _make_lease(self, node: _Node, units: Sequence[Unit[Jobs]]) -> NodeLease:
        policies: dict[str, Any] = {}
        names: dict[int, str] = {}
        sources = {id(job): unit.source for unit in units for job in unit.body}
        for job in (job for unit in units for job in unit.body):
            if id(job.policy) not in names:
                self._batches[sources[id(job)]].models[job.policy.model.name] = job.policy.model
                patch = make_patch(job.policy)
                names[id(job.policy)] = name = name_patch(patch)
                if name not in node.known:
                    policies[name] = patch
        wired = tuple(
            WireUnit(
                unit.number,
                tuple(
                    WireJob(job.task, job.replicate, job.seed, names[id(job.policy)], pack_acted(job.acted))
                    for job in unit.body
                ),
            )
            for unit in units
        )
        return NodeLease(wired, policies, NodeSlots(node.changes, node.slots))

    # ---- reports --------------------------------------------------------------------------------------------------

    def _read(self, node: _Node, report: NodeReport) -> None:
        """Act on what a worker reports."""
        id = node.node.id
        for role, totals in report.spent.items():
            self._ledger.book(role, totals)
        for role, amount in report.released.items():
            self._grants.settle(id, role, amount)
        for notice in report.notices:
            self._tell(f"node {node.node.name}: {notice}")
        if report.activity is not None:
            self._ledger.activity.merge(node.node.name, report.activity)
        for request in report.requests:
            self._spawn(self._grant(node, request))
        self._relay(node, report)
        for unit in self._queue.take_back(id, report.returned):
            batch = self._batches.get(unit.source)
            if batch is None or batch.is_stopping:
                self._queue.drop(unit.source)
        if report.returned:
            self._supply()
        for end in report.ends:
            self._end(node, end)
        self._retire_failing()
        for batch in list(self._batches.values()):
            self._finish(batch)
        self._lend(node, self._queue.give(node.node.id, self._count_lacking(node)))

    def _list_usable(self) -> set[str]:
        """The nodes that get work, and those whose worker is still opening."""
        retired = {id for id, node in self._nodes.items() if node.draining}
        return self._keepers.keys() - self._refusals.keys() - retired

    def _move(self, node: _Node, end: UnitEnd) -> bool:
        """Have a unit without a slot run on another node, if there is one."""
        node.unplaced = node.unplaced + 1 if end.unplaced else 0
        if not end.unplaced:
            return False
        node.why_unplaced = end.unplaced
        return bool(self._list_usable() - {node.node.id}) and self._queue.move(node.node.id, end.number)

    def _retire_failing(self) -> None:
        """A node on which one slot after the other fails while others work gets no more: it would turn the whole queue
        into failures."""
        working = [node for node in self._nodes.values() if not node.draining]
        if not any(node.ended and not node.unplaced for node in working):
            return
        for node in working:
            if node.unplaced >= UNPLACED:
                name = node.node.name
                self._stop_lending(
                    node, f"node {name}: slot after slot fails there, so it gets no more work: {node.why_unplaced}"
                )
                self._say(node, Word(give_back=True))

    def _end(self, node: _Node, end: UnitEnd) -> None:
        if self._move(node, end):
            return
        unit = self._queue.end(node.node.id, end.number)
        batch = self._batches.get(unit.source) if unit is not None else None
        node.ended += 1
        node.seconds = end.seconds if node.seconds is None else 0.9 * node.seconds + 0.1 * end.seconds
        if unit is None or batch is None:
            return
        if end.stop is not None:
            error = make_error(end.stop, node.node.name)
            if end.stop.kind not in DRAINS:
                batch.fail(error)
            elif not batch.stopped:
                batch.stopped.append(error)
                self._drain(batch)
            return
        store, options = batch.runner.store, batch.runner.options
        kept = {name: store.keep_files(files, options.keep_files) for name, files in decode_files(end.files).items()}
        pairs = zip(unit.body, end.rollouts, strict=True)
        self._record(
            batch, [(job, lambda job=job, data=data: read_rollout(data, job.task, kept)) for job, data in pairs]
        )

    def _record(self, batch: _Batch, ended: Sequence[tuple[Job, Callable[[], Any]]]) -> None:
        """Record rollouts. An error of the store, or of whoever records, ends the batch."""
        try:
            for job, read in ended:
                batch.record(job, read())
        except BaseException as error:
            batch.fail(error)

    # ---- the budget -----------------------------------------------------------------------------------------------

    async def _grant(self, node: _Node, request: GrantRequest) -> None:
        """Reserve a slice of the budget for a worker, and tell it."""
        id = node.node.id
        try:
            amount = await self._grants.grant(id, request, len(self._nodes))
        except BudgetExhausted as error:
            self._say(node, Word(refused=(request.number, describe_stop(error))))
            return
        if self._nodes.get(id) is not node:  # it was lost meanwhile
            self._grants.lose(id)
            return
        self._say(node, Word(granted=(request.number, amount)))

    def _recall(self) -> None:
        """A call waits for what workers hold: they return what they do not use."""
        for node in self._nodes.values():
            self._say(node, Word(recall=True))

    # ---- models of this process -----------------------------------------------------------------------------------

    def _relay(self, node: _Node, report: NodeReport) -> None:
        """Ask the models of this process what a node asks them."""
        self._desk.drop(node.node.id, report.dropped)
        for number, request in report.asked:
            node.asked[number] = self._spawn(self._answer(node, number, request))
        for number in report.cancelled:
            if number in node.asked:
                node.asked[number].cancel()

    async def _answer(self, node: _Node, number: int, request: bytes) -> None:
        try:
            reply = await self._desk.answer(node.node.id, request)
        finally:
            node.asked.pop(number, None)
        self._say(node, Word(replied=(number, reply)))

    def _find_model(self, name: str) -> Model | None:
        return next((batch.models[name] for batch in self._batches.values() if name in batch.models), None)

    # ---- calls ----------------------------------------------------------------------------------------------------

    def _say(self, node: _Node, word: Word) -> None:
        self._call(node, node.worker.hear(encode(word)))

    def _call(self, node: _Node, call: Any) -> None:
        self._spawn(self._watch_call(node, call))

    async def _watch_call(self, node: _Node, call: Any) -> None:
        try:
            await call
        except WorkerLost:  # the stream of its reports says so too
            pass
        except LudusError as error:
            self._fail_all(error)

    def _fail_all(self, error: BaseException) -> None:
        for batch in list(self._batches.values()):
            batch.fail(error)

    def _spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _add_work(facts: NodeFacts, node: _Node) -> NodeFacts:
    """The facts of a node with what its worker has done."""
    seconds = facts.seconds + time.monotonic() - node.opened
    return msgspec.structs.replace(facts, units=facts.units + node.ended, seconds=seconds)


def _find_image(job: Job, runner: Runner) -> Hashable:
    """The image of a task's slot; None if it has none of its own."""
    if runner.env.sandbox is None:
        return None
    return runner.make_spec(job.task).image
