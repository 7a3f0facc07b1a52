"""The server: who may ask and act, what is refused, what is pushed, and that no run is harmed."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.build import make_rollout, make_task
from tests.cli_kit import LUDUS
from tests.view_kit import keep_running, make_hostile_rollout, make_long_rollout, write_rollouts

from ludus.store import RunDir
from ludus.view.acting import StartedCommands
from ludus.view.forms import FormBook
from ludus.view.routes import ViewState
from ludus.view.run_folder import RunFolder
from ludus.view.server import PageAccess, ViewServer

TOKEN = "a-token-for-tests"


class Reply:
    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status = found.status
        self.headers = {name.lower(): value for name, value in found.getheaders()}
        self.body = found.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(port: int, path: str, method: str = "GET", body: object = None, **headers: str) -> Reply:
    """One request. `_` in a header's name is `-`."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = None if body is None else json.dumps(body)
    connection.putrequest(method, path, skip_host="Host" in named)
    for name, value in named.items():
        connection.putheader(name, value)
    if data is not None:
        connection.putheader("Content-Length", str(len(data)))
        if "Content-Type" not in named:
            connection.putheader("Content-Type", "application/json")
    connection.endheaders(data.encode() if data is not None else None)
    reply = Reply(connection.getresponse())
    connection.close()
    return reply


def serve(roots: list[Path], test: Callable[[int], None], cache: Path | None = None, **options: Any) -> None:
    """Serve folders while a test asks, in a thread."""

    async def run() -> None:
        with RunFolder(roots, cache) as folder:
            work = roots[0] if roots[0].is_dir() else roots[0].parent
            state = ViewState(folder, FormBook(roots[0]), StartedCommands(work.parent / "logs", work.parent))
            async with ViewServer(state, PageAccess(token=TOKEN, **options)) as server:
                await asyncio.to_thread(test, int(server.url.rpartition(":")[2]))

    asyncio.run(run())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_rollouts(tmp_path / "runs" / "a", [make_rollout(n % 2, task=make_task(f"t{n}")) for n in range(6)])
    write_rollouts(tmp_path / "runs" / "deep" / "b", [make_rollout(1.0)])
    return tmp_path / "runs"


def find_action(port: int) -> str:
    return ask(port, "/api/session", Authorization=f"Bearer {TOKEN}").json["action_token"]


# ---- reading --------------------------------------------------------------------------------------------------------


def test_runs_and_their_pages_are_served(runs: Path):
    def test(port: int) -> None:
        page = ask(port, "/api/runs?sort=id").json
        assert [row["id"] for row in page["rows"]] == ["a", "deep/b"]
        overview = ask(port, f"/api/runs/{quote('deep/b', safe='')}").json
        assert overview["card"]["score"] == 1.0 and overview["card"]["state"] == "finished"
        assert ask(port, "/api/runs/a").json["card"]["score"] == 0.5
        assert ask(port, "/api/runs/a/rollouts?limit=2").json["total"] == 6
        assert ask(port, "/api/runs/a/rollouts/1").json["row"]["task"] == "t0"
        assert ask(port, "/api/runs/a/rollouts/1/json").json["task"]["id"] == "t0"
        assert ask(port, "/api/runs/a", "HEAD").body == b""
        for path in ("/api/runs/none", "/api/runs/a/rollouts/99", "/api/nothing", "/none.js", "/api/runs/a/rollouts/x"):
            assert ask(port, path).status == 404 and "error" in ask(port, path).json
        assert ask(port, "/api/runs?sort=colour").status == 400

    serve([runs], test)


def test_a_damaged_run_says_why(runs: Path):
    (runs / "a" / "store.sqlite").write_bytes(b"no database" * 50)
    (runs / "c").mkdir()
    (runs / "c" / "config.json").write_text("{")

    def test(port: int) -> None:
        rows = {row["id"]: row for row in ask(port, "/api/runs").json["rows"]}
        assert rows["a"]["state"] == rows["c"]["state"] == "damaged"
        assert "damaged" in rows["a"]["message"] and "config.json is damaged" in rows["c"]["message"]
        assert ask(port, "/api/runs/a").status == 409 and "damaged" in ask(port, "/api/runs/a").json["error"]
        assert rows["deep/b"]["state"] == "finished"

    serve([runs], test)


