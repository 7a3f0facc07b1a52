"""Measure the cost of a request through the gateway, and compare it with other gateways.

    $ python bench/gateway.py              Ludus, and the peers that are installed
    $ python bench/gateway.py --peers      install the peers first (about 100 MB, once)
    $ python bench/gateway.py --short      one round of few requests, as a test of the script

Agents on loopback run conversations of four turns through a gateway, each in its own session. The gateway calls a mock
server that replies at once (`mock_openai.py`) and records everything, with sampled ids and logprobs. Each gateway runs
in its own process, started by its own command. That of Ludus is `ludus gateway`, in token mode (`vllm_chat`: the server
returns the ids) and, for comparison, in chat mode. Ludus also writes every session as a line of JSON. The benchmark
checks that every request was written.

Two more runs compare with a plain passthrough on aiohttp (`peers/passthrough.py`) and with the server itself: the CPU
time of requests with a long context, and the time to the first text of a stream for one client at a time. The growth of
the process per session is reported too.

Gateways are compared by the CPU time of their process per request: on a shared machine it varies by 10 to 20 %, while
wall time may double. Each round runs all gateways, and medians are reported. Agent Lightning needs Python 3.12. It does
not support streams, so it has no figure for them.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles

from common import (
    Check,
    CommandFailed,
    describe_machine,
    find_python,
    find_venv,
    make_rounds_parser,
    make_venv,
    print_verdict,
    render_table,
)
from mock_openai import CALLS, allow_many_sockets, run_mock
from peers.load import Seen, send_conversations

CONCURRENCIES = (64, 512)
REQUESTS = 4096
WARM_UP = 256
"""Requests before the measured ones, in addition to one for each connection."""
MIN_RATE = 3000.0
"""Requests per second on one core, in token mode."""
MIN_CHAT_RATE = 4000.0
"""The same in chat mode."""
MIN_LEAD = 15.0
MAX_TAIL = 20.0
"""p99 in relation to p50, at the highest concurrency."""
MAX_FIRST_MS = 5.0
"""How much later the first text of a stream may come than directly from the server."""
CONTEXTS = (1_000, 32_000)
"""Words in the first message of the long conversations."""
LONG_REQUESTS = 512
START_SECONDS = 60.0


@dataclass(frozen=True)
class Place:
    """Where a gateway runs, and which server it calls."""

    port: int
    mock: str
    """The mock's base URL."""
    folder: Path
    """The folder for files that it writes."""


@dataclass(frozen=True)
class System:
    """A gateway: how to start it, and the path of a session's API."""

    name: str
    command: Callable[[Path, Place], list[str]]
    """Builds the command from its Python and the place."""
    path: Callable[[str], str]
    health: str
    requirements: tuple[str, ...] = ()
    minor: int = 11
    """The oldest minor version of Python 3 that it supports."""
    streams: bool = True
    prepare: Callable[[Place, Sequence[str]], None] = lambda place, sessions: None
    """Registers the sessions, if the gateway needs that."""
    count_written: Callable[[Place], int] | None = None
    """Counts the requests that it wrote. Called after it has ended."""


# ---- the systems --------------------------------------------------------------------------------------------------


def _make_ludus_command(*more: str) -> Callable[[Path, Place], list[str]]:
    def build_command(python: Path, place: Place) -> list[str]:
        settings = [f"--model.base_url={place.mock}", "--model.name=mock", f"--gateway.port={place.port}", *more]
        return [str(python.with_name("ludus")), "gateway", *settings, "--out", str(place.folder / "run")]

    return build_command


def _read_sessions(place: Place) -> Iterator[dict[str, object]]:
    with (place.folder / "run" / "sessions.jsonl").open() as lines:
        yield from map(json.loads, lines)


def _count_requests(place: Place) -> int:
    return sum(len(line["exchanges"]) for line in _read_sessions(place))  # pyright: ignore[reportArgumentType]


def _count_exact_requests(place: Place) -> int:
    return sum(len(line["exchanges"]) for line in _read_sessions(place) if line.get("exact"))  # pyright: ignore[reportArgumentType]


def _build_rllm_command(python: Path, place: Place) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(place.port), "--worker", place.mock]
    return [str(python.with_name("rllm-model-gateway")), *where, "--store", "memory", "--log-level", "warning"]


