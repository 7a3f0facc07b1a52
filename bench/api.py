"""Measure the trajectory server, and compare it with that of atroposlib 0.4.0 in the same run.

    $ python bench/api.py              Ludus, and atroposlib if it is installed
    $ python bench/api.py --peers      install atroposlib first (about 1 GB, once)
    $ python bench/api.py --short      little of everything, as a test of the script

Both servers run in a process of their own, started by their own command, and get the same bytes from the same load
generator on loopback: 16 posters, groups of 8 sequences with tokens, masks, logprobs and messages, not compressed. Then
a trainer takes batches of 64 sequences. Ludus writes every group to its log before it answers.

Two more runs for Ludus alone: 64 environments and 8 trainers at once (every group must arrive exactly once), and a
million groups of 8 × 8 ids, during which the memory of the server must stay flat. All of it takes about 10 minutes.
"""

import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from common import (
    Check,
    CommandFailed,
    describe_machine,
    find_venv,
    make_rounds_parser,
    make_venv,
    print_verdict,
    render_table,
)

PEER = "atroposlib"
REQUIREMENTS = ("atroposlib==0.4.0",)
LENGTHS = (128, 512, 2048, 8192, 32768)
ROWS, BATCH, POSTERS = 8, 64, 16
ENVIRONMENTS, TRAINERS = 64, 8
MIN_RATE, MAX_BATCH_MS, MIN_LEAD, MAX_GROWTH = 2000.0, 20.0, 10.0, 1.2
START_SECONDS = 90.0


# ---- requests -----------------------------------------------------------------------------------------------------


def build_group(length: int, seed: int, env_id: int | None = None) -> dict[str, object]:
    """A group as environments send it. A quarter of each row is the prompt."""
    draw = random.Random(seed)
    tokens = [[draw.randrange(50_000) for _ in range(length)] for _ in range(ROWS)]
    prompt = length // 4
    return {
        "tokens": tokens,
        "masks": [[-100] * prompt + row[prompt:] for row in tokens],
        "scores": [draw.random() for _ in range(ROWS)],
        "inference_logprobs": [
            [1.0] * prompt + [round(-3 * draw.random(), 4) for _ in range(length - prompt)] for _ in range(ROWS)
        ],
        "messages": [
            [{"role": "user", "content": "x" * 100}, {"role": "assistant", "content": "y" * (2 * length)}]
            for _ in range(ROWS)
        ],
        "env_id": env_id,
    }


def build_request(method: str, path: str, value: object = None) -> bytes:
    body = b"" if value is None else json.dumps(value).encode()
    lines = ("Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}")
    head = "\r\n".join((f"{method} {path} HTTP/1.1", *lines))
    return head.encode() + b"\r\n\r\n" + body


