"""Measure `ludus view` on large runs, and compare it with other viewers.

    $ python bench/view.py              Ludus, and the peers that are installed
    $ python bench/view.py --peers      install the peers first (1.2 GB, once)
    $ python bench/view.py --short      small runs, as a test of the script

The runs are a run of 100,000 rollouts, a folder of 1,000 runs, and a rollout of 5,000 turns with a tool result of
20 MB, all written by the store (`view_runs.py`). `ludus view` is started as a process. For each page the script sends
the requests that the page needs, one after the other: the document with its scripts, then the JSON. "first" is the
first time in a new process, with nothing kept; "again" is the median of later rounds. Both are given as the CPU time of
the server and as wall time, which other load on the machine makes longer. Memory is that of the process
after the page, and its peak at the end.

Where there is a Chromium with Playwright, every page is opened in it: the time until the data are in the page, the heap
of its JavaScript and the nodes of its document. `inspect view` and `mlflow ui` are opened in the same browser, in the
same run, on as many rollouts as their own packages can write within --seconds, at most as many as Ludus has: a sample
of Inspect, a trace of MLflow with four spans.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import view_runs
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

MAX_FIRST_MS = 1000.0
"""CPU time of the server for the first paint of any page, in a new process. On a busy machine wall time is longer."""
MAX_MEMORY_MB = 300.0
"""The peak of the server's memory over all pages."""
MAX_HEAP_MB = 60.0
"""The heap of any page."""
START_SECONDS = 60.0
BROWSER_SECONDS = 60.0


@dataclass
class PageRequest:
    """A page: its address in the browser, the JSON it needs, and a text that is on it when it is painted."""

    name: str
    address: str
    needs: Sequence[str]
    marker: str
    first_ms: float = 0.0
    first_cpu: float = 0.0
    """CPU milliseconds of the server."""
    again_ms: float = 0.0
    again_cpu: float = 0.0
    size_kb: float = 0.0
    memory_mb: float = 0.0
    shown: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the browser measured."""


# ---- servers ------------------------------------------------------------------------------------------------------


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def run_server(
    command: Sequence[str], url: str, log: Path, cwd: Path | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """A server as a process, from when it answers. It is ended at the end, with its children."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=cwd, start_new_session=True)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise CommandFailed(f"{' '.join(command)} did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.05)
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                subprocess.run(["kill", "-INT", "--", f"-{process.pid}"], check=False, capture_output=True)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    subprocess.run(["kill", "-KILL", "--", f"-{process.pid}"], check=False, capture_output=True)
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def read_memory(pid: int) -> tuple[float, float]:
    """The memory of a process and its children, and its peak, in MB."""
    now = peak = 0.0
    for each in (pid, *_list_children(pid)):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{each}/status").read_text()
            found = dict(re.findall(r"^(VmRSS|VmHWM):\s+(\d+) kB", text, re.MULTILINE))
            now += int(found.get("VmRSS", 0)) / 1e3
            peak += int(found.get("VmHWM", 0)) / 1e3
    return now, peak


