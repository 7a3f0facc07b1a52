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

Most routes answer at once. A request becomes a task only where it has to wait: for a flush to the disk, or for the
compression of a long reply, which runs in a thread.
"""

import asyncio
import secrets
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError, StoreError
from ludus.gateway.http_server import JSON, Connection, Request, Responder
from ludus.rl.api.api_settings import ApiSettings
from ludus.rl.api.api_state import (
    EnvDisconnected,
    EnvRecord,
    EnvRegistered,
    EnvRegistration,
    Registration,
    TrainerRegistered,
    Wait,
)
from ludus.rl.api.check_pool import CheckPool
from ludus.rl.api.group_log import DiskFull
from ludus.rl.api.posted_groups import KEYS, BadGroup, CheckedGroup, check_group, check_groups
from ludus.rl.api.trajectory_run import BacklogFull, Oversize, TrajectoryRun
from ludus.rl.atropos_client import BATCH_HEADER, CONSUMER_HEADER, KEY_HEADER, SERVER_HEADER

ACK_HEADER = "X-Ludus-Batch-Ack"
"""On `GET /batch`: the id of the batch that is done."""
WAIT_HEADER = "X-Ludus-Waiting-For"
"""On an empty `/batch`: why there is none."""

TEXT = b"text/plain; charset=utf-8"
METRICS = b"text/plain; version=0.0.4; charset=utf-8"
MIN_GZIP = 1000
"""A shorter reply is not compressed."""
THREAD_BYTES = 64 * 1024
"""A longer reply is compressed in a thread."""
GZIP_LEVEL = 1
"""Replies are numbers for one trainer: a higher level takes four times as long for a tenth less."""
CLOSE_SECONDS = 2.0
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

    env_id: int


class BatchIdentifier(Struct):
    """The body of `/ack`."""

    batch_id: int


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
        self._pool = pool
        self._token = f"Bearer {token}".encode() if token else b""
        self._clock = clock
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._limit = settings.body_mb * 1024 * 1024
        self._syncing: list[asyncio.Future[None]] = []
        self._latest = b""
        self._counts: Counter[str] = Counter()
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
        for connection in tuple(self._connections):
            connection.close()
        if self._connections:
            await asyncio.wait([connection.gone for connection in self._connections], timeout=CLOSE_SECONDS)
        for connection in tuple(self._connections):
            connection.abort()

    def _accept(self) -> Connection:
        return Connection(self._connections, self._serve, _write_refusal, self._limit)

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
        elif request.get_header(b"sec-fetch-site") in ("cross-site", "same-site"):
            raise Refused(403, "requests from web pages are not served without a token")

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
        new = _decode(self._read_body(request), Registration)
        if new.batch_size < 1:
            raise _refuse_field("batch_size", "a batch has at least 1 sequence")
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
        consumer = request.get_header(CONSUMER_HEADER.lower().encode())
        taken = self._run.take_batch(self._clock(), consumer, _read_ack(request))
        if isinstance(taken, Wait):
            return 200, JSON, b'{"batch":null}', f"{WAIT_HEADER}: {taken.reason}\r\n".encode("ascii", "replace")
        self._counts["batches"] += 1
        self._counts["repeated"] += taken.repeated
        body = b'{"batch":[%b]}' % b",".join(taken.bodies)
        return self._record_reply((200, JSON, body, f"{BATCH_HEADER}: {taken.batch_id}\r\n".encode()))

    def _acknowledge(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        batch_id = _decode(self._read_body(request), BatchIdentifier).batch_id
        known = self._run.acknowledge(batch_id, self._clock())
        return self._record_reply(_json({"status": "success" if known else "unknown"}))

    def _reset(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        self._run.reset(self._clock())
        return self._record_reply((200, TEXT, b"Reset successful", b""))

    # ---- environments ---------------------------------------------------------------------------------------------

    def _register_env(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        new = _decode(self._read_body(request), EnvRegistration)
        if new.group_size < 1:
            raise _refuse_field("group_size", "a group has at least 1 sequence")
        run = self._run
        state, trainer = run.state, run.state.registration
        if not state.started or trainer is None:
            return _json({"status": "wait for trainer to start"})
        env_id = len(state.envs)
        env: EnvRecord = run.record(EnvRegistered(new), self._clock())
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
        env_id = _decode(self._read_body(request), EnvIdentifier).env_id
        if self._run.state.find_env(env_id) is None:
            return _json({"status": "failure", "error": f"there is no environment with the id {env_id}"})
        self._run.record(EnvDisconnected(env_id), self._clock())
        return self._record_reply(_json({"status": "success"}))

    def _show_queue(self, request: Request) -> Reply:
        state = self._run.state
        asked = parse_qs(request.query).get("env_id", [""])[0]
        body = request.body or (b'{"env_id":%b}' % asked.encode() if asked else b"")
        env_id = _decode(body, EnvIdentifier).env_id
        if state.find_env(env_id) is None:
            raise Refused(404, f"there is no environment with the id {env_id}: register again")
        state.heard[env_id] = self._clock()
        return _json(state.describe_queue(env_id))

    def _post_group(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        body = self._read_body(request)
        checked = check_group(body) if self._pool is None else self._pool.check(body)
        return (
            self._accept_group(request, checked) if isinstance(checked, CheckedGroup) else self._wait(request, checked)
        )

    def _accept_group(self, request: Request, group: CheckedGroup) -> Reply | Coroutine[Any, Any, Reply]:
        return self._record_reply(_json(self._accept_groups(request, [group])[0]))

    async def _wait(self, request: Request, checked: asyncio.Future[CheckedGroup]) -> Reply:
        """Accept a group when its checker has answered."""
        reply = self._accept_group(request, await checked)
        return reply if isinstance(reply, tuple) else await reply

    def _post_groups(self, request: Request) -> Reply | Coroutine[Any, Any, Reply]:
        groups = check_groups(self._read_body(request))
        replies = self._accept_groups(request, groups) if groups else []
        answer: dict[str, Any] = {"status": "received", "groups_processed": len(replies)}
        short = [reply for reply in replies if reply["status"] == "buffered"]
        if short:
            answer |= {"buffered": len(short), "last_buffer_size": short[-1]["buffer_size"]}
        return self._record_reply(_json(answer))

    def _accept_groups(self, request: Request, groups: list[CheckedGroup]) -> list[dict[str, Any]]:
        key = request.get_header(KEY_HEADER.lower().encode())
        known = self._run.state.next_id
        replies = self._run.post(groups, key, self._clock())
        if self._run.state.next_id > known:  # not a repeated post
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
        return _json({"current_step": state.step, "queue_size": state.queue_size, "waiting_for": why})

    def _show_latest(self, request: Request) -> Reply:
        return 200, JSON, self._latest or _NO_EXAMPLE, b""

    def _show_metrics(self, request: Request) -> Reply:
        return 200, METRICS, _format_metrics(self._run, self._counts, len(self._connections)).encode(), b""

    def _read_body(self, request: Request) -> bytes:
        if not request.body or "gzip" not in request.get_header(b"content-encoding").lower():
            return request.body
        return decompress(request.body, self._limit)


# ---- bodies -------------------------------------------------------------------------------------------------------


def decompress(body: bytes, limit: int) -> bytes:
    """The content of a gzip body.

    Raises:
        Refused: it is not gzip (400), it is cut off (400), or it is longer than the limit (413).
    """
    parts: list[bytes] = []
    size = 0
    while body:  # gzip data may have several members
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
        raise Refused(422, [{"type": "value_error", "loc": ["body"], "msg": str(error)}]) from None


def _refuse_field(name: str, message: str) -> Refused:
    return Refused(422, [{"type": "value_error", "loc": ["body", name], "msg": message}])


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
    if not text.isdecimal():
        raise Refused(422, f"{ACK_HEADER}: '{text}' is not the id of a batch")
    return int(text)


def _write_refusal(status: int, message: str) -> bytes:
    return msgspec.json.encode({"detail": message})


# ---- metrics ------------------------------------------------------------------------------------------------------


def _format_metrics(run: TrajectoryRun, counts: Counter[str], connections: int) -> str:
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
    }
    counters = {
        "groups_accepted_total": (counts["accepted"], "groups accepted since the start"),
        "groups_refused_total": (counts["refused"], "posts refused with 422"),
        "groups_stale_total": (run.dropped["stale"], "groups dropped because their policy was too old"),
        "groups_damaged_total": (run.dropped["damaged"], "groups dropped because the disk returned other bytes"),
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
