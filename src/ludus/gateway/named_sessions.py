"""Sessions that open by themselves, for agents that are started by hand (`ludus gateway`).

A key names its session. The first request with a new key opens it: `http://HOST/s/anna/v1`, or the API key `anna`, is
recorded as session `anna`. Without a key the session is `default`. If a token is set, a key is the token, or the token,
a dot and the name (`TOKEN.anna`); all other keys are refused. The first request may name a task in the header
`x-ludus-task`. Idle sessions are closed, and at the end all are. Each record is passed on once.

The number of open sessions is limited, so that a client with ever new keys cannot fill the memory.
"""

import asyncio
import hmac
import re
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote

from ludus.gateway.chat_api import CHAT
from ludus.gateway.dialect import ErrorReply
from ludus.gateway.service import DIALECTS, Gateway, find_api_path, refuse
from ludus.gateway.session import GatewaySession, SessionRecord
from ludus.gateway.settings import GatewaySettings
from ludus.http_server import Responder
from ludus.models.ledger import Budget
from ludus.types import Sampling

DEFAULT = "default"
SESSIONS = 10_000
TASK_HEADER = b"x-ludus-task"
"""Names the task of a session in its first request. The id may be percent-encoded."""
_NAME = re.compile(r"[A-Za-z0-9._~-]{1,200}")


class NamedSessions:
    """A route of a gateway. It opens sessions for clients with the token, or for all clients if there is no token.

    `record` is called with the record of each session when it ends."""

    def __init__(
        self,
        record: Callable[[SessionRecord], None],
        settings: GatewaySettings = GatewaySettings(),
        *,
        token: str = "",
        sampling: Sampling | None = None,
        sessions: int = SESSIONS,
    ) -> None:
        self._record = record
        self._token = token
        self._sampling = sampling if settings.enforce else None
        self._budget = None if settings.session == Budget() else settings.session
        self._idle = settings.idle_seconds
        self._most = sessions
        self._wake = asyncio.Event()
        self._released: list[GatewaySession] = []

    def handle(self, gateway: Gateway, responder: Responder, key: str, path: str) -> bool:
        """Open a session for a new key. See `service.Route`."""
        name = self.parse_key(key)
        if name is None:
            return False
        if gateway.count >= self._most:
            full = ErrorReply(503, f"{self._most} sessions are open, which is the limit", "closed")
            refuse(responder, DIALECTS.get(find_api_path(path), CHAT), full)
            return True
        secret = key or DEFAULT
        session = gateway.find_session(secret)
        if session is None:
            session = self.open_session(gateway, name, secret)
            session.task = unquote(responder.request.get_header(TASK_HEADER))
        gateway.serve_session(responder, session, path)
        return True

    def open_session(self, gateway: Gateway, name: str, secret: str) -> GatewaySession:
        """Open a session with the sampling and the budget of the settings."""
        if not gateway.count:
            self._wake.set()  # `run` was waiting without a time limit
        return gateway.open(sampling=self._sampling, budget=self._budget, name=name, secret=secret)

    def allows(self, key: str) -> bool:
        """Whether a key is the token, or no token is needed."""
        return not self._token or hmac.compare_digest(key.encode(), self._token.encode())

    def parse_key(self, key: str) -> str | None:
        """The name of the session that a key opens; None if the key is refused."""
        name = key
        if self._token:
            size = len(self._token)
            if not self.allows(key[:size]) or key[size : size + 1] not in ("", "."):
                return None
            name = key[size + 1 :]
        name = name or DEFAULT
        return name if _NAME.fullmatch(name) else None

    async def run(self, gateway: Gateway) -> None:
        """Close sessions that are idle or released, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._find_next_due(gateway)):
                    await self._wake.wait()
            self._wake.clear()
            while self._released:
                await self.end_session(gateway, self._released.pop())
            now = asyncio.get_running_loop().time()
            for session in gateway.sessions:
                if not session.tasks and session.last_used + self._idle <= now:
                    await self.end_session(gateway, session)

    def _find_next_due(self, gateway: Gateway) -> float | None:
        """When the next session may become idle; None if there is no session."""
        now = asyncio.get_running_loop().time()
        used = (now if session.tasks else session.last_used for session in gateway.sessions)
        return min((at + self._idle for at in used), default=None)

    async def end_session(self, gateway: Gateway, session: GatewaySession, *, grace: float = 60.0) -> None:
        """Close a session and pass on its record, unless that was done already."""
        if gateway.find_session(session.secret) is session:
            self._record(await gateway.close(session, grace=grace))

    def release(self, gateway: Gateway, session: GatewaySession) -> None:
        """Let `run` end a session soon."""
        self._released.append(session)
        self._wake.set()

    async def close(self, gateway: Gateway, *, grace: float = 60.0) -> None:
        """Close all sessions."""
        for session in gateway.sessions:
            await self.end_session(gateway, session, grace=grace)