def test_a_huge_rollout_is_read_in_pieces(tmp_path: Path):
    write_rollouts(tmp_path / "runs" / "long", [make_long_rollout(1500, 5_000_000), make_hostile_rollout()])

    def test(port: int) -> None:
        detail = ask(port, "/api/runs/long/rollouts/1")
        assert len(detail.body) < 1_000_000
        part = detail.json["page"]["turns"][0]["calls"][0]["result"]
        assert part["cut"] and part["size"] == 5_000_000 and len(part["text"]) <= 8_000
        place = f"/api/runs/long/rollouts/1/text?ref={part['ref']}&start=4999990&end=9999999"
        assert ask(port, place).json["text"] == "6789abcdef"
        piece = ask(port, f"/api/runs/long/rollouts/1/text?ref={part['ref']}").json
        assert len(piece["text"]) == 200_000 and piece["size"] == 5_000_000
        numbers, first = list[int](), 1
        while first:
            page = ask(port, f"/api/runs/long/rollouts/1/turns?first={first}&limit=100").json
            numbers += [turn["number"] for turn in page["turns"]]
            first = page["next"]
        assert numbers == list(range(1, 1501))
        hostile = ask(port, "/api/runs/long/rollouts/2")
        assert len(hostile.body) < 1_000_000 and hostile.json["page"]["turns"][1]["text"]["size"] == 5_000_000
        html = hostile.json["page"]["turns"][0]["text"]["html"]
        assert "<script" not in html and "<img" not in html and "onerror=&quot;" in html
        for ref in ("turn.0.text", "turn.9999.text", "file.0", "../x", "turn.1.result.7", "", "opening.-1"):
            assert ask(port, f"/api/runs/long/rollouts/1/text?ref={quote(ref)}").status == 400

    serve([tmp_path / "runs"], test)


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_paths_lead_nowhere_else(runs: Path):
    (runs.parent / "secret.json").write_text("secret")

    def test(port: int) -> None:
        for path in (
            "/../secret.json",
            "/%2e%2e/secret.json",
            "/api/runs/..%2Fsecret.json",
            "/api/runs/a%2F..%2F..%2Fsecret.json",
            "/api/runs/a/images/..%2F..%2F..%2Fsecret.json",
            "/api/runs/a/images/..%2Fconfig.json",
            "/api/runs/a/images/%2Fetc%2Fpasswd",
            "/server.py",
            "//etc/passwd",
            "/api/runs/%00",
        ):
            reply = ask(port, path)
            assert reply.status == 404 and b"secret" not in reply.body.replace(b"secret.json", b"")

    serve([runs], test)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:9999"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8600"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "10.0.0.1"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Sec_Fetch_Site": "none"}, 200),
    ],
)
def test_other_names_and_other_sites_are_refused(runs: Path, headers: dict[str, str], status: int):
    serve([runs], lambda port: _expect(ask(port, "/api/runs", **headers), status))


def _expect(reply: Reply, status: int) -> None:
    assert reply.status == status, reply.body


def test_pages_have_a_strict_policy_and_no_cors(runs: Path):
    def test(port: int) -> None:
        page = ask(port, "/")
        assert page.status == 200 and page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert not [name for name in page.headers if name.startswith("access-control")]
        assert page.headers["x-content-type-options"] == "nosniff"
        again = ask(port, "/", If_None_Match=page.headers["etag"])
        assert again.status == 304 and again.body == b""
        assert ask(port, "/api/runs").headers["cache-control"] == "no-store"
        for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
            assert ask(port, "/api/runs", method).status == 405
        assert ask(port, "/", "POST").status == 405

    serve([runs], test)


