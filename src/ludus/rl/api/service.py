"""The HTTP routes of the trajectory server: the wire of Atropos 0.4.0, and a few additions.

| route | who | what |
|---|---|---|
| `POST /register` | trainer | batch size, steps, names |
| `GET /batch` | trainer | the next batch; the first call lets environments register |
| `POST /ack` | trainer | acknowledge a batch (addition) |
| `POST /register-env`, `/disconnect-env` | environment | come and go |
| `POST /scored_data`, `/scored_data_list` | environment | one group, several groups |
| `GET /status-env` | environment | the queue as it sees it; the id is in the body or in the query |
| `GET /info`, `/wandb_info`, `/status`, `/latest_example`, `/` | anybody | state |
| `GET /reset_data` | anybody | forget everything |
| `GET /metrics` | a monitor | counters for Prometheus (addition) |

Most routes answer at once. A request becomes a task only where it has to wait: for a flush to the disk, for a checker,
or for the compression of a long body or reply, which runs in a thread.

Who may ask is decided by the head of a request, before its body is read. Without a token, only programs of this machine
are served: a request that a page in a browser sends is refused, by its `Origin`, `Referer` or `Sec-Fetch-Site`, and by
a `Host` that is the name of another site, which leads here by a trick with the DNS.
"""

import asyncio
import ipaddress
import re
import secrets
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs, urlsplit

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError, StoreError
from ludus.http_server import JSON, METRICS, Connection, Request, Responder, close_connections
from ludus.rl.api.check_pool import CheckPool
from ludus.rl.api.group_log import DiskFull
from ludus.rl.api.large_bodies import LARGE, CheckFailed, LargeBodies
from ludus.rl.api.posted_groups import KEYS, BadGroup, CheckedGroup, check_groups
from ludus.rl.api.state import (
    EnvDisconnected,
    EnvRecord,
    EnvRegistered,
    EnvRegistration,
    Number,
    Registration,
    TrainerRegistered,
    Wait,
)
from ludus.rl.api.trajectory_run import BacklogFull, Oversize, TrajectoryRun
from ludus.rl.atropos_client import BATCH_HEADER, CONSUMER_HEADER, KEY_HEADER, SERVER_HEADER
from ludus.rl.server_settings import ApiSettings

ACK_HEADER = "X-Ludus-Batch-Ack"
"""On `GET /batch`: the id of the batch that is done."""
WAIT_HEADER = "X-Ludus-Waiting-For"
"""On an empty `/batch`: why there is none."""

TEXT = b"text/plain; charset=utf-8"
MIN_GZIP = 1000
"""A shorter reply is not compressed."""
THREAD_BYTES = 64 * 1024
"""A longer reply is compressed in a thread."""
GZIP_LEVEL = 1
"""Replies are numbers for one trainer: a higher level takes four times as long for a tenth less."""
CLOSE_SECONDS = 2.0
SMALL_BODY = 1024 * 1024
"""The longest body of a route that takes no groups."""
MOST_MEMBERS = 16
"""How many members gzip data may have: what programs send has one."""
INFLATED_AT_ONCE = 2
"""How many bodies are decompressed at the same time: each may become as long as a body may be."""
MOST_NAME = 512
"""The longest idempotency key and name of a consumer: many are remembered."""
_MARK = f"{SERVER_HEADER}: 1\r\n".encode()
_EXAMPLE_KEYS = (*KEYS[:5], "generation_params", "inference_logprobs", "messages", "images")
_NO_EXAMPLE = msgspec.json.encode({key: list[int]() for key in _EXAMPLE_KEYS})

T = TypeVar("T")
Reply = tuple[int, bytes, bytes, bytes]
"""Status, media type, body, further header lines."""


class Refused(Exception):
    """A request is answered with an error."""

    def __init__(self, status: int, detail: object, extra: bytes = b"") -> None:
        super().__init__(str(detail))
        self.reply: Reply = (status, JSON, msgspec.json.encode({"detail": detail}), extra)


class EnvIdentifier(Struct):
    """The body of `/status-env` and `/disconnect-env`."""

    env_id: Number


class BatchIdentifier(Struct):
    """The body of `/ack`."""

    batch_id: Number


