"""`ludus view` over HTTP: pages from the package, the JSON API, and changes by push.

Who may ask. On a loopback address everybody on this machine may read, as with the other servers of Ludus; elsewhere
every request needs the token. Actions need it everywhere: the address that the command prints sets a cookie, a request
with the cookie gets the token of actions (`/api/session`), and each action sends that back in a header. So neither
another user of the machine nor another site in the same browser can act.

What is refused. A request whose `Host` is a name that is not this machine's: a site that lets its name point here (DNS
rebinding) would be the same origin to a browser. A request for the API that a browser marks as coming from another site
(`Origin`, `Sec-Fetch-Site`). Any method but GET and HEAD, but for actions. Files are in a table that is read at the
start: no path leads to a disk. A content security policy allows no inline script, no style, no other origin.

Changes are pushed: `/api/events` is a stream of server-sent events. Files are looked at while somebody listens.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, unquote

from ludus import __version__
from ludus.encoding import to_json
from ludus.errors import ConfigError, StoreError, describe_error
from ludus.http_server import EVENTS, JSON, Connection, Listener, Request, Responder, close_connections
from ludus.view.changes import ChangeWatch
from ludus.view.model import ChangeEvent, ViewError, ViewSession
from ludus.view.paging import Parameters
from ludus.view.routes import ViewReply, ViewState, answer, make_error
from ludus.view.run_folder import UnknownRun

WEB = Path(__file__).with_name("web")
BODY_BYTES = 1_000_000
MOST_PARAMETERS = 200
LOOK_SECONDS = 0.5
QUIET_LOOKS = 10
"""With very many runs, those that do not run are looked at every so many looks."""
PING_SECONDS = 15.0
CLOSE_SECONDS = 0.5
_KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = (
    b"Content-Security-Policy: " + POLICY + b"\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    b"Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\nX-Frame-Options: DENY\r\n"
)
_FRESH = _SAFE + b"Cache-Control: no-store\r\n"


class StaticFile(NamedTuple):
    body: bytes
    kind: bytes
    tag: str


def read_static(folder: Path = WEB) -> dict[str, StaticFile]:
    """The files of the pages by the path in the address."""
    found = {
        f"/{file.name}": StaticFile(body, _KINDS[file.suffix], hashlib.sha256(body).hexdigest()[:20])
        for file in sorted(folder.iterdir())
        if file.suffix in _KINDS
        for body in [file.read_bytes()]
    }
    return {**found, "/": found["/index.html"]} if "/index.html" in found else found


@dataclass(frozen=True)
class PageAccess:
    """How the pages are served."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    read_only: bool = False

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Listening:
    """A page that waits for changes."""

    def __init__(self, responder: Responder, runs: tuple[str, ...]) -> None:
        self.responder = responder
        self.runs = runs
        """Empty: all runs of the folder."""