def test_an_action_needs_the_token_of_the_page(runs: Path):
    notes = {"tags": ["paper", "paper", " "], "note": "good"}

    def test(port: int) -> None:
        shown = ask(port, "/api/session").json
        assert not shown["may_act"] and shown["action_token"] == "" and "address" in shown["why_not"]
        opened = ask(port, f"/?token={TOKEN}")
        assert opened.status == 303 and opened.headers["location"] == "/"
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        action = ask(port, "/api/session", Cookie=cookie.partition(";")[0]).json["action_token"]
        assert action and action == find_action(port) != TOKEN
        assert ask(port, "/?token=wrong").status == 401
        for wrong in ({}, {"X_Ludus_Action": "x"}, {"X_Ludus_Action": TOKEN}, {"Authorization": f"Bearer {TOKEN}"}):
            assert ask(port, "/api/runs/a/notes", "POST", notes, **wrong).status == 403
        form = {"X_Ludus_Action": action, "Content_Type": "text/plain"}
        assert ask(port, "/api/runs/a/notes", "POST", notes, **form).status == 403
        site = {"X_Ludus_Action": action, "Origin": "http://evil.example"}
        assert ask(port, "/api/runs/a/notes", "POST", notes, **site).status == 403
        assert not (runs / "a" / "view.json").exists()
        own = {"X_Ludus_Action": action, "Origin": f"http://127.0.0.1:{port}"}
        assert ask(port, "/api/runs/a/notes", "POST", notes, **own).json["ok"]
        row = next(row for row in ask(port, "/api/runs?tag=paper").json["rows"] if row["id"] == "a")
        assert (row["tags"], row["note"]) == (["paper"], "good")
        assert ask(port, "/api/runs/a/notes", "POST", {"tags": 3}, X_Ludus_Action=action).status == 400
        asked = ask(port, "/api/runs/a/control", "POST", {"do": "pause"}, X_Ludus_Action=action)
        assert asked.status == 409 and "no run answers" in asked.json["error"]

    serve([runs], test)


def test_read_only_refuses_every_action(runs: Path):
    def test(port: int) -> None:
        shown = ask(port, "/api/session", Authorization=f"Bearer {TOKEN}").json
        assert shown["read_only"] and not shown["may_act"] and not shown["action_token"]
        for path in ("runs/a/notes", "runs/a/control", "forms/evaluate/start", "runs/a/skills/review"):
            reply = ask(port, f"/api/{path}", "POST", {}, X_Ludus_Action="x", Authorization=f"Bearer {TOKEN}")
            assert reply.status == 403 and "read-only" in reply.json["error"]

    serve([runs], test, read_only=True)


def test_elsewhere_everything_needs_the_token(runs: Path):
    def test(port: int) -> None:
        for path in ("/", "/api/runs", "/api/events", "/main.js"):
            assert ask(port, path).status == 401
            assert ask(port, path, Authorization="Bearer wrong").status == 401
        assert ask(port, "/api/runs", Authorization=f"Bearer {TOKEN}").status == 200
        assert ask(port, "/api/runs", Authorization=f"Bearer {TOKEN}", Host="evil.example").status == 403
        cookie = ask(port, f"/?token={TOKEN}").headers["set-cookie"].partition(";")[0]
        assert ask(port, "/api/runs", Cookie=cookie).status == 200

    serve([runs], test, host="0.0.0.0")


def test_another_address_needs_a_token_to_begin_with(runs: Path, ludus: Any):
    done = ludus("view", str(runs), "--host", "0.0.0.0", "--no-browser")
    assert done.code == 2 and "--token-var" in done.err and "ssh -L" in done.err
    missing = ludus("view", "nowhere", "--no-browser")
    assert missing.code == 2 and "there is no folder nowhere" in missing.err


# ---- changes --------------------------------------------------------------------------------------------------------


@contextmanager
def listen(port: int, query: str = "") -> Generator[Callable[[], dict[str, Any]]]:
    """The stream of changes: a function that waits for the next one."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as found, found.makefile("rb") as file:
        found.sendall(f"GET /api/events{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while b"here are changes" not in (line := file.readline()):
            assert line, "the stream has ended"

        def read() -> dict[str, Any]:
            while not (line := file.readline()).startswith(b"data: "):
                assert line, "the stream has ended"
            return json.loads(line[6:])

        yield read


WRITE = """
import sys; from pathlib import Path
from tests.build import make_rollout
from ludus.store import RunDir
with RunDir.open(Path(sys.argv[1]), {"env": {"name": "made"}}, resume=True) as run:
    run.put("x" * 32, make_rollout(1.0))
