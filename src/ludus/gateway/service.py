"""The gateway itself: sockets, sessions, routes, and the life of a request.

    request ──> session (by its secret) ──> dialect.read ──> place in the conversation ──> wait while paused
            ──> model ──> note the reply ──> dialect.write | dialect.stream ──> client

Guarantees. A reply that the model gave is in the record, whether or not the agent was still there to take it. Requests
of one session may be under way at once; each is recorded behind its own prompt. What an agent sends can only end its
own request. A session's replies are drawn as the session says; what the agent wanted is noted beside it.
"""

import asyncio
import itertools
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Self

import msgspec

from ludus.errors import BudgetExhausted, ConfigError, LudusError, ModelError
from ludus.gateway import chat_api as chat
from ludus.gateway import completions_api as completions
from ludus.gateway import messages_api as messages
from ludus.gateway import responses_api as responses
from ludus.gateway.conversation import Said
from ludus.gateway.dialect import Answer, Asked, BadRequest, Dialect, Known, Trouble
from ludus.gateway.gateway_session import Noted, Record, Session
from ludus.gateway.http_server import EVENTS, JSON, Connection, Responder
from ludus.gateway.model_calls import Asker
from ludus.models import Model
from ludus.models.ledger import Budget
from ludus.types import Failure, Sampling

BODY_BYTES = 32 * 1024 * 1024
"""The longest request that is taken."""
PING_SECONDS = 10.0
"""How long a stream may be silent before the client is told that it is still alive."""
GRACE_SECONDS = 60.0
"""How long requests under way may take to end when their session is closed."""

HANG_UP_SECONDS = 1.0
"""How long clients may take to read the last of their replies when the gateway is closed."""

DIALECTS = {
    "/chat/completions": chat.CHAT,
    "/completions": completions.COMPLETIONS,
    "/responses": responses.RESPONSES,
    "/messages": messages.MESSAGES,
}
NO_RETRY = b"x-should-retry: false\r\n"
"""OpenAI's and Anthropic's clients repeat a request after most errors unless they are told that it cannot help."""


Door = Callable[["Gateway", Responder, str, str], bool]
"""Looks at a request of no session: the gateway, the request, its key (or an empty text) and the path behind it.
Returns whether it was served."""