def _build_lightning_command(python: Path, place: Place) -> list[str]:
    settings = ["host=127.0.0.1", f"port={place.port}", "default_proxy.model_name=mock"]
    return [str(python.with_name("agl-server")), *settings, f"hydra.run.dir={place.folder}"]


def _enqueue(place: Place, sessions: Sequence[str]) -> None:
    api = f"http://127.0.0.1:{place.port}/api"
    _post(f"{api}/models", [{"model": "mock", "endpoint": place.mock}])
    _post(f"{api}/rollouts", [{"input": "", "rollout_id": session} for session in sessions])


def _post(url: str, value: object) -> None:
    request = urllib.request.Request(url, json.dumps(value).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def _build_session_path(session: str) -> str:
    return f"/s/{session}/v1"


OURS = System(
    "ludus, token mode",
    _make_ludus_command("--model.mode=token", "--model.engine=vllm_chat"),
    _build_session_path,
    "/health",
    count_written=_count_exact_requests,
)
CHAT = System("ludus, chat mode", _make_ludus_command(), _build_session_path, "/health", count_written=_count_requests)
PASSTHROUGH = System(
    "aiohttp passthrough",
    lambda python, place: [
        str(python), str(Path(__file__).parent / "peers" / "passthrough.py"), str(place.port), place.mock
    ],
    lambda _: "/v1",
    "/health",
)  # fmt: skip
PEERS = (
    System(
        "agentlightning",
        _build_lightning_command,
        lambda session: f"/proxy/rollout/{session}/attempt/0/mode/train/openai/v1",
        "/healthz",
        ("agentlightning==1.0.2",),
        minor=12,
        streams=False,
        prepare=_enqueue,
    ),
    System(
        "rllm-model-gateway",
        _build_rllm_command,
        lambda session: f"/sessions/{session}/v1",
        "/health",
        ("rllm-model-gateway==0.1.0",),
    ),
)


# ---- measuring ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A gateway at one concurrency, with or without streams: its figures, or the reason why there are none."""

    system: System
    concurrency: int
    stream: bool
    cpu_ms: float = 0.0
    """CPU time of the gateway's process, per request."""
    rate: float = 0.0
    """Requests per second of wall time."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    trouble: str = ""

    @property
    def valid(self) -> bool:
        return not self.trouble


@dataclass
class Round:
    """One gateway process, and the requests that were sent to it."""

    process: subprocess.Popen[bytes]
    place: Place
    sent: int = 0
    rows: list[Row] = field(default_factory=list[Row])


def read_cpu_seconds(pid: int) -> float:
    """Read the user and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def run_gateway(system: System, python: Path, mock: str) -> Generator[Round]:
    """Start a gateway and wait until it listens. It is stopped with SIGINT, as with Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="gateway-bench-") as folder:
        place = Place(find_free_port(), mock, Path(folder))
        log = (place.folder / "log").open("wb")
        with log, subprocess.Popen(system.command(python, place), stdout=log, stderr=log, cwd=folder) as process:
            try:
                wait_until_up(system, place, process)
                yield (round_ := Round(process, place))
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
            if system.count_written is not None and (written := system.count_written(place)) != round_.sent:
                lost = f"recorded {written} of {round_.sent} requests"
                round_.rows[:] = [replace(row, trouble=row.trouble or lost) for row in round_.rows]


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def wait_until_up(system: System, place: Place, process: subprocess.Popen[bytes]) -> None:
    """Wait until the gateway answers with any status."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{place.port}{system.health}", timeout=5).close()
        except urllib.error.HTTPError as answer:
            answer.close()
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise CommandFailed(f"{system.name} did not start: {(place.folder / 'log').read_text()[-2000:]}")


