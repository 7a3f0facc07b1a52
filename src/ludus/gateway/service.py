"""The gateway: sockets, sessions, routes, and the life of a request.

    request ──> session (by its secret) ──> dialect.read ──> node in the conversation ──> wait while paused
            ──> model ──> record the reply ──> dialect.write ──> client
                  └── pieces, if it is a stream ──> dialect.open_stream ──> client

Guarantees. Every reply of the model is in the record, also if the agent has disconnected. If the agent of a stream
disconnects, the sample ends at the engine, and what was sampled until then is in the record. Requests of one session
may run at the same time; each reply is recorded after its own prompt. Bad input of an agent can only fail its own
request. Replies are sampled with the session's sampling; what the agent requested is recorded beside it.
"""

import asyncio
import itertools
import re
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Self

import msgspec

from ludus.errors import BudgetExhausted, ConfigError, LudusError, ModelError, ModelUnusable, Unsupported
from ludus.gateway import chat_api as chat
from ludus.gateway import completions_api as completions
from ludus.gateway import messages_api as messages
from ludus.gateway import responses_api as responses
from ludus.gateway.conversation import MessageNode
from ludus.gateway.dialect import Answer, BadRequest, Dialect, ErrorReply, ParsedRequest, ReadCache
from ludus.gateway.live_stream import KeepAlives, LiveStream
from ludus.gateway.model_calls import ModelCaller
from ludus.gateway.session import GatewaySession, RecordedReply, SessionRecord
from ludus.http_server import JSON, Connection, Listener, Responder, close_connections
from ludus.models import Model
from ludus.models.ledger import Budget
from ludus.models.reply_pieces import PieceStream
from ludus.types import RESPONSE_FORMAT, Failure, Sampling

BODY_BYTES = 32 * 1024 * 1024
"""The longest request that is accepted."""
PING_SECONDS = 2.0
"""How long a stream may be silent before a ping is sent. Clients may have short time limits."""
GRACE_SECONDS = 60.0
"""How long running requests may take to end when their session is closed."""

CLOSE_SECONDS = 1.0
"""How long clients may take to read their last replies when the gateway is closed."""

DIALECTS = {
    "/chat/completions": chat.CHAT,
    "/completions": completions.COMPLETIONS,
    "/responses": responses.RESPONSES,
    "/messages": messages.MESSAGES,
}
TokenCounter = tuple[Dialect, Callable[[int], bytes]]
COUNTERS: dict[str, TokenCounter] = {
    "/messages/count_tokens": (messages.MESSAGES, messages.write_count),
    "/responses/input_tokens": (responses.RESPONSES, responses.write_count),
}
"""Routes that count the tokens of a prompt."""
NO_RETRY = b"x-should-retry: false\r\n"
"""OpenAI's and Anthropic's clients retry after most errors unless this header says no."""


Route = Callable[["Gateway", Responder, str, str], bool]
"""Handles requests that belong to no session. Takes the gateway, the request, its key (may be empty) and the path after
the key. Returns whether it has served the request."""