class Gateway:
    """Serves a model to agents, and records what they ask and get.

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
        doors: "Sequence[Door]" = (),
    ) -> None:
        """`host`: None to listen nowhere, for those who bring connections (`accept`) or sockets (`serve`) of their own.
        `doors` are asked about requests that belong to no session."""
        self.model = model
        self._doors = doors
        self._asker = Asker(model)
        self._address = (host, port)
        self._body_bytes = body_bytes
        self._ping_seconds = ping_seconds
        self._root = ""
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._sessions: dict[str, Session] = {}
        self._closing: set[Session] = set()
        self._known = Known()
        self._ids = map(f"{secrets.randbits(24):06x}{{:06x}}".format, itertools.count())
        self._running = asyncio.Event()
        self._running.set()
        self._asking = 0
        """Requests that are with the model."""
        self._quiet = asyncio.Event()
        self._quiet.set()

    # ---- life -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        host, port = self._address
        if host is None:
            return self
        try:
            server = await loop.create_server(self.accept, host, port, backlog=4096)
        except OSError as error:
            raise ConfigError(f"gateway: cannot listen on {host}:{port}: {error.strerror or error}") from None
        self._servers.append(server)
        bound = server.sockets[0].getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        self._root = f"http://{shown}:{bound}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        tasks = [task for session in (*self._sessions.values(), *self._closing) for task in session.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._hang_up(tuple(self._connections))
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    async def _hang_up(self, connections: Sequence[Connection]) -> None:
        """Close connections, after what was written to them has been sent, if that is soon."""
        for connection in connections:
            connection.close()
        if connections:
            await asyncio.wait([connection.gone for connection in connections], timeout=HANG_UP_SECONDS)
        for connection in connections:
            connection.abort()
        await asyncio.gather(*(connection.gone for connection in connections))

    @property
    def url(self) -> str:
        """Where it listens, without any path; empty if it does not."""
        return self._root

    async def serve(self, listening: socket.socket) -> None:
        """Accept on a further socket, which listens already and is the gateway's from now on."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        if listening.family == socket.AF_UNIX:
            self._servers.append(await loop.create_unix_server(self.accept, sock=listening))
        else:
            self._servers.append(await loop.create_server(self.accept, sock=listening))

    def accept(self) -> Connection:
        """The protocol of one more connection, which somebody else has accepted."""
        return Connection(self._connections, self._serve, _refusal, self._body_bytes)

    # ---- sessions -------------------------------------------------------------------------------------------------

    def open(
        self,
        *,
        sampling: Sampling | None = None,
        budget: Budget | None = None,
        name: str = "",
        secret: str = "",
    ) -> Session:
        """A session for one rollout. Without a `secret` of the caller's own, nobody can guess it."""
        secret = secret or secrets.token_hex(24)  # never begins with a dash, which a command would take for an option
        if secret in self._sessions:
            raise ValueError("there is a session with this secret already")
        session = Session(
            secret,
            name or f"session-{len(self._sessions) + 1}",
            self._root,
            sampling=sampling,
            budget=budget,
            asker=self._asker,
        )
        self._sessions[secret] = session
        return session

    async def close(self, session: Session, *, grace: float = GRACE_SECONDS) -> Record:
        """End a session: further requests are refused, those under way are waited for, at most for `grace` seconds."""
        self._sessions.pop(session.secret, None)
        if session.tasks:
            self._closing.add(session)
            try:
                await _ended(session.tasks, grace)
            finally:
                self._closing.discard(session)
        return session.record()

    def use(self, model: Model) -> None:
        """Ask another model in sessions that are opened from now on. Closing both is the caller's business."""
        self.model = model
        self._asker = Asker(model)

    def find(self, secret: str) -> Session | None:
        """The open session with this secret."""
        return self._sessions.get(secret)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Those that are open."""
        return tuple(self._sessions.values())

    @property
    def count(self) -> int:
        """How many sessions are open."""
        return len(self._sessions)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    # ---- pausing --------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hold back requests from the model; agents wait. Those that are with the model already go on."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def drain(self) -> None:
        """`pause`, and wait until no request is with the model: the moment to change its weights."""
        self.pause()
        await self._quiet.wait()

    # ---- a request ------------------------------------------------------------------------------------------------

    def _serve(self, responder: Responder) -> None:
        secret, path = _split(responder.request.path)
        key = secret or key_of(responder)
        session = self._sessions.get(key)
        if session is None:
            self._knock(responder, key, path)
        else:
            self.route(responder, session, path)

    def route(self, responder: Responder, session: Session, path: str) -> None:
        """Serve a request of a session. `path` is what stands behind the session's base."""
        request = responder.request
        place = path.removeprefix("/v1")
        dialect = DIALECTS.get(place)
        if dialect is not None and request.method == "POST":
            self.answer(responder, session, dialect)
        elif dialect is not None:
            refuse(responder, dialect, Trouble(405, f"{path}: use POST", "request"))
        elif place == "/messages/count_tokens" and request.method == "POST":
            self._count(responder, session)
        elif place.startswith("/models") and request.method == "GET":
            responder.send(200, JSON, models(self.model.name, place))
        else:
            refuse(responder, chat.CHAT, Trouble(404, f"{path}: there is nothing here", "missing"))

    def _knock(self, responder: Responder, key: str, path: str) -> None:
        """A request of no session: it is let in by one of the doors, or refused."""
        if path == "/health" and responder.request.method == "GET":
            responder.send(200, JSON, msgspec.json.encode({"status": "ok", "model": self.model.name}))
            return
        for door in self._doors:
            if door(self, responder, key, path):
                return
        speaks = DIALECTS.get(path.removeprefix("/v1"), chat.CHAT)
        refuse(responder, speaks, Trouble(401, "this key belongs to no open session", "key"))

    def _count(self, responder: Responder, session: Session) -> None:
        try:
            tokens = session.asker.count(messages.read(responder.request.body, self._known))
        except (LudusError, BadRequest) as error:
            refuse(responder, messages.MESSAGES, _trouble(error))
        else:
            responder.send(200, JSON, messages.counted(tokens))

    def answer(self, responder: Responder, session: Session, dialect: Dialect) -> None:
        """Start to answer a request for a reply."""
        task = asyncio.get_running_loop().create_task(self._answer(responder, session, dialect))
        session.tasks.add(task)
        task.add_done_callback(partial(_settle, responder, session, dialect))

    async def _answer(self, responder: Responder, session: Session, dialect: Dialect) -> None:
        """One request, from its body to its reply."""
        session.begun()
        try:
            asked = dialect.read(responder.request.body, self._known)
            stream = _Stream(responder, dialect, self._ping_seconds) if asked.stream else None
            try:
                answer, noted = await self._reply(session, dialect, asked)
            finally:
                if stream is not None:
                    stream.stop()
            delivered = _deliver(responder, dialect, answer)
            if not delivered:
                for each in noted:
                    session.lost(each.number)
        except (LudusError, BadRequest) as error:
            trouble = _trouble(error)
            if isinstance(error, BadRequest) and responder.request.header(b"content-encoding"):
                trouble = Trouble(
                    400, "the body is compressed (Content-Encoding), which is not understood here", "request"
                )
            _note(session, trouble, error)
            refuse(responder, dialect, trouble)
        except Exception as error:  # a model may be foreign code, and what breaks for one agent must not end the others
            words = f"{type(error).__name__}: {error}"
            session.failed(Failure("model", words))
            refuse(responder, dialect, Trouble(502, words, "model"))

    async def _reply(self, session: Session, dialect: Dialect, asked: Asked) -> tuple[Answer, list[Noted]]:
        start = session.answers.get(asked.previous)
        if asked.previous and start is None:
            raise BadRequest(f"previous_response_id: there is no response {asked.previous} in this session")
        at = session.conversations.follow(session.asker.place(asked), start)
        draws = [self._draw(session, dialect, asked, at, number) for number in range(asked.n)]
        noted = [await draws[0]] if asked.n == 1 else await _all(draws)
        drawn = [each.completion for each in noted]
        answer = Answer(next(self._ids), session.asker.name, int(time.time()), asked, drawn)
        session.answers[answer.id] = noted[0].said
        return answer, noted

    async def _draw(self, session: Session, dialect: Dialect, asked: Asked, at: Said, number: int) -> Noted:
        """One reply, drawn and noted."""
        started = time.monotonic()
        sampling = enforced(session.sampling, asked.sampling, session.requests, number)
        while not self._running.is_set():  # it may have been paused again before this request's turn came
            await self._running.wait()
        self._asking += 1
        self._quiet.clear()
        try:
            completion = await session.asker.ask(session, asked, at.messages(), sampling)
        finally:
            self._asking -= 1
            if not self._asking:
                self._quiet.set()
        return session.replied(dialect.api, at, asked, sampling, completion, time.monotonic() - started)