def measure_gateway(system: System, python: Path, mock: str, requests: int, seconds: float) -> list[Row]:
    """Measure one gateway process at each concurrency, without and with streams."""
    cells = [(concurrency, stream) for stream in (False, True) for concurrency in CONCURRENCIES]
    try:
        with run_gateway(system, python, mock) as running_:
            for concurrency, stream in cells:
                if stream and not system.streams:
                    running_.rows.append(Row(system, concurrency, stream, trouble="refuses streams"))
                    continue
                label = f"c{concurrency}-{int(stream)}"
                count = max(requests // CALLS, concurrency)
                # Connections are opened and caches are filled before the measurement.
                send_load(
                    system, running_, f"{label}-warm", WARM_UP + concurrency, concurrency, stream, seconds, turns=1
                )
                running_.rows.append(send_load(system, running_, label, count, concurrency, stream, seconds))
        return running_.rows
    except (CommandFailed, OSError) as error:
        print(error, file=sys.stderr)
        return [Row(system, concurrency, stream, trouble="did not run") for concurrency, stream in cells]


def send_load(
    system: System,
    to: Round,
    label: str,
    count: int,
    concurrency: int,
    stream: bool,
    seconds: float,
    turns: int = CALLS,
) -> Row:
    """Send conversations through a running gateway and measure it."""
    sessions = [f"{label}-{number}" for number in range(count)]
    system.prepare(to.place, sessions)
    sending = send_conversations(to.place.port, sessions, concurrency, stream, system.path, turns)
    cpu, wall = read_cpu_seconds(to.process.pid), time.perf_counter()
    try:
        seen = asyncio.run(asyncio.wait_for(sending, seconds))
    except TimeoutError:
        return Row(system, concurrency, stream, trouble=f"no result within {seconds:g} s")
    wall, cpu = time.perf_counter() - wall, read_cpu_seconds(to.process.pid) - cpu
    to.sent += count * turns
    return judge_row(Row(system, concurrency, stream), seen, count * turns, cpu, wall)


def judge_row(row: Row, seen: Seen, requests: int, cpu: float, wall: float) -> Row:
    """Fill in the figures. The row is invalid unless every request was answered."""
    trouble = "" if seen.good == requests else f"{seen.good} of {requests} answered: {seen.trouble.splitlines()[0]}"
    shares = quantiles(seen.seconds, n=100) if len(seen.seconds) > 1 else [0.0] * 99
    return replace(
        row,
        cpu_ms=cpu * 1000 / requests,
        rate=requests / wall,
        p50_ms=shares[49] * 1000,
        p99_ms=shares[98] * 1000,
        trouble=trouble,
    )


# ---- long contexts, and the first text of a stream ----------------------------------------------------------------


@dataclass(frozen=True)
class Extra:
    """A gateway with long contexts and with one client at a time."""

    name: str
    cpu_ms: Mapping[int, float]
    """CPU time per request, by the words of the context."""
    first_ms: float
    """Median time to the first text of a stream."""
    session_kb: float
    """Growth of the process per session of four turns."""


def measure_extra(system: System, mock: str, seconds: float) -> Extra:
    """Measure one gateway process."""
    with run_gateway(system, Path(sys.executable), mock) as running:
        pid, cpu_ms = running.process.pid, dict[int, float]()
        send_extra(system, running, "warm", 64, 16, seconds)
        before = read_resident_kb(pid)
        send_extra(system, running, "grow", 1024, 64, seconds)
        grown = (read_resident_kb(pid) - before) / 1024
        for words in CONTEXTS:
            cpu = read_cpu_seconds(pid)
            send_extra(system, running, f"w{words}", LONG_REQUESTS // CALLS, 16, seconds, words=words)
            cpu_ms[words] = (read_cpu_seconds(pid) - cpu) * 1000 / LONG_REQUESTS
        seen = send_extra(system, running, "first", 50, 1, seconds, stream=True)
    return Extra(system.name, cpu_ms, median(seen.first_seconds) * 1000, grown)


def send_extra(
    system: System,
    to: Round,
    label: str,
    count: int,
    concurrency: int,
    seconds: float,
    *,
    words: int = 0,
    stream: bool = False,
) -> Seen:
    """Send conversations, all of which must be answered."""
    sessions = [f"{label}-{number}" for number in range(count)]
    sending = send_conversations(to.place.port, sessions, concurrency, stream, system.path, words=words)
    seen = asyncio.run(asyncio.wait_for(sending, seconds))
    to.sent += count * CALLS
    if seen.good != count * CALLS:
        raise CommandFailed(f"{system.name}: {seen.good} of {count * CALLS} answered: {seen.trouble}")
    return seen


def measure_direct(mock: str, seconds: float) -> float:
    """The median time to the first text of a stream from the server itself, in milliseconds."""
    port = int(mock.partition("//")[2].partition(":")[2].partition("/")[0])
    sending = send_conversations(port, [str(number) for number in range(50)], 1, True, lambda _: "/v1")
    return median(asyncio.run(asyncio.wait_for(sending, seconds)).first_seconds) * 1000


def read_resident_kb(pid: int) -> float:
    """Read the memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def run_extras(count: int, seconds: float) -> tuple[list[Extra], float]:
    """Measure the long contexts and the first texts. Returns the medians, and the direct time to the first text."""
    taken: dict[str, list[Extra]] = {}
    direct: list[float] = []
    with run_mock(seconds=3600.0 * count) as mock:
        for number in range(1, count + 1):
            print(f"round {number} of {count}: long contexts …", file=sys.stderr)
            direct.append(measure_direct(mock.base_url, seconds))
            for system in (OURS, CHAT, PASSTHROUGH):
                taken.setdefault(system.name, []).append(measure_extra(system, mock.base_url, seconds))
    found = [
        Extra(
            name,
            {words: median(each.cpu_ms[words] for each in rows) for words in CONTEXTS},
            median(each.first_ms for each in rows),
            median(each.session_kb for each in rows),
        )
        for name, rows in taken.items()
    ]
    return found, median(direct)


def render_extras(extras: Sequence[Extra], direct: float) -> str:
    head = ("gateway", *(f"CPU ms at {words:,} words" for words in CONTEXTS), "first text ms", "kB per session")
    rows = [(each.name, *each.cpu_ms.values(), each.first_ms, each.session_kb) for each in extras]
    return render_table([head, *rows, ("the server itself", *("" for _ in CONTEXTS), direct, "")])


def check_extras(extras: Sequence[Extra], direct: float) -> list[Check]:
    """The checks of long contexts and first texts."""
    plain = next(each for each in extras if each.name == PASSTHROUGH.name)
    found: list[Check] = []
    for each in extras:
        if each is plain:
            continue
        for words, cpu_ms in each.cpu_ms.items():
            label = f"{each.name}, CPU at {words:,} words to a passthrough"
            found.append(Check(label, cpu_ms / plain.cpu_ms[words], 1.0, "x"))
        found.append(Check(f"{each.name}, first text after the server's", each.first_ms - direct, MAX_FIRST_MS, "ms"))
    return found


def find_pythons(cache: Path, peers: bool | None) -> dict[System, Path | None]:
    """Find the Python of each system to run. It is None if the system could not be installed."""
    found: dict[System, Path | None] = {OURS: Path(sys.executable), CHAT: Path(sys.executable)}
    for system in PEERS if peers is not False else ():
        home = cache / system.name
        if python := find_venv(home, system.requirements):
            found[system] = python
        elif peers:
            found[system] = install_peer(system, home)
    return found


def install_peer(system: System, home: Path) -> Path | None:
    base = find_python(system.minor)
    if base is None:
        print(
            f"{system.name} needs Python 3.{system.minor} or newer, which is not installed on this machine",
            file=sys.stderr,
        )
        return None
    print(f"installing {' '.join(system.requirements)} …", file=sys.stderr)
    try:
        return make_venv(home, system.requirements, base)
    except CommandFailed as error:
        print(error, file=sys.stderr)
        return None


def run_rounds(systems: Mapping[System, Path | None], count: int, requests: int, seconds: float) -> list[Row]:
    """Run `count` rounds of all gateways. Returns the medians."""
    taken: dict[tuple[System, int, bool], list[Row]] = {}
    with run_mock(seconds=3600.0 * count) as mock:
        for number in range(1, count + 1):
            for system, python in systems.items():
                if python is None:
                    continue
                print(f"round {number} of {count}: {system.name} …", file=sys.stderr)
                for row in measure_gateway(system, python, mock.base_url, requests, seconds):
                    taken.setdefault((system, row.concurrency, row.stream), []).append(row)
    return [take_median(rows) for rows in taken.values()]


def take_median(rows: Sequence[Row]) -> Row:
    """Take the median of each figure over the rounds. If a round is invalid, the result is that round."""
    for row in rows:
        if not row.valid:
            return row
    names = ("cpu_ms", "rate", "p50_ms", "p99_ms")
    return replace(rows[0], **{name: median(getattr(row, name) for row in rows) for name in names})


# ---- judging ------------------------------------------------------------------------------------------------------


def render_report(rows: Sequence[Row]) -> str:
    """Render the table. Each gateway is compared with Ludus in the same situation."""
    ours = {(row.concurrency, row.stream): row.cpu_ms for row in rows if row.system is OURS and row.valid}
    head = (
        "gateway",
        "at once",
        "stream",
        "CPU ms/request",
        "× ours",
        "requests/s per core",
        "p50 ms",
        "p99 ms",
        "note",
    )
    lines: list[tuple[object, ...]] = []
    for row in sorted(rows, key=lambda row: (row.stream, row.concurrency)):
        name, stream = row.system.name, "yes" if row.stream else "no"
        if not row.valid or not row.cpu_ms:
            lines.append((name, row.concurrency, stream, "", "", "", "", "", row.trouble))
            continue
        own = ours.get((row.concurrency, row.stream))
        ratio = row.cpu_ms / own if own else ""
        lines.append((name, row.concurrency, stream, row.cpu_ms, ratio, 1000 / row.cpu_ms, row.p50_ms, row.p99_ms, ""))
    return render_table([head, *lines])


def make_checks(rows: Sequence[Row]) -> tuple[list[Check], list[str]]:
    """Make the checks against the targets, and notes on missing figures."""
    ours = [row for row in rows if row.system is OURS]
    valid = [row for row in ours if row.valid and row.cpu_ms]
    found = [Check("valid runs of ours", len(valid) / len(ours), 1.0, at_least=True)] if len(valid) < len(ours) else []
    if valid:
        slowest = min(1000 / row.cpu_ms for row in valid)
        found.append(Check("slowest in token mode", slowest, MIN_RATE, "requests/s per core", True))
    chats = [row for row in rows if row.system is CHAT and row.valid and row.cpu_ms]
    if chats:
        slowest = min(1000 / row.cpu_ms for row in chats)
        found.append(Check("slowest in chat mode", slowest, MIN_CHAT_RATE, "requests/s per core", True))
    tails = [row.p99_ms / row.p50_ms for row in (*valid, *chats) if row.concurrency == max(CONCURRENCIES)]
    if tails:
        found.append(Check(f"p99 to p50 at {max(CONCURRENCIES)}", max(tails), MAX_TAIL, "x"))
    peers = [row for row in rows if row.system in PEERS and row.valid and row.cpu_ms]
    notes = [
        f"no figure for {row.system.name} at {row.concurrency}" for row in rows if not row.valid and row.system.streams
    ]
    if not peers:
        return found, [*notes, "peers not run"]
    for row in valid:
        rivals = [peer for peer in peers if (peer.concurrency, peer.stream) == (row.concurrency, row.stream)]
        for peer in rivals:
            where = f"at {row.concurrency}{' streaming' if row.stream else ''}"
            found.append(Check(f"{where} lead over {peer.system.name}", peer.cpu_ms / row.cpu_ms, MIN_LEAD, "x", True))
    return found, notes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_rounds_parser(__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"minimum requests per run (default {REQUESTS})")
    parser.add_argument("--short", action="store_true", help="one round of 1,024 requests")
    options = parser.parse_args(arguments)
    count, requests = (1, 1024) if options.short else (options.rounds, options.requests)
    allow_many_sockets()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that running gateways are stopped too
    systems = find_pythons(options.cache, options.peers)
    rows = run_rounds(systems, count, requests, options.seconds)
    print(f"{describe_machine()}; {count} {'round' if count == 1 else 'rounds'} of {requests} requests")
    print(render_report(rows))
    extras, direct = run_extras(count, options.seconds)
    print(render_extras(extras, direct))
    found, notes = make_checks(rows)
    found += check_extras(extras, direct)
    notes += [f"{system.name} not installed" for system, python in systems.items() if python is None]
    code = print_verdict("gateway", found, notes=notes)
    return 1 if options.peers and None in systems.values() else code


if __name__ == "__main__":
    sys.exit(main())