class TrajectoryServer:
    """Serves one run.

    >>> run = TrajectoryRun(folder, settings, time.monotonic(), print)
    >>> async with TrajectoryServer(run, settings) as server:
    ...     ...  # environments and trainers use server.url
    """

    def __init__(
        self,
        run: TrajectoryRun,
        settings: ApiSettings,
        *,
        pool: CheckPool | None = None,
        token: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._settings = settings
        self._pool = pool or CheckPool(0, lambda _: None)
        self._large = LargeBodies()
        self._inflating = asyncio.Semaphore(INFLATED_AT_ONCE)
        self._token = f"Bearer {token}".encode() if token else b""
        self._clock = clock
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._limit = settings.body_mb * 1024 * 1024
        self._syncing: list[asyncio.Future[None]] = []
        self._latest = b""
        self._counts: Counter[str] = Counter()
        self._moved: float | None = None
        """When a group was last accepted, or a batch sent; None: not yet."""
        """Groups and requests since the start, by what became of them."""
        self.url = ""
        self._routes: dict[tuple[str, str], Callable[[Request], Reply | Coroutine[Any, Any, Reply]]] = {
            ("GET", "/"): lambda _: _json({"message": "AtroposLib API"}),
            ("POST", "/register"): self._register,
            ("POST", "/register-env"): self._register_env,
            ("POST", "/disconnect-env"): self._disconnect_env,
            ("GET", "/wandb_info"): self._show_names,
            ("GET", "/info"): self._show_info,
            ("GET", "/batch"): self._give_batch,
            ("POST", "/ack"): self._acknowledge,
            ("POST", "/scored_data"): self._post_group,
            ("POST", "/scored_data_list"): self._post_groups,
            ("GET", "/latest_example"): self._show_latest,
            ("GET", "/status"): self._show_status,
            ("GET", "/status-env"): self._show_queue,
            ("GET", "/reset_data"): self._reset,
            ("GET", "/metrics"): self._show_metrics,
        }

    # ---- start and end --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        host, port = self._settings.host, self._settings.port
        try:
            server = await asyncio.get_running_loop().create_server(self._accept, host, port, backlog=1024)
        except OSError as error:
            raise ConfigError(
                f"api: cannot listen on {host}:{port}: {error.strerror or error}. Name another port with --port"
            ) from None
        self._servers.append(server)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish what runs, and close."""
        for server in self._servers:
            server.close()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await close_connections(self._connections, CLOSE_SECONDS)

    def _accept(self) -> Connection:
        return Connection(self._connections, self._serve, _write_refusal, self._limit, self._wants_body)

    def _wants_body(self, request: Request) -> bool:
        """Whether a request will be admitted: the body of any other is not kept."""
        try:
            self._admit(request)
        except Refused:
            return False
        return True

    # ---- a request ------------------------------------------------------------------------------------------------

    def _serve(self, responder: Responder) -> None:
        request = responder.request
        try:
            self._admit(request)
            reply = self._find_route(request)(request)
        except Exception as error:
            self._send(responder, self._explain(error))
            return
        if not isinstance(reply, tuple) or len(reply[2]) >= MIN_GZIP:
            self._start(self._finish(responder, reply))
        else:
            self._send(responder, reply)

    async def _finish(self, responder: Responder, reply: Reply | Coroutine[Any, Any, Reply]) -> None:
        """Wait for a reply, compress it if the client wants that, and send it."""
        try:
            done = reply if isinstance(reply, tuple) else await reply
        except Exception as error:
            done = self._explain(error)
        status, kind, body, extra = done
        if len(body) >= MIN_GZIP and "gzip" in responder.request.get_header(b"accept-encoding").lower():
            if len(body) < THREAD_BYTES:
                body = _compress(body)
            else:
                body = await asyncio.get_running_loop().run_in_executor(None, _compress, body)
            extra += b"Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
        self._send(responder, (status, kind, body, extra))

    def _send(self, responder: Responder, reply: Reply) -> None:
        status, kind, body, extra = reply
        self._counts[f"status_{status}"] += 1
        responder.send(status, kind, body, _MARK + extra)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _admit(self, request: Request) -> None:
        """Refuse requests without the token, and those that a page in a browser sends to this machine."""
        if self._token:
            given = request.get_header(b"authorization").encode("latin-1")
            if not secrets.compare_digest(given, self._token):
                raise Refused(401, "wrong or no token: send the header 'Authorization: Bearer TOKEN'")
            return
        if request.get_header(b"sec-fetch-site") in ("cross-site", "same-site"):
            raise Refused(403, "requests from web pages are not served without a token")
        host = request.get_header(b"host")
        if host and not is_own_host(host, self._settings.host):
            raise Refused(
                403, f"Host: '{host}' is not this machine. Use its address or localhost, or a token (api.token_var)"
            )
        for name in ("Origin", "Referer"):
            page = request.get_header(name.lower().encode())
            if page and urlsplit(page).netloc != host:
                raise Refused(403, f"{name}: requests from web pages are not served without a token")

    def _find_route(self, request: Request) -> Callable[[Request], Reply | Coroutine[Any, Any, Reply]]:
        route = self._routes.get((request.method, request.path))
        if route is not None:
            return route
        if any(path == request.path for _, path in self._routes):
            raise Refused(405, "Method Not Allowed")
        raise Refused(404, "Not Found")

    def _explain(self, error: Exception) -> Reply:
        """The reply to a request that failed."""
        match error:
            case Refused():
                return error.reply
            case BadGroup():
                self._counts["refused"] += 1
                loc = ["body", *error.place]
                return Refused(422, [{"type": error.kind, "loc": loc, "msg": error.message}]).reply
            case Oversize():
                self._counts["refused"] += 1
                return Refused(422, [{"type": "value_error", "loc": ["body", "tokens"], "msg": str(error)}]).reply
            case BacklogFull():
                self._counts["pushed_back"] += 1
                return Refused(503, str(error), b"Retry-After: 1\r\n").reply
            case CheckFailed():
                return Refused(503, str(error), b"Retry-After: 10\r\n").reply
            case DiskFull():
                self._counts["disk_full"] += 1
                return Refused(507, str(error), b"Retry-After: 10\r\n").reply
            case StoreError():
                return Refused(500, str(error)).reply
            case _:
                return Refused(500, f"{type(error).__name__}: {error}").reply

    async def _settle(self, reply: Reply) -> Reply:
        """Wait until everything that was recorded is on disk. Requests that wait at the same time share one flush."""
        done = asyncio.get_running_loop().create_future()
        self._syncing.append(done)
        if len(self._syncing) == 1:
            self._start(self._flush())
        await done
        return reply

    async def _flush(self) -> None:
        while self._syncing:
            await asyncio.sleep(0)  # requests that were read together are flushed together
            waiting = tuple(self._syncing)
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._run.prepare_sync())
            except OSError as error:
                for future in waiting:
                    future.set_exception(DiskFull(f"the log cannot be flushed: {error.strerror}"))
            else:
                for future in waiting:
                    future.set_result(None)
            del self._syncing[: len(waiting)]

    def _record_reply(self, reply: Reply) -> Reply | Coroutine[Any, Any, Reply]:
        """The reply to a request that changed the state, after it is as safe as the settings want."""
        return self._settle(reply) if self._settings.sync == "disk" else reply

    # ---- trainers -------------------------------------------------------------------------------------------------

    def _register(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        new = _decode(_read_small(request), Registration)
        state = self._run.state
        reply: dict[str, Any] = {"uuid": uuid.uuid4().int}
        if not state.registered:
            self._run.record(TrainerRegistered(new), self._clock())
        elif differing := _list_differences(new, state.registration):
            reply["warning"] = (
                f"another trainer has registered with other values of {', '.join(differing)}, and they hold. To "
                "start a new run on this server, call /reset_data first"
            )
        return self._record_reply((200, JSON, _encode_big(reply), b""))

    def _give_batch(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        if not self._run.state.registered:
            message = "Trainer not registered. Call /register first."
            return _json({"status": "error", "message": message, "batch": []})
        consumer = _read_name(request, CONSUMER_HEADER)
        taken = self._run.take_batch(self._clock(), consumer, _read_ack(request))
        if isinstance(taken, Wait):
            return 200, JSON, b'{"batch":null}', _make_header(WAIT_HEADER, taken.reason)
        self._moved = self._clock()
        self._counts["batches"] += 1
        self._counts["repeated"] += taken.repeated
        body = b'{"batch":[%b]}' % b",".join(taken.bodies)
        return self._record_reply((200, JSON, body, f"{BATCH_HEADER}: {taken.batch_id}\r\n".encode()))

    def _acknowledge(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        batch_id = _decode(_read_small(request), BatchIdentifier).batch_id
        known = self._run.acknowledge(batch_id, self._clock())
        return self._record_reply(_json({"status": "success" if known else "unknown"}))

    def _reset(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        self._run.reset(self._clock())
        return self._record_reply((200, TEXT, b"Reset successful", b""))

    # ---- environments ---------------------------------------------------------------------------------------------

    def _register_env(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        new = _decode(_read_small(request), EnvRegistration)
        run = self._run
        state, trainer = run.state, run.state.registration
        if not state.started or trainer is None:
            return _json({"status": "wait for trainer to start"})
        env_id = len(state.envs)
        env: EnvRecord = run.record(EnvRegistered(new, env_id), self._clock())
        return self._record_reply(
            _json(
                {
                    "status": "success",
                    "env_id": env_id,
                    "wandb_name": env.name,
                    "checkpoint_dir": trainer.checkpoint_dir,
                    "starting_step": state.step,
                    "checkpoint_interval": trainer.save_checkpoint_interval,
                    "num_steps": trainer.num_steps,
                }
            )
        )

    def _disconnect_env(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        env_id = _decode(_read_small(request), EnvIdentifier).env_id
        if self._run.state.find_env(env_id) is None:
            return _json({"status": "failure", "error": f"there is no environment with the id {env_id}"})
        self._run.record(EnvDisconnected(env_id), self._clock())
        return self._record_reply(_json({"status": "success"}))

    def _show_queue(self, request: Request) -> Reply:
        state = self._run.state
        asked = parse_qs(request.query).get("env_id", [""])[0]
        body = _read_small(request) or (b'{"env_id":%b}' % asked.encode() if asked else b"")
        env_id = _decode(body, EnvIdentifier).env_id
        if state.find_env(env_id) is None:
            raise Refused(404, f"there is no environment with the id {env_id}: register again")
        state.heard[env_id] = self._clock()
        return _json(state.describe_queue(env_id))

    def _post_group(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        if _is_compressed(request):
            return self._inflate(request, self._take_group)
        return self._take_group(request)

    def _take_group(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        checked = self._pool.check(request.body)
        if checked is None:
            return self._take_large(request, many=False)
        return (
            self._accept_group(request, checked) if isinstance(checked, CheckedGroup) else self._wait(request, checked)
        )

    async def _inflate(self, request: Request, take: Callable[[Request], Reply | Coroutine[Any, Any, Reply]]) -> Reply:
        """Decompress a body in a thread, and go on with it."""
        async with self._inflating:
            request.body = await asyncio.to_thread(decompress, request.body, self._limit)
        reply = take(request)
        return reply if isinstance(reply, tuple) else await reply

    async def _take_large(self, request: Request, *, many: bool) -> Reply:
        body, request.body = request.body, b""
        groups = await self._large.check(body, many=many)
        reply = self._accept_list(request, groups) if many else self._accept_group(request, groups[0])
        return reply if isinstance(reply, tuple) else await reply

    def _accept_group(self, request: Request, group: CheckedGroup) -> Reply | Coroutine[Any, Any, Reply]:
        return self._record_reply(_json(self._accept_groups(request, [group])[0]))

    async def _wait(self, request: Request, checked: asyncio.Future[CheckedGroup]) -> Reply:
        """Accept a group when its checker has answered."""
        reply = self._accept_group(request, await checked)
        return reply if isinstance(reply, tuple) else await reply

    def _post_groups(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        if _is_compressed(request):
            return self._inflate(request, self._take_groups)
        return self._take_groups(request)

    def _take_groups(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        if len(request.body) >= LARGE:
            return self._take_large(request, many=True)
        return self._accept_list(request, check_groups(request.body))

    def _accept_list(self, request: Request, groups: list[CheckedGroup]) -> Reply | Coroutine[Any, Any, Reply]:
        replies = self._accept_groups(request, groups) if groups else []
        answer: dict[str, Any] = {"status": "received", "groups_processed": len(replies)}
        short = [reply for reply in replies if reply["status"] == "buffered"]
        if short:
            answer |= {"buffered": len(short), "last_buffer_size": short[-1]["buffer_size"]}
        return self._record_reply(_json(answer))

    def _accept_groups(self, request: Request, groups: list[CheckedGroup]) -> list[dict[str, Any]]:
        key = _read_name(request, KEY_HEADER)
        known = self._run.state.next_id
        replies = self._run.post(groups, key, self._clock())
        if self._run.state.next_id > known:  # not a repeated post
            self._moved = self._clock()
            self._counts["accepted"] += len(groups)
            self._latest = groups[-1].body
        else:
            self._counts["repeated_posts"] += 1
        return replies

    # ---- state ----------------------------------------------------------------------------------------------------

    def _show_names(self, request: Request) -> Reply:
        state = self._run.state
        trainer = state.registration if state.registered else None
        return _json(
            {"group": trainer.wandb_group, "project": trainer.wandb_project}
            if trainer
            else {"group": None, "project": None}
        )

    def _show_info(self, request: Request) -> Reply:
        state = self._run.state
        max_token_len = state.registration.max_token_len if state.registration else -1
        return _json({"batch_size": state.batch_size, "max_token_len": max_token_len})

    def _show_status(self, request: Request) -> Reply:
        state = self._run.state
        why = self._run.explain_wait(self._clock())
        facts = {"current_step": state.step, "queue_size": state.queue_size, "waiting_for": why}
        envs = [
            {"env_id": id, "name": env.name, "group_size": env.group_size, "connected": env.connected}
            for id, env in enumerate(state.envs)
        ]
        return _json({**facts, "dropped_for_age": state.stale, "losses": state.losses, "envs": envs})

    def _show_latest(self, request: Request) -> Reply:
        return 200, JSON, self._latest or _NO_EXAMPLE, b""

    def _show_metrics(self, request: Request) -> Reply:
        quiet = 0.0 if self._moved is None else self._clock() - self._moved
        return (
            200,
            METRICS,
            _format_metrics(self._run, self._counts, len(self._connections), quiet).encode(),
            b"",
        )


# ---- heads --------------------------------------------------------------------------------------------------------

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_own_host(given: str, host: str) -> bool:
    """Whether a `Host` header names this machine by an address, as localhost, or as the server was told to listen."""
    try:
        name = urlsplit(f"//{given}").hostname or ""
        if name in (host, "localhost") or name.endswith(".localhost"):
            return True
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _make_header(name: str, text: str) -> bytes:
    """A header line. The text may hold names that clients have chosen."""
    plain = _CONTROL.sub(" ", text)[:1000]
    return f"{name}: {plain}\r\n".encode("ascii", "replace")


def _read_name(request: Request, header: str) -> str:
    name = request.get_header(header.lower().encode())
    if len(name) > MOST_NAME:
        raise Refused(422, f"{header}: it is longer than {MOST_NAME} characters")
    return name


# ---- bodies -------------------------------------------------------------------------------------------------------


def _is_compressed(request: Request) -> bool:
    return bool(request.body) and "gzip" in request.get_header(b"content-encoding").lower()


def _read_small(request: Request) -> bytes:
    """The body of a request that has no groups."""
    if len(request.body) > SMALL_BODY:
        raise Refused(413, f"the body is longer than {SMALL_BODY:,} bytes")
    return decompress(request.body, SMALL_BODY) if _is_compressed(request) else request.body


def decompress(body: bytes, limit: int) -> bytes:
    """The content of a gzip body.

    Raises:
        Refused: it is not gzip (400), it is cut off or in too many members (400), or it is longer than the limit (413).
    """
    parts: list[bytes] = []
    size = 0
    while body:  # gzip data may have several members
        if len(parts) == MOST_MEMBERS:
            raise Refused(400, f"Invalid gzip payload: it has more than {MOST_MEMBERS} members")
        stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(body, limit - size + 1)
        except zlib.error:
            raise Refused(400, "Invalid gzip payload") from None
        size += len(part)
        if size > limit:
            raise Refused(413, f"the body is longer than {limit:,} bytes after decompression (api.body_mb)")
        if not stream.eof:
            raise Refused(400, "Invalid gzip payload: it is cut off")
        parts.append(part)
        body = stream.unused_data.lstrip(b"\0")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress(body: bytes) -> bytes:
    return zlib.compress(body, GZIP_LEVEL, wbits=31)


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except (ValueError, RecursionError) as error:
        message, _, place = str(error).partition(" - at `$")
        field = [name for name in place.rstrip("`").split(".") if name]
        raise Refused(422, [{"type": "value_error", "loc": ["body", *field], "msg": message}]) from None


def _json(value: object) -> Reply:
    return 200, JSON, msgspec.json.encode(value), b""


def _encode_big(value: dict[str, Any]) -> bytes:
    """JSON with an integer of 128 bits, which msgspec does not write."""
    number = value["uuid"]
    rest = msgspec.json.encode({key: each for key, each in value.items() if key != "uuid"})
    return b'{"uuid":%d%b%b' % (number, b"," if len(rest) > 2 else b"", rest[1:])


def _list_differences(new: Registration, old: Registration | None) -> list[str]:
    return [name for name in Registration.__struct_fields__ if getattr(new, name) != getattr(old, name, None)]


def _read_ack(request: Request) -> int | None:
    text = request.get_header(ACK_HEADER.lower().encode())
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise Refused(422, f"{ACK_HEADER}: '{text}' is not the id of a batch")
    return int(text)


def _write_refusal(status: int, message: str) -> bytes:
    return msgspec.json.encode({"detail": message})


# ---- metrics ------------------------------------------------------------------------------------------------------


def _format_metrics(run: TrajectoryRun, counts: Counter[str], connections: int, quiet: float) -> str:
    """Counters and gauges in Prometheus' text format."""
    state = run.state
    oldest = state.backlog.oldest
    gauges = {
        "step": (state.step, "batches delivered since the registered starting step"),
        "backlog_groups": (len(state.backlog), "groups that wait"),
        "backlog_sequences": (state.backlog.sequences, "sequences that wait"),
        "backlog_bytes": (state.backlog.bytes, "bytes on disk that wait"),
        "backlog_staleness": (0 if oldest is None else state.step - oldest.version, "steps of the oldest group"),
        "leases": (len(state.leases), "batches that are not acknowledged"),
        "environments": (sum(env.connected for env in state.envs), "connected environments"),
        "connections": (connections, "open connections"),
        "segments": (run.segments, "files of the log"),
        "quiet_seconds": (round(quiet, 3), "seconds since a group was accepted or a batch sent"),
    }
    counters = {
        "groups_accepted_total": (counts["accepted"], "groups accepted since the start"),
        "groups_refused_total": (counts["refused"], "posts refused with 422"),
        "groups_stale_total": (state.stale, "groups dropped for their age (api.max_staleness), since the first start"),
        "groups_lost_total": (state.losses.groups, "groups that damage of the disk has cost, since the first start"),
        "records_lost_total": (state.losses.records, "damaged records of the log, since the first start"),
        "records_repaired_total": (state.losses.repaired, "records of the log that were read from their copies"),
        "posts_repeated_total": (counts["repeated_posts"], "posts with a known idempotency key"),
        "posts_pushed_back_total": (counts["pushed_back"], "posts answered with 503: the backlog is full"),
        "posts_disk_full_total": (counts["disk_full"], "requests answered with 507: the disk is full"),
        "batches_total": (counts["batches"], "batches sent"),
        "batches_repeated_total": (counts["repeated"], "batches sent again because they were not acknowledged"),
    }
    kinds = (("gauge", gauges), ("counter", counters))
    return "".join(
        f"# HELP ludus_api_{name} {text}\n# TYPE ludus_api_{name} {kind}\nludus_api_{name} {value}\n"
        for kind, figures in kinds
        for name, (value, text) in figures.items()
    )