def _settle(responder: Responder, session: Session, dialect: Dialect, task: asyncio.Task[None]) -> None:
    """A request's task is over. One that was cancelled, maybe before it began, has not answered yet."""
    session.tasks.discard(task)
    if not responder.answered:
        refuse(responder, dialect, Trouble(503, "the session was closed before there was a reply", "closed"))


async def _ended(tasks: set[asyncio.Task[None]], grace: float) -> None:
    """Wait for tasks, at most for `grace` seconds; then cancel them."""
    _, late = await asyncio.wait(tuple(tasks), timeout=grace)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


async def _all(draws: Sequence[Coroutine[Any, Any, Noted]]) -> list[Noted]:
    """All of them, side by side. One that fails does not end the others: what is drawn is recorded."""
    done = await asyncio.gather(*draws, return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each
    return [each for each in done if not isinstance(each, BaseException)]


class _Stream:
    """Keeps the client of a stream patient: from the first ping on, the status is sent."""

    def __init__(self, responder: Responder, dialect: Dialect, seconds: float) -> None:
        self._responder = responder
        self._dialect = dialect
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._ping)

    def stop(self) -> None:
        self._timer.cancel()

    def _ping(self) -> None:
        if not self._responder.begun:
            self._responder.begin(EVENTS)
        self._responder.feed(self._dialect.ping)
        self._timer = self._loop.call_later(self._seconds, self._ping)


