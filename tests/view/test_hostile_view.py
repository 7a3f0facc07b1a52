"""Requests of other sites, other users and other programs at `ludus view`: none of them gets more than it may."""

import asyncio
import json
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from tests.build import make_rollout, make_task, make_turn

from ludus.run_info import keep_info
from ludus.store import RunDir
from ludus.types import Call, ToolResult
from ludus.view.acting import StartedCommands
from ludus.view.forms import FormBook
from ludus.view.routes import ViewState
from ludus.view.run_folder import RunFolder
from ludus.view.server import PageAccess, ViewServer

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\x00\x1b[2J\u202egnp.exe\u202c[x](javascript:alert(3))"
SECRET = "the content of a file outside of the runs"


class Served:
    """A server in a thread, and raw requests to it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.options = PageAccess(token="a-token-of-the-tests", **options)
        self._ready, self._loop = threading.Event(), asyncio.new_event_loop()
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, args=(folder,), daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def _run(self, folder: Path) -> None:
        try:
            self._loop.run_until_complete(self._serve(folder))
        finally:
            self._loop.close()

    async def _serve(self, folder: Path) -> None:
        self._stop = asyncio.Event()
        with RunFolder([folder / "runs"], folder / "cache") as runs:
            state = ViewState(runs, FormBook(folder), StartedCommands(folder / "logs", folder))
            async with ViewServer(state, self.options) as server:
                self.port = int(server.url.rpartition(":")[2])
                self._ready.set()
                await self._stop.wait()

    def close(self) -> None:
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def send(self, raw: bytes) -> bytes:
        """Send bytes on a connection of their own. Returns all that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), 30) as connection:
            connection.sendall(raw)
            parts: list[bytes] = []
            while part := connection.recv(1 << 16):
                parts.append(part)
            return b"".join(parts)

    def ask(self, path: str, method: str = "GET", body: bytes = b"", host: str = "", **headers: str) -> "Reply":
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self.port}'}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
        lines += [f"Content-Length: {len(body)}"] if body or method == "POST" else []
        return Reply(self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body))


class Reply:
    def __init__(self, raw: bytes) -> None:
        self.head, _, self.body = raw.partition(b"\r\n\r\n")
        self.status = int(self.head.split()[1]) if self.head else 0

    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs, one of which has hostile content; and a file beside it."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "secret.txt").write_text(SECRET)
    with RunDir.open(folder / "runs/one", {"env": {"name": EVIL}}) as run, keep_info(run, "evaluate", EVIL):
        call = Call("c", EVIL, EVIL)
        turn = make_turn(EVIL, ToolResult(call, EVIL, EVIL), thinking=EVIL)
        run.put("k" * 32, make_rollout(1.0, turn, task=make_task(EVIL, EVIL, kind=EVIL), feedback=EVIL))
    (folder / "runs/one/inside.txt").write_text(SECRET)
    return folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Generator[Served]:
    made = Served(folder)
    yield made
    made.close()


# ---- paths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/web/../../secret.txt",
        "//etc/passwd",
        "/%00",
        "/server.py",
        "/api/runs/..%2f..%2fsecret.txt",
        "/api/runs/%2e%2e",
        "/api/runs/..",
        "/api/runs/%2fetc",
        "/api/runs/one%2f..%2f..",
        "/api/runs/one/images/..%2finside.txt",
        "/api/runs/one/images/inside.txt",
        "/api/runs/one/images/%2fetc%2fpasswd",
        "/api/runs/one/rollouts/..%2f1",
        "/api/runs/one/rollouts/1/text?ref=..%2f..%2fsecret.txt",
        "/api/runs/one/rollouts/1/text?ref=file:/etc/passwd",
        "/api/runs/one/skills/..%2f..%2fsecret.txt",
        "/api/envs/..%2f..%2fsecret.txt/tasks",
        "/api/runs/one%00",
        "/api/starts/..%2f..%2fsecret.txt",
        "/api/starts/1",
    ],
)
def test_no_path_leads_out_of_the_runs(served: Served, path: str):
    reply = served.ask(path)
    assert reply.status in (400, 403, 404, 409), (path, reply.status, reply.body[:200])
    assert SECRET.encode() not in reply.body and b"root:" not in reply.body and b"Traceback" not in reply.body


# ---- other sites --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]"]
)
def test_a_name_that_points_here_is_refused(served: Served, host: str):
    for path in ("/", "/api/runs", "/api/session"):
        reply = served.ask(path, host=host)
        assert reply.status == 403 and EVIL.encode() not in reply.body