class Gateway:
    """Serves a model to agents and records their requests and replies.

    >>> async with Gateway(model) as gateway:
    ...     session = gateway.open(sampling=Sampling(temperature=1.0), name="task 7")
    ...     ...  # point an agent at session.url, or at session.anthropic_url
    ...     record = await gateway.close(session)
    """

    def __init__(
        self,
        model: Model,
        *,
        host: str | None = "127.0.0.1",
        port: int = 0,
        body_bytes: int = BODY_BYTES,
        ping_seconds: float = PING_SECONDS,
        routes: "Sequence[Route]" = (),
    ) -> None:
        """`host`: None: do not listen; the caller brings connections (`accept`) or sockets (`serve`).
        `routes` are tried in order for requests that belong to no session."""
        self.model = model
        self._routes = routes
        self._caller = ModelCaller(model)
        self._address = (host, port)
        self._body_bytes = body_bytes
        self._keep_alives = KeepAlives(ping_seconds)
        self._root = ""
        self._listeners: list[Listener] = []
        self._connections: set[Connection] = set()
        self._sessions: dict[str, GatewaySession] = {}
        self._closing: set[GatewaySession] = set()
        self._cache = ReadCache()
        self._ids = map(f"{secrets.randbits(24):06x}{{:06x}}".format, itertools.count())
        self._running = asyncio.Event()
        self._running.set()
        self._model_calls = 0
        """Number of running model calls."""
        self._idle = asyncio.Event()
        self._idle.set()

    # ---- start and end --------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        host, port = self._address
        if host is None:
            return self
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, port), family=family, backlog=4096)
        except OSError as error:
            raise ConfigError(f"gateway: cannot listen on {host}:{port}: {error.strerror or error}") from None
        self._listeners.append(Listener(listening, self.accept))
        bound = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self._root = f"http://{shown}:{bound}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()
        tasks = [task for session in (*self._sessions.values(), *self._closing) for task in session.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await close_connections(self._connections, CLOSE_SECONDS)

    @property
    def url(self) -> str:
        """The address it listens on, without a path; empty if it does not listen."""
        return self._root

    async def serve(self, listening: socket.socket) -> None:
        """Accept connections on another listening socket. The gateway owns it from now on."""
        listening.listen(4096)
        self._listeners.append(Listener(listening, self.accept))

    def accept(self) -> Connection:
        """The protocol for a connection that the caller has accepted."""
        return Connection(self._connections, self._serve, _write_refusal, self._body_bytes)

    # ---- sessions -------------------------------------------------------------------------------------------------

    def open(
        self,
        *,
        model: Model | None = None,
        sampling: Sampling | None = None,
        budget: Budget | None = None,
        name: str = "",
        secret: str = "",
    ) -> GatewaySession:
        """Open a session for one rollout. Without `model`, it has the gateway's; without `secret`, a random one is
        made."""
        secret = secret or secrets.token_hex(24)  # hex: a leading dash would look like an option
        if secret in self._sessions:
            raise ValueError("there is a session with this secret already")
        session = GatewaySession(
            secret,
            name or f"session-{len(self._sessions) + 1}",
            self._root,
            sampling=sampling,
            budget=budget,
            caller=self._caller if model is None or model is self.model else ModelCaller(model),
        )
        self._sessions[secret] = session
        return session

    async def close(self, session: GatewaySession, *, grace: float = GRACE_SECONDS) -> SessionRecord:
        """End a session. New requests are refused; running ones may take `grace` seconds to end."""
        self._sessions.pop(session.secret, None)
        if session.tasks:
            self._closing.add(session)
            try:
                await _wait_or_cancel(session.tasks, grace)
            finally:
                self._closing.discard(session)
        return session.make_record()

    def use_model(self, model: Model) -> None:
        """Use another model in sessions that open from now on. The caller closes both models."""
        self.model = model
        self._caller = ModelCaller(model)

    def find_session(self, secret: str) -> GatewaySession | None:
        """The open session with this secret."""
        return self._sessions.get(secret)

    @property
    def sessions(self) -> tuple[GatewaySession, ...]:
        """The open sessions."""
        return tuple(self._sessions.values())

    @property
    def count(self) -> int:
        """The number of open sessions."""
        return len(self._sessions)

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    # ---- pausing --------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop sending requests to the model; agents wait. Running model calls continue."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def drain(self) -> None:
        """`pause`, and wait until no model call is running. Then the model's weights can be changed."""
        self.pause()
        await self._idle.wait()

    # ---- a request ------------------------------------------------------------------------------------------------

    def _serve(self, responder: Responder) -> None:
        secret, path = _split_path(responder.request.path)
        key = secret or read_key(responder)
        session = self._sessions.get(key)
        if session is None:
            self._serve_unknown(responder, key, path)
        else:
            self.serve_session(responder, session, path)

    def serve_session(self, responder: Responder, session: GatewaySession, path: str) -> None:
        """Serve a request of a session. `path` is the part after the session's base URL."""
        request = responder.request
        api_path = find_api_path(path)
        dialect = DIALECTS.get(api_path)
        if dialect is not None and request.method == "POST":
            self.start_answer(responder, session, dialect)
        elif request.upgrades and request.get_header(b"upgrade").lower() == "websocket":
            reply = ErrorReply(426, "this gateway has no websockets; send the request over HTTP", "request")
            refuse(responder, dialect or chat.CHAT, reply)
        elif dialect is not None:
            refuse(responder, dialect, ErrorReply(405, f"{path}: use POST", "request"))
        elif api_path in COUNTERS and request.method == "POST":
            self._count_tokens(responder, session, COUNTERS[api_path])
        elif api_path.startswith("/models") and request.method == "GET":
            responder.send(200, JSON, write_models(self.model.name, api_path))
        else:
            refuse(responder, _find_dialect(api_path), ErrorReply(404, explain_missing(path, api_path), "missing"))

    def _serve_unknown(self, responder: Responder, key: str, path: str) -> None:
        """Serve a request that belongs to no session: one of the routes handles it, or it is refused."""
        if path == "/health" and responder.request.method == "GET":
            responder.send(200, JSON, msgspec.json.encode({"status": "ok", "model": self.model.name}))
            return
        for route in self._routes:
            if route(self, responder, key, path):
                return
        unknown = ErrorReply(401, "this key belongs to no open session", "key")
        refuse(responder, _find_dialect(find_api_path(path)), unknown)

    def _count_tokens(self, responder: Responder, session: GatewaySession, counter: "TokenCounter") -> None:
        """Count the tokens of a prompt, without a call of the model."""
        dialect, write_count = counter
        try:
            tokens = session.caller.count_tokens(dialect.read(responder.request.body, self._cache))
        except (LudusError, BadRequest) as error:
            refuse(responder, dialect, _make_error(error))
        else:
            responder.send(200, JSON, write_count(tokens))

    def start_answer(self, responder: Responder, session: GatewaySession, dialect: Dialect) -> None:
        """Start a task that answers a request."""
        task = asyncio.get_running_loop().create_task(self._answer(responder, session, dialect))
        session.tasks.add(task)
        task.add_done_callback(partial(_end_request, responder, session, dialect))

    async def _answer(self, responder: Responder, session: GatewaySession, dialect: Dialect) -> None:
        """Answer one request: parse the body, get the reply, send it."""
        session.note_request()
        stream: LiveStream | None = None
        try:
            request = dialect.read(responder.request.body, self._cache)
            answer = Answer(next(self._ids), session.caller.name, int(time.time()), request)
            if request.stream:
                stream = LiveStream(responder, dialect.open_stream(answer))
                self._keep_alives.add(stream)
            replies = await self._sample_replies(session, dialect, answer, stream)
            answer = msgspec.structs.replace(
                answer,
                completions=[each.completion for each in replies],
                logprobs=[] if request.logprobs is None else [each.logprobs for each in replies],
            )
            if stream is not None:
                delivered = stream.finish(answer)
            else:
                delivered = responder.send(200, JSON, dialect.write(answer))
            if not delivered:
                for each in replies:
                    session.mark_undelivered(each.number)
        except (LudusError, BadRequest) as error:
            reply = _make_error(error)
            if isinstance(error, BadRequest) and responder.request.get_header(b"content-encoding"):
                reply = ErrorReply(400, "the body is compressed (Content-Encoding), which is not supported", "request")
            _note_error(session, reply, error)
            refuse(responder, dialect, reply, stream)
        except Exception as error:  # a model may be user code; its errors must not affect other agents
            message = f"{type(error).__name__}: {error}"
            session.note_failure(Failure("model", message))
            refuse(responder, dialect, ErrorReply(502, message, "model"), stream)
        except asyncio.CancelledError:  # the session was closed, or the client of a stream has gone
            session.note_refusal()
            refuse(responder, dialect, ErrorReply(503, "the session was closed before the reply", "closed"), stream)
            raise
        finally:
            if stream is not None:
                self._keep_alives.discard(stream)

    async def _sample_replies(
        self, session: GatewaySession, dialect: Dialect, answer: Answer, stream: LiveStream | None
    ) -> list[RecordedReply]:
        request = answer.request
        start = session.answers.get(request.previous)
        if request.previous and start is None:
            raise BadRequest(f"previous_response_id: there is no response {request.previous} in this session")
        at = session.conversations.follow(session.caller.resolve_messages(request), start)
        samples = [self._sample_reply(session, dialect, request, at, number, stream) for number in range(request.n)]
        replies = [await samples[0]] if request.n == 1 else await _gather_all(samples)
        session.answers[answer.id] = replies[0].node
        return replies

    async def _sample_reply(
        self,
        session: GatewaySession,
        dialect: Dialect,
        request: ParsedRequest,
        at: MessageNode,
        number: int,
        stream: LiveStream | None,
    ) -> RecordedReply:
        """Sample one reply and record it."""
        started = time.monotonic()
        caller = session.caller
        sampling = enforce_sampling(session.sampling, request.sampling, session.requests, number)
        sampling, ignored = caller.add_request_fields(sampling, request)
        wants_logprobs = request.logprobs is not None
        reply_stream = PieceStream(wants_logprobs=True) if wants_logprobs else None
        if stream is not None:
            reply_stream = stream.open_reply_stream(number, wants_logprobs=wants_logprobs)
        while not self._running.is_set():  # it may be paused again before this request continues
            await self._running.wait()
        self._model_calls += 1
        self._idle.clear()
        try:
            completion = await caller.sample(session, request, at.list_messages(), sampling, reply_stream)
        finally:
            self._model_calls -= 1
            if not self._model_calls:
                self._idle.set()
        logprobs = (
            None if reply_stream is None or not wants_logprobs else caller.read_logprobs(completion, reply_stream)
        )
        seconds = time.monotonic() - started
        delivered = reply_stream is None or not reply_stream.abandoned
        return session.record_reply(
            dialect.api,
            at,
            request,
            sampling,
            completion,
            seconds,
            ignored=ignored,
            delivered=delivered,
            logprobs=logprobs,
        )


def _end_request(responder: Responder, session: GatewaySession, dialect: Dialect, task: asyncio.Task[None]) -> None:
    """Called when the task of a request ends. A cancelled task has not answered; it may not even have started."""
    session.tasks.discard(task)
    if not responder.is_answered:
        refuse(responder, dialect, ErrorReply(503, "the session was closed before the reply", "closed"))


async def _wait_or_cancel(tasks: set[asyncio.Task[None]], grace: float) -> None:
    """Wait for tasks for at most `grace` seconds, then cancel them."""
    _, late = await asyncio.wait(tuple(tasks), timeout=grace)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


async def _gather_all(samples: Sequence[Coroutine[Any, Any, RecordedReply]]) -> list[RecordedReply]:
    """Run all at the same time. If one fails, the others still end, so that their replies are recorded."""
    done = await asyncio.gather(*samples, return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each
    return [each for each in done if not isinstance(each, BaseException)]


# ---- decisions ----------------------------------------------------------------------------------------------------


def enforce_sampling(rule: Sampling | None, requested: Sampling, request: int, choice: int = 0) -> Sampling:
    """The sampling of a reply. With a rule, the agent decides only about what belongs to its request: stop texts, the
    tool choice, the form of the reply, and a length within the rule's limit. Every request and choice has its own
    seed."""
    if rule is None:
        if requested.seed is None or not choice:
            return requested
        return msgspec.structs.replace(requested, seed=requested.seed + choice)
    form = requested.extra.get(RESPONSE_FORMAT)  # part of the question: the rule does not replace it
    asks = requested.stop or requested.max_tokens is not None or requested.tool_choice is not None or form is not None
    if rule.seed is None and not asks:
        return rule
    limits = [limit for limit in (rule.max_tokens, requested.max_tokens) if limit is not None]
    return msgspec.structs.replace(
        rule,
        max_tokens=min(limits, default=None),
        stop=tuple(dict.fromkeys((*rule.stop, *requested.stop))),
        seed=None if rule.seed is None else (rule.seed + request * 1_000_003 + choice) % 2**31,
        tool_choice=rule.tool_choice or requested.tool_choice,
        extra=rule.extra if form is None else {**rule.extra, RESPONSE_FORMAT: form},
    )


def _make_error(error: LudusError | BadRequest) -> ErrorReply:
    """The error that the agent gets."""
    message = str(error)
    match error:
        case BadRequest():
            return ErrorReply(error.status, message, "request")
        case BudgetExhausted():
            return ErrorReply(429, message, "budget")
        case ModelError() if error.too_long:
            return ErrorReply(400, f"prompt is too long: {message}", "context")
        case ConfigError():
            return ErrorReply(400, message, "request")
        case _:
            return ErrorReply(502, message, "model")


def _note_error(session: GatewaySession, reply: ErrorReply, error: LudusError | BadRequest) -> None:
    """Record an error. A bad request counts as failed, but is no failure of the rollout."""
    match reply.kind:
        case "budget":
            session.note_stop("budget")
        case "context":
            session.note_stop("context")
        case "model":
            retryable = error.retryable if isinstance(error, ModelError) else True
            session.note_failure(Failure("model", reply.message, retryable))
            if isinstance(error, ModelUnusable):
                session.mark_unusable()
        case _ if isinstance(error, ConfigError) and not isinstance(error, Unsupported):
            session.note_failure(Failure("model", reply.message, retryable=False))
        case _:
            session.note_refusal()


_AZURE = re.compile(r"/openai(?:/deployments/[^/]+)?(?:/v1)?")


def find_api_path(path: str) -> str:
    """The path after the version: `/v1/chat/completions` and Azure's `/openai/deployments/NAME/chat/completions` give
    `/chat/completions`."""
    if path.startswith("/openai/"):
        return _AZURE.sub("", path, count=1)
    return path.removeprefix("/v1")


def _find_dialect(api_path: str) -> Dialect:
    """The API whose errors the client of a path understands."""
    return next((dialect for start, dialect in DIALECTS.items() if api_path.startswith(start)), chat.CHAT)


def explain_missing(path: str, api_path: str) -> str:
    """Why there is nothing at a path, and what to do."""
    if api_path.startswith("/responses/"):
        return (
            f"{path}: responses are not kept for later. The reply to the request has all of it; to continue it, send "
            "previous_response_id"
        )
    if api_path.startswith("/embeddings"):
        return f"{path}: this gateway serves one model that writes text, and no embeddings. Send them to their server"
    served = ", ".join(sorted(DIALECTS))
    return f"{path}: there is nothing here. This gateway serves {served} and /models, each below /v1"


def _split_path(path: str) -> tuple[str, str]:
    """The secret in a path, and the rest: `/s/SECRET/v1/models` gives `SECRET` and `/v1/models`."""
    if not path.startswith("/s/"):
        return "", path
    secret, slash, rest = path[3:].partition("/")
    return secret, slash + rest


def read_key(responder: Responder) -> str:
    """The API key of a request; empty if there is none."""
    bearer = responder.request.get_header(b"authorization")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    request = responder.request
    return (request.get_header(b"x-api-key") or request.get_header(b"api-key")).strip()  # the latter is Azure's


def refuse(responder: Responder, dialect: Dialect, reply: ErrorReply, stream: LiveStream | None = None) -> None:
    """Send an error to the client: as an event, if a stream has begun."""
    if stream is not None and stream.has_begun:
        stream.fail(reply)
        return
    responder.on_lost = None
    status = dialect.model_error_status if reply.kind == "model" else reply.status
    responder.send(status, JSON, dialect.write_error(reply), b"" if reply.may_retry else NO_RETRY)


def _write_refusal(status: int, message: str) -> bytes:
    return chat.write_error(ErrorReply(status, message, "request"))


def write_models(name: str, path: str) -> bytes:
    """The list with the one model; or the model itself, if the path names one."""
    model = {"id": name, "object": "model", "created": 0, "owned_by": "ludus", "type": "model", "display_name": name}
    one = path.rstrip("/").rpartition("/models")[2]
    return msgspec.json.encode(model if one else {"object": "list", "data": [model], "has_more": False})