"""


def test_a_change_by_another_process_is_pushed(runs: Path):
    def test(port: int) -> None:
        with listen(port, "?run=a") as read:
            ask(port, "/api/runs/a")
            subprocess.run([*LUDUS[:1], "-c", WRITE, str(runs / "a")], check=True, cwd=Path(__file__).parents[2])
            change = read()
            while "store" not in change["what"]:
                change = read()
            assert change["runs"] == ["a"]
        assert ask(port, "/api/runs/a").json["card"]["rollouts"] == 7

    serve([runs], test)


def test_a_new_run_is_pushed_to_the_list(runs: Path):
    def test(port: int) -> None:
        with listen(port) as read:
            ask(port, "/api/runs")
            write_rollouts(runs / "new", [make_rollout(1.0)])
            change = read()
            while "new" not in change["runs"]:
                change = read()
        assert "new" in [row["id"] for row in ask(port, "/api/runs").json["rows"]]

    serve([runs], test)


def test_a_run_that_goes_on_is_paused_and_resumed_and_survives_the_server(tmp_path: Path):
    with keep_running(tmp_path) as process:
        words = [*LUDUS, "view", "runs", "--no-browser", "--port", "0", "--json"]
        variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        server = subprocess.Popen(words, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        port, token = int(told["url"].rpartition(":")[2]), told["address"].partition("token=")[2]
        action = ask(port, "/api/session", Authorization=f"Bearer {token}").json["action_token"]

        def control(**body: Any) -> dict[str, Any]:
            while True:
                reply = ask(port, "/api/runs/running/control", "POST", body, X_Ludus_Action=action)
                if reply.status != 409:  # it has just begun, and does not answer yet
                    return reply.json
                assert process.poll() is None

        assert control(do="pause")["ok"]
        overview = ask(port, "/api/runs/running").json
        assert overview["live"]["paused"] and overview["can_control"] and overview["card"]["state"] == "running"
        assert control(do="set", concurrency=3)["ok"]
        assert control(do="resume")["ok"]
        events = ask(port, "/api/runs/running/events").json
        assert [event["facts"]["do"] for event in events] == ["pause", "set", "resume"]
        assert all(event["who"].startswith("ludus view") for event in events)
        server.send_signal(signal.SIGKILL)
        server.wait()
        server.stdout.close()
        (tmp_path / "go").touch()
        assert process.wait(120) == 0
    with RunDir.read(tmp_path / "runs" / "running") as run:
        assert run.measure_scores()[:2] == (18, 18)


# ---- starting -------------------------------------------------------------------------------------------------------


def test_a_form_is_equal_to_a_command_line_and_starts_it(tmp_path: Path):
    from tests.cli_kit import script_flags, write_sums

    write_sums(tmp_path)
    (tmp_path / "runs").mkdir()
    flags = script_flags()
    values = {
        "env": "sums.py",
        "out": "runs/made",
        **{n.removeprefix("--"): v for n, v in zip(flags[::2], flags[1::2], strict=True)},
    }

    def test(port: int) -> None:
        action = find_action(port)
        form = ask(port, "/api/forms/evaluate").json
        assert {"env", "out", "env.limit", "run.concurrency"} <= {field["name"] for field in form["fields"]}
        shown = ask(port, "/api/forms/evaluate/preview", "POST", {"values": values}, X_Ludus_Action=action).json
        assert shown["problem"] == "" and shown["line"].startswith(
            "ludus evaluate sums.py --out runs/made --model.type"
        )
        for wrong, words in (
            ({"env": ""}, "which environment"),
            ({"env.limit": "many"}, "whole number"),
            ({"x.y": "1"}, "unknown"),
        ):
            body = {"values": {**values, **wrong}}
            refused = ask(port, "/api/forms/evaluate/preview", "POST", body, X_Ludus_Action=action).json
            assert words in refused["problem"]
            assert ask(port, "/api/forms/evaluate/start", "POST", body, X_Ludus_Action=action).status == 400
        started = ask(port, "/api/forms/evaluate/start", "POST", {"values": values}, X_Ludus_Action=action).json
        assert started["run"] == "made"
        os.waitid(os.P_PID, started["pid"], os.WEXITED | os.WNOWAIT)
        log = ask(port, f"/api/starts/{started['pid']}").json
        assert (log["running"], log["code"]) == (False, 0), log["text"]
        assert ask(port, "/api/runs/made").json["card"]["rollouts"] == 4
        assert ask(port, "/api/forms/rm").status == 400

    serve([tmp_path / "runs"], test)