def test_a_request_without_a_host_is_refused(served: Served):
    assert Reply(served.send(b"GET /api/runs HTTP/1.1\r\nConnection: close\r\n\r\n")).status in (400, 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(served: Served, headers: dict[str, str]):
    assert served.ask("/api/runs", **headers).status == 403
    assert served.ask("/api/session", **headers).status == 403
    assert served.ask("/api/events", **headers).status == 403


def test_no_reply_allows_another_origin_or_a_frame(served: Served):
    for path in ("/", "/main.js", "/api/runs", "/nowhere"):
        head = served.ask(path).head.lower()
        assert b"access-control-allow" not in head
        assert b"x-content-type-options: nosniff" in head and b"frame-ancestors 'none'" in head
        assert b"unsafe-inline" not in head and b"unsafe-eval" not in head


# ---- tokens -------------------------------------------------------------------------------------------------------

ACTIONS = ("/api/runs/one/notes", "/api/runs/one/control", "/api/forms/evaluate/start", "/api/runs/one/skills/review")


@pytest.mark.parametrize("path", ACTIONS)
def test_an_action_needs_the_token_of_the_page(served: Served, path: str, folder: Path):
    body = b'{"tags": ["x"], "note": "x"}'
    kind = {"Content_Type": "application/json"}
    cookie = {"Cookie": f"ludus_view_{served.port}={served.options.token}"}
    for headers in (
        kind,
        {**kind, **cookie},
        {**kind, **cookie, "X_Ludus_Action": "wrong"},
        {**kind, **cookie, "X_Ludus_Action": served.options.token},
        {**kind, "X_Ludus_Action": "\xff\xfe"},
        {"Content_Type": "text/plain", **cookie},
    ):
        assert served.ask(path, "POST", body, **headers).status == 403
    assert not [name for name in (folder / "runs/one").iterdir() if "notes" in name.name]


def test_the_token_of_actions_goes_only_to_who_has_the_token(served: Served):
    assert served.ask("/api/session").json()["action_token"] == ""
    wrong = served.ask("/api/session", Cookie=f"ludus_view_{served.port}=wrong").json()
    assert not wrong["may_act"] and wrong["action_token"] == ""
    assert served.ask("/?token=wrong").status == 401
    reply = served.ask(f"/?token={served.options.token}")
    assert reply.status == 303 and b"HttpOnly; SameSite=Strict" in reply.head and b"Location: /\r\n" in reply.head
    right = served.ask("/api/session", Cookie=f"ludus_view_{served.port}={served.options.token}").json()
    assert right["may_act"] and right["action_token"] not in ("", served.options.token)


def test_elsewhere_nothing_is_read_without_the_token(folder: Path):
    made = Served(folder, host="0.0.0.0")
    try:
        for path in ("/", "/main.js", "/api/runs", "/api/session", "/api/events", "/?token=wrong"):
            assert made.ask(path).status == 401
        assert made.ask("/api/runs", Authorization=f"Bearer {made.options.token}").status == 200
        assert made.ask("/api/runs", host="evil.example", Authorization=f"Bearer {made.options.token}").status == 403
        assert made.ask(f"/api/runs?token={made.options.token}").status == 401, "no token in addresses of the API"
    finally:
        made.close()


def test_read_only_refuses_every_action(folder: Path):
    made = Served(folder, read_only=True)
    try:
        cookie = f"ludus_view_{made.port}={made.options.token}"
        session = made.ask("/api/session", Cookie=cookie).json()
        assert session["read_only"] and not session["may_act"] and session["action_token"] == ""
        for path in ACTIONS:
            assert made.ask(path, "POST", b"{}", Cookie=cookie, Content_Type="application/json").status == 403
    finally:
        made.close()


# ---- bad requests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 1000 + b"\r\n\r\n",
        b"POST /api/runs/one/notes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n"
        + b"x" * 2_000_000,
        b"POST /api/runs/one/notes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    ],
    ids=["path", "headers", "tls", "zeros", "huge", "negative"],
)
def test_what_is_no_request_is_refused_and_the_server_goes_on(served: Served, raw: bytes):
    try:
        reply = Reply(served.send(raw))
        assert reply.status == 0 or reply.status >= 400
    except (ConnectionResetError, BrokenPipeError):  # closed before all of it was sent
        pass
    assert served.ask("/api/runs").status == 200


@pytest.mark.parametrize(
    "query",
    [
        "&".join(f"q{n}=x" for n in range(1000)),
        "limit=1e9",
        "limit=-1",
        "limit=99999999999999999999999",
        "offset=-5",
        "cursor=AAAA%00",
        "cursor=%f0%28%8c%28",
        "sort=id;drop%20table%20rollouts",
        "sort=-",
        "q=%27%20OR%201=1--",
        "q=" + "%25" * 5000,
        "%ff=%fe",
        "result=nonsense",
    ],
)
def test_strange_parameters_are_answered_without_an_error_of_the_server(served: Served, query: str):
    for path in ("/api/runs", "/api/runs/one/rollouts", "/api/runs/one/tasks"):
        reply = served.ask(f"{path}?{query}")
        assert reply.status in (200, 400), (path, query[:40], reply.status, reply.body[:200])
    assert served.ask("/api/runs/one/rollouts").json()["total"] == 1


def test_many_slow_clients_do_not_stop_the_others(served: Served):
    slow = [socket.create_connection(("127.0.0.1", served.port), 30) for _ in range(100)]
    try:
        for number, connection in enumerate(slow):
            begun = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n" if number % 2 else b"GET /api/ru"
            connection.sendall(begun)
        assert served.ask("/api/runs").status == 200
    finally:
        for connection in slow:
            connection.close()
    assert served.ask("/api/runs").status == 200


# ---- content ------------------------------------------------------------------------------------------------------


def test_hostile_content_is_data_and_its_html_is_inert(served: Served):
    row = served.ask("/api/runs/one/rollouts").json()["rows"][0]
    reply = served.ask(f"/api/runs/one/rollouts/{row['id']}")
    assert reply.status == 200 and b"content-type: application/json" in reply.head.lower()
    found = list_html(reply.json())
    assert found, "some texts are rendered on the server"
    for html in found:
        lowered = html.lower()
        assert "<script" not in lowered and "<img" not in lowered and 'href="javascript' not in lowered
        assert "onerror=" not in lowered or "&lt;img" in lowered
        assert "\x1b" not in html and "\x00" not in html


def list_html(value: Any) -> list[str]:
    """Every text of a field `html`."""
    if isinstance(value, dict):
        own = [text for name, text in value.items() if name == "html" and text]
        return [*own, *(text for each in value.values() for text in list_html(each))]
    return [text for each in value for text in list_html(each)] if isinstance(value, list) else []
