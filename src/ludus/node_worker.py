"""The worker of an engine on one node: opens everything from the settings, and runs the leases that it is given.

    NodeOrder ──> variables, files, settings ──> environment, model, slots ──> the proof is compared ──> open
    NodeLease ──> units ──> run_unit (as in the local engine) ──> NodeReport

It knows nothing of the cluster: an engine makes a `NodeWorker` in a process on the node and calls its methods. Live
objects do not travel. A worker whose version, environment or policy is not the driver's refuses to work. The process
belongs to one run and ends with it.
"""

import asyncio
import itertools
import os
import tempfile
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from ludus import __version__
from ludus.activity import ActivityReport
from ludus.config import Config, assemble
from ludus.config.build_agent import build_env
from ludus.config.build_engine import hash_file
from ludus.config.reading import Layer
from ludus.config.secrets import set_variables
from ludus.engine import drop_content, run_unit
from ludus.engines.relay import RelayLine, RelayModel
from ludus.engines.slice_ledger import SliceLedger
from ludus.engines.wire import (
    SENT,
    GrantRequest,
    NodeHello,
    NodeLease,
    NodeOrder,
    NodeProof,
    NodeReport,
    NodeSlots,
    OrderHead,
    PolicyPatch,
    UnitEnd,
    WireUnit,
    decode_lease,
    decode_word,
    describe_stop,
    encode,
    encode_files,
    encode_rollout,
    find_difference,
    find_unplaced,
    make_error,
    prove,
    unpack_acted,
)
from ludus.errors import ConfigError, LudusError, describe_error
from ludus.models import Model
from ludus.models.ledger import Amount, Ledger
from ludus.models.no_model import NoModel
from ludus.policy import Policy
from ludus.run import Tell, open_agent_model, open_judging, open_parts
from ludus.runner import Job, Runner
from ludus.sandbox.file_tree import CollectedFiles, KeptSizes, measure_files
from ludus.sources import open_agent
from ludus.store import MemoryStore
from ludus.types import Rollout

LOOK_SECONDS = 2.0
"""How often a report says what is under way."""
PAUSE = 0.02
"""Seconds between reports, so that short rollouts share one."""


