"""A trajectory server for tests of workers, an environment of coins, and a model with exact tokens.

`TrajectoryServer` speaks the part of Atropos' wire that workers use, as the real server does (docs/rl.md): it wants the
trainer first, reads the id of `/status-env` from the body of the GET, and forgets everything when it is restarted. With
`durable` it is like `ludus api`: it keeps its workers and accepts every idempotency key once.
"""

import asyncio
import gzip
import json
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tests.http_kit import Loopback, Request

from ludus.batch import Batch, load_tasks
from ludus.control import RunControl
from ludus.env import Env
from ludus.policy import Policy
from ludus.rl.atropos_client import AtroposClient
from ludus.rl.worker import Worker, WorkerPlan
from ludus.rl.worker_settings import ServeSettings
from ludus.runner import Runner, RunOptions
from ludus.sandbox import SandboxSpec
from ludus.store import RunDir
from ludus.trackers import METRICS, TrackerSet
from ludus.types import Completion, Message, Rollout, Sampling, Score, Task, Tokens, Usage


class Coins(Env, frozen=True):
    """Say yes."""

    name: ClassVar[str] = "coins"
    sandbox: ClassVar[SandboxSpec | None] = None
    size: int = 5

    def tasks(self, split: str):
        for n in range(self.size):
            yield Task(id=f"coin-{n}", prompt=f"coin {n}", split=split, answer="yes")

    async def verify(self, rollout: Rollout, box: object) -> Score:
        return Score.of(float(rollout.answer == "yes"))