# ---- decisions ----------------------------------------------------------------------------------------------------


def enforced(rule: Sampling | None, asked: Sampling, request: int, choice: int = 0) -> Sampling:
    """How a reply is drawn. With a rule, the agent keeps a say only in what is part of its question: where to stop,
    whether to call a tool, and a length within the rule's. Every request and choice has a seed of its own."""
    if rule is None:
        if asked.seed is None or not choice:
            return asked
        return msgspec.structs.replace(asked, seed=asked.seed + choice)
    if rule.seed is None and not asked.stop and asked.max_tokens is None and asked.tool_choice is None:
        return rule
    limits = [limit for limit in (rule.max_tokens, asked.max_tokens) if limit is not None]
    return msgspec.structs.replace(
        rule,
        max_tokens=min(limits, default=None),
        stop=tuple(dict.fromkeys((*rule.stop, *asked.stop))),
        seed=None if rule.seed is None else (rule.seed + request * 1_000_003 + choice) % 2**31,
        tool_choice=rule.tool_choice or asked.tool_choice,
    )


def _trouble(error: LudusError | BadRequest) -> Trouble:
    """What the agent is told."""
    words = str(error)
    match error:
        case BadRequest():
            return Trouble(error.status, words, "request")
        case BudgetExhausted():
            return Trouble(429, words, "budget")
        case ModelError() if error.too_long:
            return Trouble(400, f"prompt is too long: {words}", "context")
        case ConfigError():
            return Trouble(400, words, "request")
        case _:
            return Trouble(502, words, "model")


def _note(session: Session, trouble: Trouble, error: LudusError | BadRequest) -> None:
    """What the record says about it. An agent's bad request is its own business."""
    match trouble.kind:
        case "budget":
            session.stopped("budget")
        case "context":
            session.stopped("context")
        case "model":
            retryable = error.retryable if isinstance(error, ModelError) else True
            session.failed(Failure("model", trouble.words, retryable))
        case _ if isinstance(error, ConfigError):
            session.failed(Failure("model", trouble.words, retryable=False))
        case _:
            session.refused()


def _split(path: str) -> tuple[str, str]:
    """The secret in a path, and the rest of it: `/s/SECRET/v1/models` is `/v1/models`."""
    if not path.startswith("/s/"):
        return "", path
    secret, slash, rest = path[3:].partition("/")
    return secret, slash + rest


def key_of(responder: Responder) -> str:
    """The key that a request was sent with."""
    bearer = responder.request.header(b"authorization")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    return responder.request.header(b"x-api-key").strip()


def _deliver(responder: Responder, dialect: Dialect, answer: Answer) -> bool:
    """Send a reply. Returns whether the client was still there."""
    if not answer.asked.stream:
        return responder.send(200, JSON, dialect.write(answer))
    if responder.begun:
        return responder.end(dialect.stream(answer))
    return responder.send(200, EVENTS, dialect.stream(answer))


def refuse(responder: Responder, dialect: Dialect, trouble: Trouble) -> None:
    """Tell the client why there is no reply."""
    if responder.begun:
        responder.end(dialect.late_error(trouble))
        return
    status = dialect.failed if trouble.kind == "model" else trouble.status
    responder.send(status, JSON, dialect.error(trouble), b"" if trouble.again else NO_RETRY)


def _refusal(status: int, words: str) -> bytes:
    return chat.error(Trouble(status, words, "request"))


def models(name: str, path: str) -> bytes:
    """The list of models, which is one; or the one, if the path names it."""
    model = {"id": name, "object": "model", "created": 0, "owned_by": "ludus", "type": "model", "display_name": name}
    one = path.rstrip("/").rpartition("/models")[2]
    return msgspec.json.encode(model if one else {"object": "list", "data": [model], "has_more": False})