class ViewServer:
    """Serves the pages of a folder of runs, as an async context manager."""

    def __init__(self, state: ViewState, options: PageAccess, static: Mapping[str, StaticFile] | None = None) -> None:
        self.state = state
        self.options = options
        self.url = ""
        self._static = read_static() if static is None else static
        self._action = hmac.new(options.token.encode(), b"ludus view: actions", "sha256").hexdigest()
        self._connections: set[Connection] = set()
        self._threads = ThreadPoolExecutor(4, "ludus-view")
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: set[_Listening] = set()
        self._heard = asyncio.Event()
        self._listener: Listener | None = None
        self._cookie = "ludus_view"
        self._indexing: set[str] = set()

    async def __aenter__(self) -> Self:
        host, port = self.options.host, self.options.port
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise ConfigError(
                f"view: cannot listen on {host}:{port}: {error.strerror or error}; try --port 0"
            ) from None
        self._listener = Listener(listening, self._accept)
        bound = listening.getsockname()[1]
        self._cookie = f"ludus_view_{bound}"
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
        self._spawn(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._listener is not None:
            await self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await close_connections(self._connections, CLOSE_SECONDS)
        self._threads.shutdown(wait=True, cancel_futures=True)

    @property
    def address(self) -> str:
        """The address to open: it has the token, and the page forgets it at once."""
        return f"{self.url}/?token={self.options.token}"

    def _accept(self) -> Connection:
        return Connection(self._connections, self.serve, _refuse, BODY_BYTES)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- one request ----------------------------------------------------------------------------------------------

    def serve(self, responder: Responder) -> None:
        request = responder.request
        try:
            given = Parameters(parse_qs(request.query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS))
        except ValueError:
            _send(responder, make_error(400, f"the address has more than {MOST_PARAMETERS} parameters"))
            return
        if (refusal := self._check(request, given)) is not None:
            _send(responder, refusal)
        elif request.path.startswith("/api/"):
            self._serve_api(responder, given)
        else:
            self._serve_static(responder, given)

    def _check(self, request: Request, given: Parameters) -> ViewReply | None:
        """Why a request is refused; None if it is not."""
        if not self._is_known_host(request.get_header(b"host")):
            return make_error(403, "Host: this is not a name of this machine; use its address, or localhost")
        is_api = request.path.startswith("/api/")
        if request.method not in ("GET", "HEAD", "POST") or (request.method == "POST" and not is_api):
            return make_error(405, f"{request.method[:20]} is not possible here")
        site = request.get_header(b"sec-fetch-site")
        if is_api and site not in ("", "same-origin", "none"):
            return make_error(403, "requests of other sites are refused")
        origin = request.get_header(b"origin")
        if origin and origin.partition("://")[2] != request.get_header(b"host"):
            return make_error(403, "requests of other sites are refused")
        if not self.options.is_loopback and not self._has_token(request, given):
            return make_error(401, "the token is missing or wrong: open the address that ludus view printed")
        return self._check_action(request) if request.method == "POST" else None

    def _check_action(self, request: Request) -> ViewReply | None:
        if self.options.read_only:
            return make_error(403, "ludus view runs with --read-only: nothing can be changed")
        if not request.get_header(b"content-type").startswith("application/json"):
            return make_error(403, "an action is a POST of application/json")
        sent = request.get_header(b"x-ludus-action")
        if not hmac.compare_digest(sent.encode(), self._action.encode()):
            return make_error(
                403, "the token of the page is missing or wrong: open the address that ludus view printed"
            )
        return None

    def _is_known_host(self, given: str) -> bool:
        host = given.rpartition(":")[0] if given.rpartition(":")[2].isdecimal() and not given.endswith("]") else given
        name = host.strip("[]").lower().rstrip(".")
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return not self.options.is_loopback and name in {socket.gethostname().lower(), socket.getfqdn().lower()}
        return address.is_loopback if self.options.is_loopback else True

    def _has_token(self, request: Request, given: Parameters) -> bool:
        bearer = request.get_header(b"authorization").removeprefix("Bearer ").strip()
        kept = [part.strip() for part in request.get_header(b"cookie").split(";")]
        cookie = next((part.partition("=")[2] for part in kept if part.startswith(f"{self._cookie}=")), "")
        shown = (bearer, cookie, given.get("token") if request.path == "/" else "")
        return any(hmac.compare_digest(each.encode(), self.options.token.encode()) for each in shown if each)

    def _serve_static(self, responder: Responder, given: Parameters) -> None:
        request = responder.request
        if request.path == "/" and given.get("token"):
            if not self._has_token(request, given):
                _send(responder, make_error(401, "the token is wrong: open the address that ludus view printed"))
                return
            cookie = f"Set-Cookie: {self._cookie}={self.options.token}; Path=/; HttpOnly; SameSite=Strict\r\n"
            responder.send(303, b"text/plain", b"", _FRESH + b"Location: /\r\n" + cookie.encode())
            return
        found = self._static.get(request.path)
        if found is None:
            _send(responder, make_error(404, "there is no such page"))
            return
        extra = _SAFE + f'ETag: "{found.tag}"\r\nCache-Control: no-cache\r\n'.encode()
        if found.tag in request.get_header(b"if-none-match"):
            responder.send(304, found.kind, b"", extra)
        else:
            responder.send(200, found.kind, found.body, extra)

    def _serve_api(self, responder: Responder, given: Parameters) -> None:
        request = responder.request
        parts = [unquote(part) for part in request.path.removeprefix("/api/").split("/")]
        if parts == ["session"] and request.method != "POST":
            _send(responder, ViewReply(200, JSON, to_json(self._describe_session(request, given))))
        elif parts == ["events"] and request.method == "GET":
            self._listen(responder, given)
        else:
            self._spawn(self._answer(responder, parts, given))

    async def _answer(self, responder: Responder, parts: list[str], given: Parameters) -> None:
        request = responder.request
        method = "GET" if request.method == "HEAD" else request.method
        loop = asyncio.get_running_loop()
        try:
            reply = await loop.run_in_executor(self._threads, answer, self.state, method, parts, given, request.body)
        except Exception as error:  # a bug in one page must not end the others; the reader sees what it is
            reply = make_error(500, f"this page failed: {describe_error(error)}")
        _send(responder, reply)
        if parts[:1] == ["runs"] and len(parts) > 1 and reply.status == 200:
            self._index(parts[1])

    def _describe_session(self, request: Request, given: Parameters) -> ViewSession:
        known = self._has_token(request, given)
        why = (
            "ludus view runs with --read-only"
            if self.options.read_only
            else ""
            if known
            else "open the address that ludus view printed: it has the token that actions need"
        )
        runs = self.state.folder.scan()
        return ViewSession(
            version=__version__,
            title=", ".join(str(root) for root in self.state.folder.roots),
            read_only=self.options.read_only,
            may_act=not why,
            action_token="" if why else self._action,
            why_not=why,
            single=next(iter(runs)) if len(runs) == 1 else "",
            now=time.time(),
        )

    # ---- changes --------------------------------------------------------------------------------------------------

    def _listen(self, responder: Responder, given: Parameters) -> None:
        page = _Listening(responder, given.get_all("run"))
        responder.on_lost = lambda: self._listening.discard(page)
        responder.begin(EVENTS + b"\r\nX-Accel-Buffering: no", b": here are changes\n\n")
        self._listening.add(page)
        self._heard.set()

    async def _watch(self) -> None:
        """Look at files while somebody listens, and tell what has changed."""
        watch, looks, pinged = ChangeWatch(), 0, time.monotonic()
        loop = asyncio.get_running_loop()
        while True:
            if not self._listening:
                self._heard.clear()
                await self._heard.wait()
                watch = ChangeWatch()
            looks += 1
            change = await loop.run_in_executor(self._threads, self._look, watch, looks)
            if change is not None:
                self._tell(change)
            if time.monotonic() - pinged > PING_SECONDS:
                pinged = time.monotonic()
                for page in tuple(self._listening):
                    page.responder.feed(b": still here\n\n")
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self, watch: ChangeWatch, looks: int) -> ChangeEvent | None:
        listening = tuple(self._listening)
        wants_all = any(not page.runs for page in listening)
        if wants_all and (looks % QUIET_LOOKS == 1 or len(self.state.folder.scan()) <= 100):
            return watch.look(self.state.folder.scan(), listed=True)
        paths: dict[str, Path] = {}
        for id in {run for page in listening for run in page.runs}:
            try:
                paths[id] = self.state.folder.find(id)
            except UnknownRun:  # it does not exist yet, or any more
                continue
        return watch.look(paths, listed=False)

    def _tell(self, change: ChangeEvent) -> None:
        for page in tuple(self._listening):
            if not page.runs or set(page.runs) & set(change.runs):
                page.responder.feed(b"event: change\ndata: " + to_json(change) + b"\n\n")

    def _index(self, run: str) -> None:
        """Index the older rollouts of a run that somebody looks at, beside everything else."""
        if run not in self._indexing:
            self._indexing.add(run)
            self._spawn(self._build(run))

    async def _build(self, run: str) -> None:
        loop, left = asyncio.get_running_loop(), 1
        try:
            path = self.state.folder.find(run)
            while left:
                before = left
                left = await loop.run_in_executor(self._threads, self.state.folder.facts.build, path, 0.5)
                if before > 1 or left:
                    self._tell(ChangeEvent(runs=(run,), what=("index",)))
                if left >= before > 1:
                    break  # it cannot be made: there is no cache
        except StoreError:
            return  # the page says what is wrong with the run
        finally:
            self._indexing.discard(run)


def _refuse(status: int, message: str) -> bytes:
    return to_json(ViewError(message))


def _send(responder: Responder, reply: ViewReply) -> None:
    responder.send(reply.status, reply.kind, reply.body, _FRESH)
