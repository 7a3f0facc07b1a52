"""A client of the trajectory server, for workers: the routes of Atropos' API that an environment uses.

    POST /register-env ──> env id       GET /status-env, /info, /wandb_info ──> state
    POST /scored_data, /scored_data_list <── groups        POST /disconnect-env

Requests are not repeated here. An error says whether a repetition can help: `ServerUnavailable` (no connection, 5xx,
429) or `ServerRefused` (other 4xx). A post carries an idempotency key. `ludus api` accepts every key once, so a
repeated post adds nothing. Atropos' own server ignores the key.
"""

import gzip
from time import time
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from ludus.encoding import to_json
from ludus.errors import LudusError
from ludus.http_client import Client, HttpError, Response, Timeouts, read_retry_after
from ludus.rl.server_credits import ServerStatus

KEY_HEADER = "X-Ludus-Idempotency-Key"
SERVER_HEADER = "X-Ludus-Server"
"""`ludus api` marks its replies with this header."""
CONSUMER_HEADER = "X-Ludus-Consumer"
"""A trainer that sends its name here acknowledges its batches."""
BATCH_HEADER = "X-Ludus-Batch-Id"
MIN_GZIP = 1024
"""A shorter body is sent as it is."""
SHOWN_BODY = 300
"""This much of a server's reply is shown in an error."""

T = TypeVar("T")


class ServerUnavailable(LudusError):
    """The trajectory server did not take the request. It may take it later."""

    def __init__(self, message: str, *, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status; 0 if there was no connection."""
        self.retry_after = retry_after
        """How many seconds the server asks to wait."""


class ServerRefused(LudusError):
    """The trajectory server refuses the request, and will do so again."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class WorkerPlace(Struct, frozen=True, kw_only=True):
    """A registration: the worker's place at the server."""

    env_id: int
    wandb_name: str = ""
    starting_step: int = 0
    num_steps: int = -1
    checkpoint_dir: str = ""
    checkpoint_interval: int = -1


class _Reply(Struct):
    status: str = ""


class ServerRunInfo(Struct, frozen=True, kw_only=True):
    """The reply to `/info`. -1: no trainer has registered."""

    batch_size: int = -1
    max_token_len: int = -1


class TrackerInfo(Struct, frozen=True, kw_only=True):
    """The reply to `/wandb_info`: the group and the project that the trainer has chosen."""

    group: str | None = None
    project: str | None = None


class TakenBatch(Struct, frozen=True):
    """A batch that a trainer got."""

    groups: list[dict[str, Any]]
    id: str
    """Empty if the server gives batches no ids."""


class _BatchReply(Struct):
    batch: list[dict[str, Any]] | None = None


class AtroposClient:
    """Connections to one trajectory server."""

    def __init__(
        self, server: str, *, token: str = "", timeouts: Timeouts = Timeouts(silence=60.0, total=300.0)
    ) -> None:
        self._server = server.rstrip("/")
        self._headers = [("Authorization", f"Bearer {token}")] if token else []
        self._http = Client(timeouts=timeouts)
        self.keeps_state = False
        """Whether the server keeps groups and workers over a restart, as `ludus api` does."""

    async def close(self) -> None:
        await self._http.close()

    async def register(self, fields: dict[str, Any]) -> WorkerPlace | None:
        """Register the worker. None while the trainer has not started."""
        body = await self._request("POST", "/register-env", to_json(fields))
        if self._decode(body, _Reply, "/register-env").status != "success":
            return None
        return self._decode(body, WorkerPlace, "/register-env")

    async def disconnect(self, env_id: int) -> None:
        await self._request("POST", "/disconnect-env", to_json({"env_id": env_id}))

    async def read_status(self, env_id: int) -> ServerStatus:
        """The state of the queue. The original server reads the id from the body of the GET."""
        body = await self._request("GET", f"/status-env?env_id={env_id}", to_json({"env_id": env_id}))
        return self._decode(body, ServerStatus, "/status-env")

    async def read_info(self) -> ServerRunInfo:
        return self._decode(await self._request("GET", "/info"), ServerRunInfo, "/info")

    async def read_tracker_info(self) -> TrackerInfo:
        return self._decode(await self._request("GET", "/wandb_info"), TrackerInfo, "/wandb_info")

    async def post_groups(self, groups: list[dict[str, Any]], key: str) -> None:
        """Send the groups of one post: one by itself, several as a list."""
        path = "/scored_data" if len(groups) == 1 else "/scored_data_list"
        body = to_json(groups[0] if len(groups) == 1 else groups)
        await self._request("POST", path, body, [(KEY_HEADER, key)])

    # ---- the trainer's side -----------------------------------------------------------------------------------------

    async def register_trainer(self, fields: dict[str, Any]) -> None:
        await self._request("POST", "/register", to_json(fields))

    async def take_batch(self, consumer: str) -> TakenBatch | None:
        """The next batch; None if there is none yet. `ludus api` gives a consumer the same batch again until it is
        acknowledged."""
        response = await self._send("GET", "/batch", headers=[(CONSUMER_HEADER, consumer)])
        found = self._decode(self._check(response, "/batch"), _BatchReply, "/batch")
        return TakenBatch(found.batch, response.get_header(BATCH_HEADER)) if found.batch else None

    async def acknowledge(self, batch_id: str) -> None:
        """Say that a batch is done. Atropos' own server, which gives batches no ids, is not asked."""
        if batch_id:
            await self._request("POST", "/ack", to_json({"batch_id": int(batch_id)}))

    async def _request(
        self, method: str, path: str, body: bytes = b"", headers: list[tuple[str, str]] | None = None
    ) -> bytes:
        return self._check(await self._send(method, path, body, headers), path.partition("?")[0])

    async def _send(
        self, method: str, path: str, body: bytes = b"", headers: list[tuple[str, str]] | None = None
    ) -> Response:
        sent = [*self._headers, *(headers or ())]
        if body:
            sent.append(("Content-Type", "application/json"))
        if len(body) >= MIN_GZIP and len(packed := gzip.compress(body, 1)) < len(body):
            body = packed
            sent.append(("Content-Encoding", "gzip"))
        try:
            return await self._http.request(method, self._server + path, sent, body)
        except HttpError as error:
            raise ServerUnavailable(f"the trajectory server does not answer: {error}") from error

    def _check(self, response: Response, path: str) -> bytes:
        self.keeps_state = bool(response.get_header(SERVER_HEADER))
        if response.status == 200:
            return response.body
        shown = response.body[:SHOWN_BODY].decode(errors="replace")
        message = f"the trajectory server answers {path} with {response.status}: {shown}"
        if response.status >= 500 or response.status in (408, 429):
            retry_after = read_retry_after(response, time()) or 0.0
            raise ServerUnavailable(message, status=response.status, retry_after=retry_after)
        raise ServerRefused(message, response.status)

    def _decode(self, body: bytes, kind: type[T], path: str) -> T:
        try:
            return msgspec.json.decode(body, type=kind, strict=False)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            raise ServerRefused(
                f"{self._server}{path} is not the API of a trajectory server ({error}): check serve.server", 200
            ) from None
