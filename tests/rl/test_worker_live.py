"""The worker against real servers: `ludus api` here, and atroposlib's `run-api` with `make test-atropos`.

LUDUS_TEST_ATROPOS is a virtual environment with atroposlib.
"""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli_kit import LUDUS
from tests.worker_kit import COINS, list_words

from ludus.rl.worker_journal import WorkerJournal
from ludus.store import RunDir

ROOT = Path(__file__).parent.parent.parent
ATROPOS = os.environ.get("LUDUS_TEST_ATROPOS", "")
SECONDS = 120
BATCH = 8


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coins.py").write_text(COINS)
    return tmp_path


def find_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def start(*words: str) -> subprocess.Popen:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with Path("log").open("ab") as log:
        return subprocess.Popen([*words], stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": paths})


class Server:
    """A trajectory server in a process of its own, and a trainer that takes batches from it."""

    def __init__(self, words: Callable[[int], list[str]]) -> None:
        self._words = words
        self.port = find_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.batches: list[list[dict[str, Any]]] = []
        self.start()

    def start(self) -> None:
        self.process = start(*self._words(self.port))
        poll(self._is_up)

    def _is_up(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ask(self, path: str, fields: dict[str, Any] | None = None) -> Any:
        """The reply; None if there is no server."""
        data = json.dumps(fields).encode() if fields is not None else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return json.load(reply)
        except (urllib.error.URLError, ConnectionError):
            return None

    def register(self, steps: int) -> None:
        fields = {"wandb_group": "g", "wandb_project": "p", "batch_size": BATCH, "max_token_len": 64}
        fields |= {"checkpoint_dir": "", "save_checkpoint_interval": 0, "starting_step": 0, "num_steps": steps}
        assert "uuid" in self.ask("/register", fields)

    def take_batch(self) -> bool:
        reply = self.ask("/batch")
        if not reply or not reply["batch"]:
            return False
        self.batches.append(reply["batch"])
        return True

    def take_batches(self, count: int) -> None:
        for _ in range(count):
            poll(self.take_batch)


def poll(condition: Callable[[], bool]) -> None:
    """Ask until it is so."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, Path("log").read_text()[-3000:]
        time.sleep(0.02)


@contextmanager
def serve(words: Callable[[int], list[str]]) -> Generator[Server]:
    server = Server(words)
    try:
        yield server
    finally:
        server.kill()


def serve_ours(folder: Path, *more: str):
    return serve(lambda port: [*LUDUS, "api", "--port", str(port), "--data", str(folder / "api"), *more])


def wait_for_end(worker: subprocess.Popen) -> None:
    assert worker.wait(SECONDS) == 0, Path("log").read_text()[-3000:]


def count_sent() -> int:
    with RunDir.open(Path("run"), json.loads(Path("run/config.json").read_text()), resume=True) as run:
        journal = WorkerJournal(run)
        assert journal.list_open() == []
        return journal.count_verdicts()["sent"]


def check_groups(server: Server) -> None:
    for batch in server.batches:
        assert sum(len(group["tokens"]) for group in batch) == BATCH
        for group in batch:
            assert len(group) == 14
            assert [ids[3] - 10 for ids in group["tokens"]] == group["scores"]
            assert group["masks"] == [[-100, -100, -100, *ids[3:]] for ids in group["tokens"]]
            assert group["inference_logprobs"] == [[1.0, 1.0, 1.0, -0.7, -0.1]] * 4
            assert group["generation_params"]["policy_version"] >= 0
            assert group["env_id"] >= 0


def test_groups_reach_a_trainer_through_our_server(folder: Path):
    with serve_ours(folder) as server:
        server.register(5)
        assert not server.take_batch()  # opens the gate for environments
        worker = start(*LUDUS, *list_words(server.url))
        server.take_batches(5)
        wait_for_end(worker)
        check_groups(server)
        waiting = server.ask("/status")["queue_size"]
    assert count_sent() == sum(map(len, server.batches)) + waiting


def test_kills_of_server_and_worker_lose_nothing_and_double_nothing(folder: Path):
    """The server is killed and comes back with its data; then the worker is killed and resumed. Every group that the
    worker has sent is in exactly one batch, or still waits."""
    with serve_ours(folder) as server:
        server.register(8)
        server.take_batch()
        worker = start(*LUDUS, *list_words(server.url))
        server.take_batches(2)
        server.kill()
        server.start()
        server.take_batches(2)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        while server.take_batch():
            pass
        worker = start(*LUDUS, *list_words(server.url, "--resume"))
        server.take_batches(8 - len(server.batches))
        wait_for_end(worker)
        check_groups(server)
        waiting = server.ask("/status")["queue_size"]
    assert count_sent() == sum(map(len, server.batches)) + waiting


def test_a_wrong_token_for_our_server_is_named(folder: Path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "t0p-secret-token")
    monkeypatch.setenv("WRONG_TOKEN", "an0ther-secret-token")
    with serve_ours(folder, "--api.token_var", "API_TOKEN") as server:
        worker = start(*LUDUS, *list_words(server.url, "--serve.token_var", "WRONG_TOKEN"))
        assert worker.wait(SECONDS) == 2
    assert "serve.token_var" in Path("log").read_text() and "secret-token" not in Path("log").read_text()


# ---- atroposlib ---------------------------------------------------------------------------------------------------

needs_atropos = pytest.mark.skipif(not ATROPOS, reason="LUDUS_TEST_ATROPOS is not set (make test-atropos)")


def serve_atropos():
    return serve(lambda port: [f"{ATROPOS}/bin/run-api", "--host", "127.0.0.1", "--port", str(port)])


@needs_atropos
def test_groups_reach_a_trainer_through_atroposlib(folder: Path):
    with serve_atropos() as server:
        server.register(5)
        server.take_batch()
        worker = start(*LUDUS, *list_words(server.url))
        server.take_batches(5)
        wait_for_end(worker)
        check_groups(server)
        waiting = server.ask("/status")["queue_size"]
    assert count_sent() == sum(map(len, server.batches)) + waiting


@needs_atropos
def test_the_worker_registers_again_when_atroposlib_was_restarted(folder: Path):
    """A restart loses what the server had: its queue, its trainer and its workers."""
    with serve_atropos() as server:
        server.register(50)
        server.take_batch()
        worker = start(*LUDUS, *list_words(server.url))
        server.take_batches(2)
        server.kill()
        server.start()
        server.register(3)
        server.take_batch()
        server.batches.clear()
        server.take_batches(3)
        wait_for_end(worker)
        check_groups(server)
    assert "registering again" in Path("log").read_text()


@needs_atropos
def test_rows_of_branched_rollouts_reach_the_trainer_with_their_advantages(folder: Path):
    """Wire groups of one row are combined by atroposlib to full groups, and none is stuck."""
    text = COINS + BRANCHED
    (folder / "coins.py").write_text(text)
    with serve_atropos() as server:
        server.register(4)
        server.take_batch()
        words = [word.replace("coins.py:Counted", "coins.py:Branching") for word in list_words(server.url)]
        worker = start(*LUDUS, *words)
        server.take_batches(4)
        wait_for_end(worker)
    for group in (group for batch in server.batches for group in batch):
        assert len(group["tokens"]) == 1  # every rollout has two rows
        (advantage,), (spread,) = group["scores"], group["advantages"]
        assert spread == [advantage if mask != -100 else 0.0 for mask in group["masks"][0]]
        assert (advantage > 0) == (group["overrides"][0]["reward"] == 1.0)


BRANCHED = '''

from ludus.types import Call, Completion, Message, Splice, Tokens, Usage
from ludus.models.scripted import call


class Branching(Counted):
    """Calls a tool that does not exist, then answers; the second prompt drops the first reply."""

    async def complete(self, messages, tools, sampling):
        if messages[-1].role == "user":
            tokens = Tokens((1, 2, 3, 9), (False, False, False, True), (None, None, None, -0.3))
            made = Message("assistant", "", (Call("1", "nothing", "{}"),))
            return Completion(made, usage=Usage(3, 1), tokens=tokens)
        sampled = await super().complete(messages, tools, sampling)
        yes = sampled.tokens.ids[3]
        tokens = Tokens((7, yes), (False, True), (None, -0.7))
        return Completion(sampled.message, usage=Usage(4, 1), tokens=tokens, splice=Splice(0, 3))
'''