class FileStore(MemoryStore):
    """In place of the run's store: keeps the files of agents until they are sent to it."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._files: dict[str, CollectedFiles] = {}

    def keep_files(self, files: CollectedFiles, sizes: KeptSizes) -> str:
        if measure_files(files) > sizes.rollout:
            return ""
        name = f"{SENT}{next(self._numbers)}"
        self._files[name] = files
        return name

    def take_files(self, rollouts: list[Rollout]) -> dict[str, CollectedFiles]:
        """The files of rollouts that have ended."""
        names = [rollout.files for rollout in rollouts]
        return {name: self._files.pop(name) for name in names if name in self._files}


@dataclass
class _Outbox:
    """What the next report will have."""

    ends: list[UnitEnd] = field(default_factory=list[UnitEnd])
    returned: list[int] = field(default_factory=list[int])
    requests: list[GrantRequest] = field(default_factory=list[GrantRequest])
    asked: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    cancelled: list[int] = field(default_factory=list[int])
    notices: list[str] = field(default_factory=list[str])
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class NodeWorker:
    """Runs the jobs of one run on one node."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._box = _Outbox()
        self._waiting: deque[WireUnit] = deque()
        self._patches: dict[str, PolicyPatch] = {}
        self._policies: dict[str, Policy] = {}
        self._line = RelayLine(self._send)
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._busy = 0
        self._slots = NodeSlots(-1, 0)
        self._looked = 0.0
        self._closing = False
        self._requests: dict[int, tuple[str, asyncio.Future[Amount]]] = {}
        self._numbers = itertools.count(1)
        self._store = FileStore()
        self._runner: Runner
        self._policy: Policy
        self._ledger: SliceLedger

    # ---- opening and closing --------------------------------------------------------------------------------------

    async def open(self, data: bytes) -> bytes:
        """Open what rollouts are run with. Returns a `NodeHello`."""
        head = msgspec.msgpack.decode(data, type=OrderHead)
        if head.version != __version__:
            return encode(NodeHello(refusal=f"it has Ludus {__version__}, and the driver has {head.version}"))
        try:
            await self._open(msgspec.msgpack.decode(data, type=NodeOrder))
        except LudusError as error:
            await self._stack.aclose()
            return encode(NodeHello(refusal=str(error)))
        except Exception as error:  # of the user's code, or a bug: the driver says on which node
            await self._stack.aclose()
            return encode(NodeHello(refusal=describe_error(error)))
        return encode(NodeHello(pid=os.getpid()))

    async def _open(self, order: NodeOrder) -> None:
        set_variables(order.variables)
        os.chdir(_place_files(order, self._stack))
        config = assemble([Layer("the driver's settings", dict(order.settings))])
        env = build_env(config)
        self._ledger = SliceLedger(config.budget, self._ask)
        if order.judges:
            runner = await self._stack.enter_async_context(
                open_judging(config, env, self._add_notice, ledger=self._ledger)
            )
            self._policy, self._runner = Policy(NoModel()), replace(runner, store=self._store)
            self._compare(order, prove(env, None))
            return
        parts = await self._stack.enter_async_context(
            open_parts(
                config,
                env,
                open_model=partial(self._open_model, order.relay),
                open_agent=open_agent,
                ledger=self._ledger,
                tell=self._add_notice,
            )
        )
        self._policy = parts.policy
        self._runner = replace(parts.runner, store=self._store)
        self._compare(order, prove(env, parts.policy))

    def _compare(self, order: NodeOrder, proof: NodeProof) -> None:
        if difference := find_difference(order.proof, proof):
            raise ConfigError(difference)

    def _add_notice(self, notice: str) -> None:
        self._box.notices.append(notice)

    async def _open_model(self, relay: str, config: Config, ledger: Ledger, stack: AsyncExitStack, tell: Tell) -> Model:
        """The model of the settings, or the driver's."""
        if relay:
            return self._line.open_model(relay)
        return await open_agent_model(config, ledger, stack, tell)

    async def close(self) -> None:
        """End what runs and everything that was opened."""
        self._closing = True
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stack.aclose()
        self._box.changed.set()

    # ---- what the driver says -------------------------------------------------------------------------------------

    async def take(self, data: bytes) -> None:
        """Take a lease. What is in it begins when there is room."""
        lease: NodeLease = decode_lease(data)
        self._set_slots(lease.slots)
        self._patches.update(lease.policies)
        self._waiting.extend(lease.units)
        self._begin()

    def _set_slots(self, slots: NodeSlots) -> None:
        if slots.number > self._slots.number:
            self._slots = slots

    async def hear(self, data: bytes) -> None:
        """Act on a `Word`."""
        word = decode_word(data)
        if word.slots is not None:
            self._set_slots(word.slots)
            self._begin()
        if word.give_back:
            self._box.returned += [unit.number for unit in self._waiting]
            self._waiting.clear()
            self._box.changed.set()
        if word.recall:
            self._ledger.return_unused()
            self._box.changed.set()
        if word.replied is not None and (call := self._calls.get(word.replied[0])) and not call.done():
            call.set_result(word.replied[1])
        if word.granted is not None:
            self._answer(*word.granted)
        if word.refused is not None:
            self._answer(word.refused[0], make_error(word.refused[1], ""))

    def _answer(self, number: int, answer: Amount | LudusError) -> None:
        role, request = self._requests.pop(number)
        if request.done():  # its call was cancelled meanwhile
            if isinstance(answer, Amount):
                self._ledger.release(role, answer)
                self._box.changed.set()
        elif isinstance(answer, Amount):
            request.set_result(answer)
        else:
            request.set_exception(answer)

    async def _send(self, request: bytes) -> bytes:
        """Ask a model of the driver."""
        number = next(self._numbers)
        self._calls[number] = call = asyncio.get_running_loop().create_future()
        self._box.asked.append((number, request))
        self._box.changed.set()
        try:
            return await call
        except asyncio.CancelledError:
            self._box.cancelled.append(number)
            self._box.changed.set()
            raise
        finally:
            del self._calls[number]

    def _find_policy(self, name: str) -> Policy:
        if name not in self._policies:
            self._policies[name] = self._make_policy(self._patches[name])
        return self._policies[name]

    def _make_policy(self, patch: PolicyPatch) -> Policy:
        agent, own = self._policy.agent, self._policy.sampling
        base = self._policy
        if isinstance(base.model, RelayModel):
            base = base.use_model(self._line.open_model(patch.model))
        policy = replace(
            base,
            skill=patch.skill,
            library=patch.library,
            sampling=own if patch.sampling == own else patch.sampling,  # records leave out the default itself, no copy
            limits=patch.limits,
            system=patch.system,
            toolsets=patch.toolsets,
            skipped=patch.skipped,
            skill_as=patch.skill_as,
            examples_as=patch.examples_as,
            agent=agent.use_stage(patch.stage) if agent and patch.stage else agent,
        )
        if policy.fingerprint != patch.fingerprint:
            raise ConfigError(
                f"engine: the policy of a job cannot be made on a node: it is {patch.fingerprint} of the model "
                f"{patch.model} here, and {policy.fingerprint} of {policy.model_name} there"
            )
        return policy

    async def _ask(self, role: str, amount: Amount) -> Amount:
        """Ask the driver for a part of the budget."""
        number = next(self._numbers)
        asked: asyncio.Future[Amount] = asyncio.get_running_loop().create_future()
        self._requests[number] = (role, asked)
        self._box.requests.append(GrantRequest(number, role, amount))
        self._box.changed.set()
        return await asked

    # ---- running --------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin units while there is room."""
        while self._waiting and self._has_room(len(self._waiting[0].jobs)):
            unit = self._waiting.popleft()
            self._busy += len(unit.jobs)
            self._running[unit.number] = asyncio.create_task(self._run(unit))

    def _has_room(self, rollouts: int) -> bool:
        """Whether so many more may run. A group that is larger than the room for it runs alone."""
        slots = self._slots.rollouts
        return slots > 0 and (self._busy == 0 or self._busy + rollouts <= slots)

    async def _run(self, unit: WireUnit) -> None:
        started = time.monotonic()
        try:
            jobs = [
                Job(
                    job.task,
                    self._find_policy(job.policy),
                    job.replicate,
                    job.seed,
                    acted=unpack_acted(job.acted, job.task),
                )
                for job in unit.jobs
            ]
            rollouts = list(await run_unit(jobs, self._runner))
            files = encode_files(self._store.take_files(rollouts))
            ended = tuple(_encode(rollout) for rollout in rollouts)
            unplaced = find_unplaced(rollouts)
            end = UnitEnd(unit.number, time.monotonic() - started, ended, files, unplaced=unplaced)
        except Exception as error:  # one that stops the run: the driver decides what becomes of the others
            end = UnitEnd(unit.number, time.monotonic() - started, stop=describe_stop(error))
        self._box.ends.append(end)
        self._box.changed.set()
        self._busy -= len(unit.jobs)
        del self._running[unit.number]
        self._begin()

    # ---- reports --------------------------------------------------------------------------------------------------

    async def reports(self, most: int) -> AsyncGenerator[bytes, None]:
        """The next reports of what happens here, or fewer if the worker is closed."""
        for _ in range(most):
            if self._closing:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._box.changed.wait()
            if not self._box.requests and not self._box.asked:
                await asyncio.sleep(PAUSE)
            yield encode(self._take_report())

    def _take_report(self) -> NodeReport:
        box, self._box = self._box, _Outbox()
        spent, released = self._ledger.take_changes()
        dropped, self._line.dropped = self._line.dropped, []
        return NodeReport(
            ends=tuple(box.ends),
            returned=tuple(box.returned),
            spent=spent,
            released=released,
            requests=tuple(box.requests),
            asked=tuple(box.asked),
            cancelled=tuple(box.cancelled),
            dropped=tuple(dropped),
            notices=tuple(box.notices),
            activity=self._look(),
        )

    def _look(self) -> ActivityReport | None:
        """What is under way here, from time to time."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS / 2:
            return None
        self._looked = now
        return self._ledger.activity.report()


def _encode(rollout: Rollout) -> bytes:
    try:
        return encode_rollout(rollout)
    except Exception as error:  # it cannot be written as JSON: its conversation is dropped, as in the local engine
        return encode_rollout(drop_content(rollout, error))


# ---- files --------------------------------------------------------------------------------------------------------


def _place_files(order: NodeOrder, stack: AsyncExitStack) -> Path:
    """The working folder: the driver's own, if this node has it with the same files, or one that has what was sent."""
    own = Path(order.folder)
    lacking = [name for name, digest in order.digests.items() if hash_file(own / name) != digest]
    if own.is_dir() and not lacking:
        return own
    absent = [name for name in order.digests if name not in order.files and not Path(name).is_absolute()]
    absent += [name for name in lacking if Path(name).is_absolute()]
    if absent:
        raise ConfigError(_describe_absent(own / absent[0], absent))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ludus-node-")))
    for name, data in order.files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return folder


def _describe_absent(path: Path, absent: list[str]) -> str:
    more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
    state = "is another file than the driver's" if path.exists() else "is not there"
    return f"{path}{more} {state}: put it there, or name it by a path below the folder that you start Ludus in"