def read_cpu(pid: int) -> float:
    """The CPU time that a process has taken, in milliseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _list_children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += [child, *_list_children(child)]
    return found


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=120) as reply:
        return reply.read()


# ---- Ludus --------------------------------------------------------------------------------------------------------


def list_static(base: str) -> list[str]:
    """The addresses of the document and of everything that it loads before it paints."""
    found, waiting = ["/"], ["/"]
    while waiting:
        text = fetch(base + waiting.pop()).decode()
        names = re.findall(r'(?:src|href)="\./([\w.]+)"', text) + re.findall(
            r'^(?:import|export)\b[^"\n]*"\./([\w.]+)"', text, re.M
        )
        for name in (f"/{name}" for name in names):
            if name not in found:
                found.append(name)
                waiting += [name] if name.endswith(".js") else []
    return found


def list_big_pages(rollouts: int) -> list[PageRequest]:
    run, middle = "/api/runs/big", rollouts // 2
    return [
        PageRequest("run of many rollouts", "#/run/big", [run], "lookup"),
        PageRequest("its rollouts", "#/run/big/rollouts", [run, f"{run}/rollouts?limit=50"], "task-0"),
        PageRequest("… by score", "#/run/big/rollouts?sort=-score", [f"{run}/rollouts?limit=50&sort=-score"], "task-0"),
        PageRequest("… from the middle", "", [f"{run}/rollouts?limit=50&offset={middle}"], ""),
        PageRequest("… that failed", "", [f"{run}/rollouts?limit=50&result=unscored"], ""),
        PageRequest("its tasks", "#/run/big/tasks", [run, f"{run}/tasks?limit=50"], "task-0"),
        PageRequest("one rollout", f"#/run/big/rollout/{middle}", [f"{run}/rollouts/{middle}"], "I look it up"),
    ]


def list_long_pages(turns: int) -> list[PageRequest]:
    one = "/api/runs/long/rollouts/1"
    return [
        PageRequest("rollout of many turns", "#/run/long/rollout/1", [one], "Step 0"),
        PageRequest(
            "… at its long result",
            f"#/run/long/rollout/1?turn={turns // 2 + 1}",
            [f"{one}?turn={turns // 2 + 1}", f"{one}/turns?first={turns // 2}&limit=20"],
            f"Step {turns // 2}",
        ),
    ]


MANY_PAGES = [
    PageRequest("folder of many runs", "#/runs", ["/api/runs?limit=50&sort=-started"], "run-0"),
    PageRequest("… searched", "#/runs?q=env-3", ["/api/runs?limit=50&q=env-3"], "env-3"),
]


def measure_page(page: PageRequest, base: str, pid: int, static: Sequence[str], rounds: int) -> None:
    """Send the requests of a page: once, then in rounds."""
    times: list[float] = []
    spent: list[float] = []
    for number in range(rounds + 1):
        wanted = [*(static if number == 0 else ["/"]), "/api/session", *page.needs]
        cpu, began = read_cpu(pid), time.perf_counter()
        page.size_kb = sum(len(fetch(base + each)) for each in wanted) / 1e3
        times.append(1000 * (time.perf_counter() - began))
        spent.append(read_cpu(pid) - cpu)
    page.first_ms, page.again_ms = times[0], median(times[1:])
    page.first_cpu, page.again_cpu = spent[0], median(spent[1:])
    page.memory_mb = read_memory(pid)[0]


def measure_folder(folder: Path, pages: list[PageRequest], rounds: int, scratch: Path) -> tuple[float, list[str]]:
    """Measure pages of a server on a folder. Returns the peak of its memory in MB, and what went wrong."""
    port = find_port()
    base = f"http://127.0.0.1:{port}"
    ludus = Path(sys.executable).with_name("ludus")
    command = [str(ludus), "view", str(folder), "--no-browser", "--port", str(port)]
    problems: list[str] = []
    with run_server(command, f"{base}/icon.svg", scratch / f"ludus-{folder.name}.log") as server:
        static = list_static(base)
        for page in pages:
            try:
                measure_page(page, base, server.pid, static if page is pages[0] else ["/"], rounds)
            except OSError as error:  # those of urllib are, too
                problems.append(f"{page.name}: {error}")
        open_pages(base, pages)
        peak = read_memory(server.pid)[1]
    return peak, problems


def open_pages(base: str, pages: Sequence[PageRequest]) -> None:
    """Open pages in a browser, where there is one."""
    chosen = [page for page in pages if page.address]
    asked = [{"url": f"{base}/{page.address}", "marker": page.marker, "seconds": BROWSER_SECONDS} for page in chosen]
    for page, found in zip(chosen, open_in_browser(asked), strict=False):
        page.shown = found


def open_in_browser(asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("peers") / "open_page.py"
    if not asked or not (shutil.which("chromium") or shutil.which("google-chrome")):
        return []
    limit = 60 + len(asked) * (BROWSER_SECONDS + 10)
    try:
        done = subprocess.run(
            [sys.executable, str(script)], input=json.dumps(asked).encode(), capture_output=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        print("view: the browser did not end in time; no figures of pages", file=sys.stderr)
        return []
    if done.returncode:
        print(f"view: no figures of pages: {done.stderr.decode()[-300:]}", file=sys.stderr)
        return []
    return json.loads(done.stdout)


# ---- peers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """Another viewer: what writes its data, how it is started, and what page shows the list of rollouts."""

    name: str
    requirements: tuple[str, ...]
    maker: str
    serve: Callable[[Path, Path, int], list[str]]
    """Builds the command from its Python, the folder and the port."""
    address: str
    marker: str


PEERS = (
    Peer(
        "inspect view",
        ("inspect-ai==0.3.285",),
        "make_inspect_log.py",
        lambda python, folder, port: [
            str(python.with_name("inspect")),
            "view",
            "start",
            "--log-dir",
            str(folder),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        "/#/logs/lookup.eval/samples",
        "task-0",
    ),
    Peer(
        "mlflow ui",
        ("mlflow==3.17.2",),
        "make_mlflow_traces.py",
        lambda python, folder, port: [
            str(python.with_name("mlflow")),
            "server",
            "--backend-store-uri",
            f"sqlite:///{folder}/mlflow.db",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            "1",
        ],
        "/#/experiments/1/traces",
        "Find the value",
    ),
)


def measure_peer(peer: Peer, python: Path, rollouts: int, seconds: float, scratch: Path) -> list[object]:
    """A row of the table of viewers."""
    folder = scratch / peer.name.replace(" ", "-")
    maker = Path(__file__).with_name("peers") / peer.maker
    began = time.monotonic()
    words = [str(python), str(maker), str(folder), str(rollouts), str(seconds)]
    made = subprocess.run(words, capture_output=True, timeout=4 * seconds + 120, cwd=scratch)
    if made.returncode:
        raise CommandFailed(f"{peer.maker}: {made.stderr.decode()[-1000:]}")
    count, wrote = int(made.stdout.split()[-1]), time.monotonic() - began
    port = find_port()
    base = f"http://127.0.0.1:{port}"
    with run_server(peer.serve(python, folder, port), base, scratch / f"{folder.name}.log", scratch) as server:
        asked = {"url": base + peer.address, "marker": peer.marker, "seconds": BROWSER_SECONDS}
        found = (open_in_browser([asked]) or [{}])[0]
        peak = read_memory(server.pid)[1]
    return [peer.name, count, wrote, *_format_shown(found), peak]


def _format_shown(found: dict[str, Any]) -> list[object]:
    if not found:
        return ["no browser", "", "", ""]
    shown = found["ms"] if found["ms"] is not None else f"not in {BROWSER_SECONDS:.0f} s"
    return [shown, found["heap_mb"], found["nodes"], found["received_mb"]]


def measure_peers(
    install: bool | None, cache: Path, rollouts: int, seconds: float, scratch: Path
) -> list[list[object]]:
    rows: list[list[object]] = []
    for peer in PEERS:
        home = cache / f"view-{peer.name.split()[0]}"
        python = make_venv(home, peer.requirements) if install else find_venv(home, peer.requirements)
        if python is None:
            continue
        try:
            rows.append(measure_peer(peer, python, rollouts, seconds, scratch))
        except (CommandFailed, subprocess.TimeoutExpired) as error:
            rows.append([peer.name, 0, 0.0, f"failed: {str(error).splitlines()[-1][:60]}", "", "", "", ""])
    return rows


# ---- the whole ----------------------------------------------------------------------------------------------------


def print_pages(pages: Sequence[PageRequest]) -> None:
    head = ("page", "first: CPU ms", "ms", "again: CPU ms", "ms", "KB", "server MB", "browser ms", "heap MB", "nodes")
    rows: list[Sequence[object]] = [head]
    for page in pages:
        shown = _format_shown(page.shown)[:3] if page.shown else ["", "", ""]
        spent = (page.first_cpu, page.first_ms, page.again_cpu, page.again_ms)
        rows.append((page.name, *spent, page.size_kb, page.memory_mb, *shown))
    print(render_table(rows))


def main() -> int:
    parser = make_rounds_parser(__doc__)
    parser.set_defaults(seconds=60.0)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5000)
    parser.add_argument("--result-mb", type=float, default=20.0)
    parser.add_argument("--short", action="store_true", help="small runs, as a test of the script")
    parser.add_argument("--folder", type=Path, help="runs of view_runs.py that are there already")
    given = parser.parse_args()
    if given.short:
        given.rollouts, given.runs, given.turns, given.result_mb, given.rounds, given.seconds = (
            400,
            20,
            200,
            1.0,
            1,
            5.0,
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="ludus-view-") as name:
        scratch = Path(name)
        folder = given.folder or scratch / "runs"
        took: dict[str, float] = {}
        if given.folder is None:
            took = view_runs.write_all(folder, given.rollouts, given.runs, given.turns, int(given.result_mb * 1e6))
            made = f"{given.rollouts} rollouts, {given.runs} runs and one of {given.turns} turns"
            print(f"{made}: written in {sum(took.values()):.0f} s")
        print(f"{describe_machine()}\n")
        big, long = list_big_pages(given.rollouts), list_long_pages(given.turns)
        parts = ((view_runs.BIG, big), (view_runs.LONG, long), (view_runs.MANY, MANY_PAGES))
        peaks, problems = list[float](), list[str]()
        for part, pages in parts:
            peak, wrong = measure_folder(folder / part, pages, given.rounds, scratch)
            peaks.append(peak)
            problems += wrong
        every = [page for _, pages in parts for page in pages]
        print_pages(every)
        rows = (
            measure_peers(given.peers, given.cache, given.rollouts, given.seconds, scratch)
            if given.peers is not False
            else []
        )
        if rows:
            own = [
                "ludus view",
                given.rollouts,
                took.get(view_runs.BIG, "before"),
                *_format_shown(big[1].shown),
                peaks[0],
            ]
            head = (
                "viewer: list of rollouts",
                "rollouts",
                "written in s",
                "browser ms",
                "heap MB",
                "nodes",
                "MB received",
                "server MB",
            )
            print(f"\n{render_table([head, own, *rows])}")
    for problem in problems:
        print(f"view: {problem}")
    heaps = [page.shown["heap_mb"] for page in every if page.shown]
    blank = [page.name for page in every if page.shown and page.shown["ms"] is None]
    checks = [
        Check("first paint", max(page.first_cpu for page in every), MAX_FIRST_MS, "ms of server time"),
        Check("server memory", max(peaks), MAX_MEMORY_MB, "MB at the peak"),
        Check("requests that failed", len(problems), 0),
    ]
    if heaps:
        checks += [Check("page heap", max(heaps), MAX_HEAP_MB, "MB"), Check("pages without their data", len(blank), 0)]
    return print_verdict("view", checks, notes=[f"never painted: {', '.join(blank)}"] if blank else [])


if __name__ == "__main__":
    sys.exit(main())