class Link:
    """One connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> bytes:
        """Send a request. Returns the body of the reply, which must have the status 200."""
        self._socket.sendall(request)
        data = self._socket.recv(1 << 20)
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, rest = data.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        parts, got = [rest], len(rest)
        while got < size:
            parts.append(self._receive())
            got += len(parts[-1])
        body = b"".join(parts)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head[:40]!r}: {body[:200]!r}")
        return body

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise RuntimeError("the server closed the connection")
        return data

    def close(self) -> None:
        self._socket.close()


def start_run(port: int, length: int, *, batch: int = BATCH, environments: int = 1) -> None:
    """Be a trainer and environments: register all of them."""
    link = Link(port)
    link.send(build_request("GET", "/reset_data"))
    names = {"wandb_group": "bench", "wandb_project": "bench", "checkpoint_dir": "", "save_checkpoint_interval": 0}
    sizes = {"batch_size": batch, "max_token_len": length + 1, "starting_step": 0, "num_steps": 1_000_000}
    link.send(build_request("POST", "/register", names | sizes))
    link.send(build_request("GET", "/batch"))
    env = {"max_token_length": length, "desired_name": "bench", "weight": 1.0, "group_size": ROWS}
    for _ in range(environments):
        link.send(build_request("POST", "/register-env", env))
    link.close()


def run_threads(works: Sequence[Callable[[], None]]) -> None:
    """Run all at once. The first error is raised."""
    errors: list[BaseException] = []

    def guard(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# ---- servers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Running:
    """A server process."""

    name: str
    pid: int
    port: int

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_mb(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def run_server(name: str, command: list[str], port: int) -> Generator[Running]:
    """Run a server until the end of the block."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for_server(process, port, log.fileno())
            yield Running(name, process.pid, port)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_server(process: subprocess.Popen[bytes], port: int, log: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            Link(port).close()
            return
        time.sleep(0.05)
    raise CommandFailed(f"the server did not start: {os.pread(log, 2000, 0).decode(errors='replace')}")


@contextlib.contextmanager
def run_ludus(folder: Path) -> Generator[Running]:
    port = find_port()
    command = [str(Path(sys.executable).with_name("ludus")), "api", "--port", str(port), "--data", str(folder)]
    with run_server("ludus", command, port) as running:
        yield running


@contextlib.contextmanager
def run_peer(python: Path) -> Generator[Running]:
    port = find_port()
    command = [str(python), "-m", "atroposlib.cli.run_api", "--host", "127.0.0.1", "--port", str(port)]
    with run_server(PEER, command, port) as running:
        yield running


# ---- posts and batches --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A server at one length."""

    server: str
    length: int
    body_kb: float
    rate: float
    """Groups per second."""
    post_ms: float
    cpu_ms: float
    """CPU time of the server for one post."""
    batch_ms: float


def measure(running: Running, length: int, seconds: float, batches: int) -> Row:
    """Post for some seconds, then take batches."""
    start_run(running.port, length)
    requests = [build_request("POST", "/scored_data", build_group(length, seed, 0)) for seed in range(4)]
    cpu = running.cpu_seconds
    times: list[float] = []
    started = time.perf_counter()

    def post(number: int) -> None:
        link = Link(running.port)
        while (begun := time.perf_counter()) < started + seconds:
            link.send(requests[number % len(requests)])
            times.append(time.perf_counter() - begun)
        link.close()

    run_threads([lambda number=number: post(number) for number in range(POSTERS)])
    wall = time.perf_counter() - started
    cpu = running.cpu_seconds - cpu
    return Row(
        running.name,
        length,
        len(requests[0]) / 1000,
        len(times) / wall,
        median(times) * 1000,
        cpu / len(times) * 1000,
        median(take_batches(running.port, min(batches, len(times) * ROWS // BATCH), seconds * 4)) * 1000,
    )


def take_batches(port: int, count: int, seconds: float) -> list[float]:
    """How long each batch took. At least one, at most `count`, and no new one after `seconds`."""
    link = Link(port)
    request = build_request("GET", "/batch")
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while not times or (len(times) < count and time.perf_counter() < deadline):
        begun = time.perf_counter()
        reply = link.send(request)
        times.append(time.perf_counter() - begun)
        if reply.count(b'"scores"') != BATCH // ROWS:
            raise RuntimeError(f"not a batch: {reply[:200]!r}")
    link.close()
    return times


# ---- many at once -------------------------------------------------------------------------------------------------


@dataclass
class Crowd:
    """64 environments and 8 trainers at once."""

    rate: float = 0.0
    post_ms: float = 0.0
    batch_ms: float = 0.0
    wrong: int = 0
    """Groups that were lost or came twice."""
    seen: list[int] = field(default_factory=list[int])


def measure_crowd(running: Running, per_env: int) -> Crowd:
    """All environments post, all trainers take batches, until everything has arrived."""
    start_run(running.port, 512, environments=ENVIRONMENTS)
    total = ENVIRONMENTS * per_env
    template = json.dumps(build_group(512, 1, 0) | {"generation_params": {"number": "@@@@@@@@"}}).encode()
    head, tail = template.split(b'"@@@@@@@@"')
    posts: list[float] = []
    takes: list[float] = []
    found = Crowd()
    started = time.perf_counter()

    def post(env_id: int) -> None:
        link = Link(running.port)
        for number in range(env_id * per_env, (env_id + 1) * per_env):
            body = head + b"%d" % number + tail
            begun = time.perf_counter()
            sent = b"POST /scored_data HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
            link.send(sent + body)
            posts.append(time.perf_counter() - begun)
        link.close()

    def take() -> None:
        link = Link(running.port)
        request = build_request("GET", "/batch")
        while len(found.seen) < total:
            begun = time.perf_counter()
            reply = link.send(request)
            if reply.startswith(b'{"batch":null'):
                time.sleep(0.01)
                continue
            takes.append(time.perf_counter() - begun)
            found.seen.extend(int(part.partition(b"}")[0]) for part in reply.split(b'{"number": ')[1:])
        link.close()

    works = [lambda number=number: post(number) for number in range(ENVIRONMENTS)]
    run_threads([*works, *itertools.repeat(take, TRAINERS)])
    found.rate = total / (time.perf_counter() - started)
    found.post_ms, found.batch_ms = median(posts) * 1000, median(takes) * 1000
    found.wrong = len(set(range(total)).symmetric_difference(found.seen)) + len(found.seen) - len(set(found.seen))
    return found


# ---- memory -------------------------------------------------------------------------------------------------------


def measure_memory(running: Running, groups: int) -> list[float]:
    """The resident megabytes of the server while so many small groups pass, at each tenth."""
    per_post, batch_groups = 25, 100
    start_run(running.port, 8, batch=batch_groups * ROWS)
    post = build_request("POST", "/scored_data_list", [build_group(8, seed, 0) for seed in range(per_post)])
    take = build_request("GET", "/batch")
    posters = 4
    share = groups // posters // per_post
    figures: list[float] = []
    done = itertools.count(1)

    def pump() -> None:
        link = Link(running.port)
        for number in range(1, share + 1):
            link.send(post)
            if number % (batch_groups // per_post) == 0:
                link.send(take)
            passed = next(done)
            if passed % (share * posters // 10) == 0:
                figures.append(running.resident_mb)
        link.close()

    run_threads([pump] * posters)
    return figures


# ---- the run ------------------------------------------------------------------------------------------------------


def find_peer(cache: Path, peers: bool | None) -> Path | None:
    home = cache / PEER
    found = find_venv(home, REQUIREMENTS) if peers is not False else None
    if found is None and peers:
        print(f"installing {' '.join(REQUIREMENTS)} …", file=sys.stderr)
        return make_venv(home, REQUIREMENTS)
    return found


def measure_lengths(python: Path | None, lengths: Sequence[int], seconds: float) -> Iterator[Row]:
    for length in lengths:
        print(f"8 × {length} …", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder, run_ludus(Path(folder) / "api") as running:
            yield measure(running, length, seconds, 20)
        if python is not None:
            with run_peer(python) as running:
                yield measure(running, length, seconds, 3)


def render_rows(rows: Sequence[Row]) -> str:
    head = ("server", "8 ×", "body KB", "groups/s", "POST p50 ms", "CPU ms/group", "/batch p50 ms")
    return render_table(
        [
            head,
            *((row.server, row.length, row.body_kb, row.rate, row.post_ms, row.cpu_ms, row.batch_ms) for row in rows),
        ]
    )


def make_checks(rows: Sequence[Row], crowd: Crowd, memory: Sequence[float]) -> list[Check]:
    ours = {row.length: row for row in rows if row.server != PEER}
    peers = {row.length: row for row in rows if row.server == PEER}
    checks: list[Check] = []
    if 512 in ours:
        checks.append(Check("groups/s at 8×512", ours[512].rate, MIN_RATE, at_least=True))
        checks.append(Check("/batch at 8×512", ours[512].batch_ms, MAX_BATCH_MS, "ms"))
    for length, peer in peers.items():
        checks.append(Check(f"8×{length} lead", ours[length].rate / peer.rate, MIN_LEAD, "x", at_least=True))
        checks.append(
            Check(f"8×{length} /batch lead", peer.batch_ms / ours[length].batch_ms, MIN_LEAD, "x", at_least=True)
        )
    checks.append(Check("lost or doubled with 64 environments and 8 trainers", crowd.wrong, 0))
    checks.append(Check("memory at the end ÷ after a tenth", memory[-1] / memory[0], MAX_GROWTH, "x"))
    return checks


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_rounds_parser(__doc__)
    parser.add_argument("--short", action="store_true", help="two lengths, one second each, ten thousand small groups")
    options = parser.parse_args(arguments)
    lengths, seconds, per_env, groups = (
        ((128, 512), 1.0, 5, 10_000) if options.short else (LENGTHS, 6.0, 100, 1_000_000)
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that running servers are stopped too
    python = find_peer(options.cache, options.peers)
    rows = list(measure_lengths(python, lengths, seconds))
    print("64 environments and 8 trainers …", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder, run_ludus(Path(folder) / "api") as running:
        crowd = measure_crowd(running, per_env)
    print(f"{groups:,} groups of 8 × 8 …", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder, run_ludus(Path(folder) / "api") as running:
        begun = time.perf_counter()
        memory = measure_memory(running, groups)
        small_rate = groups / (time.perf_counter() - begun)
    print(describe_machine())
    print(render_rows(rows))
    print(
        f"64 environments and 8 trainers at 8 × 512: {crowd.rate:.0f} groups/s in and out, POST p50 "
        f"{crowd.post_ms:.1f} ms, /batch p50 {crowd.batch_ms:.1f} ms, {len(crowd.seen):,} groups, {crowd.wrong} wrong"
    )
    shown = ", ".join(f"{figure:.0f}" for figure in memory)
    print(f"{groups:,} groups of 8 × 8 at {small_rate:.0f} groups/s, memory in MB at each tenth: {shown}")
    return print_verdict("api", make_checks(rows, crowd, memory), notes=() if python else ("peer not run",))


if __name__ == "__main__":
    sys.exit(main())
