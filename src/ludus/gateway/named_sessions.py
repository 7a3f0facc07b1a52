"""An open house: sessions that nobody has to open, for agents that are started by hand.

A key names its session: the first request with a new key opens one, so `http://HOST/s/anna/v1`, or the API key `anna`,
is enough to be recorded as `anna`; without a key the session is `default`. Where a token is set, a key is the token, or
the token, a dot and the name (`TOKEN.anna`), and nothing else is let in. A session that was not used for a while is
closed, and in the end all of them are; whoever runs the house is given each record, once.

How many sessions are open at once is limited: a client that makes up keys must not fill the memory.
"""

import asyncio
import hmac
import re
from collections.abc import Callable
from contextlib import suppress

from ludus.gateway.chat_api import CHAT
from ludus.gateway.dialect import Trouble
from ludus.gateway.gateway_session import Record, Session
from ludus.gateway.http_server import Responder
from ludus.gateway.service import DIALECTS, Gateway, refuse
from ludus.gateway.settings import GatewaySettings
from ludus.models.ledger import Budget
from ludus.types import Sampling

DEFAULT = "default"
SESSIONS = 10_000
_NAME = re.compile(r"[A-Za-z0-9._~-]{1,200}")


class House:
    """A door of a gateway that lets in whoever has the token, or everybody if there is none."""

    def __init__(
        self,
        record: Callable[[Record], None],
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
        self._released: list[Session] = []

    def door(self, gateway: Gateway, responder: Responder, key: str, path: str) -> bool:
        """Open a session for a new key. See `gateway.Door`."""
        name = self.name_of(key)
        if name is None:
            return False
        if gateway.count >= self._most:
            full = Trouble(503, f"{self._most} sessions are open, which is the limit", "closed")
            refuse(responder, DIALECTS.get(path.removeprefix("/v1"), CHAT), full)
            return True
        secret = key or DEFAULT
        session = gateway.find(secret) or self.open(gateway, name, secret)
        gateway.route(responder, session, path)
        return True

    def open(self, gateway: Gateway, name: str, secret: str) -> Session:
        """A session as this house has them."""
        if not gateway.count:
            self._wake.set()  # until now nobody waited for anything to become idle
        return gateway.open(sampling=self._sampling, budget=self._budget, name=name, secret=secret)

    def allows(self, key: str) -> bool:
        """Whether a key is the token, or none is needed."""
        return not self._token or hmac.compare_digest(key.encode(), self._token.encode())

    def name_of(self, key: str) -> str | None:
        """The session that a key names; None if it opens nothing here."""
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
                async with asyncio.timeout_at(self._due(gateway)):
                    await self._wake.wait()
            self._wake.clear()
            while self._released:
                await self.end(gateway, self._released.pop())
            now = asyncio.get_running_loop().time()
            for session in gateway.sessions:
                if not session.tasks and session.used + self._idle <= now:
                    await self.end(gateway, session)

    def _due(self, gateway: Gateway) -> float | None:
        """When the next session may be idle; None while there is none."""
        now = asyncio.get_running_loop().time()
        used = (now if session.tasks else session.used for session in gateway.sessions)
        return min((at + self._idle for at in used), default=None)

    async def end(self, gateway: Gateway, session: Session, *, grace: float = 60.0) -> None:
        """Close a session, and hand on its record."""
        self._record(await gateway.close(session, grace=grace))

    def release(self, gateway: Gateway, session: Session) -> None:
        """Have a session ended soon, by `run`."""
        self._released.append(session)
        self._wake.set()

    async def close(self, gateway: Gateway, *, grace: float = 60.0) -> None:
        """Close all sessions."""
        for session in gateway.sessions:
            await self.end(gateway, session, grace=grace)