class CoinModel:
    """Says yes or no by the seed of the request. `before` is called before each reply."""

    name = "coin"

    def __init__(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        self.before = before
        self.calls = 0

    async def complete(self, messages: Any, tools: Any, sampling: Sampling) -> Completion:
        self.calls += 1
        if self.before is not None:
            await self.before()
        yes = (sampling.seed or 0) % 2
        tokens = Tokens((1, 2, 3, 10 + yes, 4), (False, False, False, True, True), (None, None, None, -0.7, -0.1))
        return Completion(Message("assistant", "yes" if yes else "no"), usage=Usage(3, 2), tokens=tokens)

    async def close(self) -> None:
        pass


class TrajectoryServer:
    """State and answers of the server. A batch is taken as soon as there is one, if `train` is set."""

    def __init__(
        self, *, batch_size: int = 8, num_steps: int = 4, max_token_len: int = 64, durable: bool = False
    ) -> None:
        self.batch_size, self.num_steps, self.max_token_len = batch_size, num_steps, max_token_len
        self.durable = durable
        self.train = True
        self.started = True
        """Whether the trainer has asked for its first batch."""
        self.token = ""
        self.envs: list[dict[str, Any]] = []
        self.step = 0
        self.queue: list[dict[str, Any]] = []
        self.batches: list[list[dict[str, Any]]] = []
        self.posts: list[tuple[str, list[dict[str, Any]]]] = []
        """Every post that was answered: its key and its groups."""
        self.keys: list[str] = []
        """The keys of the posts that were accepted."""
        self.disconnected: list[int] = []
        self.looks = 0
        self.on_post: Callable[[int], Awaitable[tuple[int, str] | str | None]] | None = None
        """Called with the number of each post, from 1, before it is accepted. Returns a status and a body to answer
        with instead; `lose`: accept, and close the connection without an answer; None: accept."""
        self.changed = asyncio.Event()

    def serve(self, port: int = 0) -> Loopback:
        return Loopback(self._handle, at=port)

    def restart(self) -> None:
        """What a restart of Atropos' server leaves: nothing. The trainer registers again at once."""
        self.envs, self.queue, self.step = [], [], 0

    async def wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def _handle(self, request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        answer = await self._answer(request)
        self.changed.set()
        if answer is None:
            return None
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        more = "X-Ludus-Server: 1\r\n" if self.durable else ""
        return f"HTTP/1.1 {status} S\r\n{more}Content-Length: {len(data)}\r\n\r\n".encode() + data

    async def _answer(self, request: Request) -> Any:
        path = request.path.partition("?")[0]
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return 401, "wrong token"
        body = request.body
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        fields: Any = json.loads(body) if body else None
        match request.method, path:
            case "POST", "/register-env":
                return self._register(fields)
            case "POST", "/disconnect-env":
                self.disconnected.append(fields["env_id"])
                return {"status": "success"}
            case "GET", "/info":
                return {"batch_size": self.batch_size, "max_token_len": self.max_token_len}
            case "GET", "/wandb_info":
                return {"group": "g", "project": "p"}
            case "GET", "/status-env":
                return self._report(fields["env_id"])
            case "POST", "/scored_data" | "/scored_data_list":
                groups = fields if path.endswith("_list") else [fields]
                return await self._accept(request.headers["x-ludus-idempotency-key"], groups)
        return 404, "not found"

    def _register(self, fields: dict[str, Any]) -> Any:
        if not self.started:
            return {"status": "wait for trainer to start"}
        self.envs.append(fields)
        return {
            "status": "success",
            "env_id": len(self.envs) - 1,
            "wandb_name": f"{fields['desired_name']}_{len(self.envs) - 1}",
            "checkpoint_dir": "",
            "starting_step": self.step,
            "checkpoint_interval": 0,
            "num_steps": self.num_steps,
        }

    def _report(self, env_id: int) -> Any:
        self.looks += 1
        if env_id >= len(self.envs):
            return 500, "Internal Server Error"
        size = self.envs[env_id]["group_size"]
        rows = sum(len(group["tokens"]) for group in self.queue)
        return {
            "current_step": self.step,
            "queue_size": rows // size,
            "unallocated_fraction": 1.0,
            "self_queue_size": rows // size,
            "max_group_size": size,
            "env_weight": 1.0,
        }

    async def _accept(self, key: str, groups: list[dict[str, Any]]) -> Any:
        self.posts.append((key, groups))
        instead = await self.on_post(len(self.posts)) if self.on_post is not None else None
        if instead is not None and instead != "lose":
            return instead
        if not (self.durable and key in self.keys):
            self.keys.append(key)
            self.queue += groups
        while self.train and sum(len(group["tokens"]) for group in self.queue) >= self.batch_size:
            self._take_batch()
        return None if instead == "lose" else {"status": "received"}

    def _take_batch(self) -> None:
        batch: list[dict[str, Any]] = []
        while sum(len(group["tokens"]) for group in batch) < self.batch_size:
            batch.append(self.queue.pop(0))
        self.batches.append(batch)
        self.step += 1


def make_plan(
    folder: Path, model: Any, control: RunControl | None = None, *, size: int = 4, resume: bool = False, **settings: Any
) -> WorkerPlan:
    """A plan for a worker on `Coins`, with a run directory that the caller closes."""
    env = Coins()
    evals = load_tasks(env, "test", 2) if settings.get("eval_every") else ()
    options = RunOptions(concurrency=4 * size, retries=0, control=control or RunControl())
    return WorkerPlan(
        Batch(load_tasks(env, "train"), Policy(model), size),
        Runner(env, store=RunDir.open(folder, {}, resume=resume), options=options),
        ServeSettings(**{"poll_seconds": 0.005, "drain_seconds": 0.05, **settings}),
        evals,
    )


class Ran:
    """A worker that has ended, and what it told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.report: Any = None
        self._changed = asyncio.Event()

    def tell(self, message: str) -> None:
        self.told.append(message)
        self._changed.set()

    async def wait_for(self, words: str) -> None:
        """Wait until it has told something with these words."""
        async with asyncio.timeout(60):
            while not any(words in told for told in self.told):
                self._changed.clear()
                await self._changed.wait()


async def run_worker(plan: WorkerPlan, url: str, *, token: str = "", ran: Ran | None = None) -> Ran:
    """Run a worker to its end."""
    ran = ran or Ran()
    client = AtroposClient(url, token=token)
    directory = get_directory(plan)
    trackers = TrackerSet([], lambda line: directory.append(METRICS, line), ran.tell)
    try:
        with directory:
            ran.report = await Worker(plan, client, trackers, tell=ran.tell).run()
    finally:
        await client.close()
    return ran


def get_directory(plan: WorkerPlan) -> RunDir:
    assert isinstance(plan.runner.store, RunDir)
    return plan.runner.store


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]


# ---- the command --------------------------------------------------------------------------------------------------

COINS = '''
"""An environment of coins, and a model that answers with exact tokens."""

import os
import signal
from pathlib import Path

from tests.worker_kit import CoinModel, Coins as _Coins


class Coins(_Coins, frozen=True):
    """Say yes."""


class Counted(CoinModel):
    """Notes every call, and ends the process, as a power cut would, at the call that the file `kill` names."""

    async def complete(self, messages, tools, sampling):
        with Path("calls").open("a") as file:
            file.write(".")
        if Path("kill").exists() and Path("calls").stat().st_size == int(Path("kill").read_text()):
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().complete(messages, tools, sampling)
'''


def list_words(url: str, *more: str) -> list[str]:
    """The words of a command that serves coins of `coins.py`."""
    words = ["serve", "coins.py:Coins", "--server", url, "--out", "run", "--env.group_size", "4"]
    words += ["--model.type", "coins.py:Counted", "--run.concurrency", "8", "--serve.poll_seconds", "0.01"]
    return [*words, "--serve.max_batches_offpolicy", "1", *more]


@contextmanager
def serve_in_thread(server: TrajectoryServer) -> Generator[str]:
    """Serve beside code that is not asynchronous. Yields the URL."""
    started, url = threading.Event(), ""
    loop = asyncio.new_event_loop()

    async def main() -> None:
        nonlocal url
        async with server.serve() as served:
            url = served.url
            started.set()
            await ended.wait()

    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    started.wait()
    try:
        yield url
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
