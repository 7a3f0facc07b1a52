"""`POST /sessions/NAME/score`: the program that runs an agent gives its session a reward.

    {"reward": 0.5, "feedback": "two of four tests pass", "parts": {"tests": 0.5}}

The reward decides what is trained on, so it needs a token of its own. No key of a session and no token of agents is
accepted here, and the token for scores opens no session. A gateway has this route only if it is given one. Those that
serve the agents of a rollout (`ludus.harness`) have none: there, an environment judges.
"""

import asyncio
import hmac
import re
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from ludus.errors import LudusError
from ludus.gateway.chat_api import CHAT
from ludus.gateway.dialect import BadRequest, ErrorReply
from ludus.gateway.service import Gateway, read_key, refuse
from ludus.http_server import JSON, Responder
from ludus.types import Score

_PATH = re.compile(r"(?:/v1)?/sessions/([^/]+)/score")


class RewardRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request."""

    reward: float
    passed: bool | None = None
    """None: it passed if the reward is 1 or more."""
    feedback: str = ""
    parts: dict[str, float] = {}

    def make_score(self) -> Score:
        score = Score.of(self.reward, self.feedback, parts=self.parts)
        return score if self.passed is None else msgspec.structs.replace(score, passed=self.passed)


class ScoredSession(Struct, frozen=True):
    """The reply: what was scored."""

    session: str
    task: str
    reward: float


StoreScore = Callable[[Gateway, str, Score], Awaitable[ScoredSession]]
"""Stores the score of the session of a name, and ends the session if it is open. Raises `BadRequest` if it cannot."""


class ScoreRoute:
    """A route of a gateway. It must come before routes that open sessions."""

    def __init__(self, token: str, store_score: StoreScore) -> None:
        if not token:
            raise ValueError("ScoreRoute: scores need a token")
        self._token = token.encode()
        self._store_score = store_score
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, gateway: Gateway, responder: Responder, key: str, path: str) -> bool:
        """Serve requests for scores, and refuse all others that carry the token. See `service.Route`."""
        found = _PATH.fullmatch(path)
        if not self._is_token(read_key(responder)):
            if found or self._is_token(key):
                _refuse(responder, 401, "a score needs the token for scores, as Authorization: Bearer TOKEN")
            return bool(found) or self._is_token(key)
        if found is None:
            _refuse(responder, 403, "the token for scores is for POST /sessions/NAME/score only")
        elif responder.request.method != "POST":
            _refuse(responder, 405, f"{path}: use POST")
        else:
            task = asyncio.get_running_loop().create_task(self._answer(gateway, responder, unquote(found[1])))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return True

    def _is_token(self, key: str) -> bool:
        return hmac.compare_digest(key.encode(), self._token)

    async def _answer(self, gateway: Gateway, responder: Responder, name: str) -> None:
        try:
            score = msgspec.json.decode(responder.request.body, type=RewardRequest).make_score()
            scored = await self._store_score(gateway, name, score)
        except BadRequest as error:
            _refuse(responder, error.status, str(error))
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            _refuse(
                responder, 400, f'{error}; send {{"reward": NUMBER}}, and "passed", "feedback" or "parts" if you like'
            )
        except LudusError as error:
            _refuse(responder, 500, str(error))
        else:
            responder.send(200, JSON, msgspec.json.encode(scored))


def _refuse(responder: Responder, status: int, message: str) -> None:
    refuse(responder, CHAT, ErrorReply(status, message, "key" if status in (401, 403) else "request"))
