"""A worker's place at its trajectory server: it registers, looks at the queue, and notices that it was forgotten.

Every method makes one attempt. The worker calls them again and again, so that nothing here waits or loops. Atropos'
server keeps nothing over a restart: after one, another worker may have the id of this one. So the link registers again
after the server was away, if it cannot answer for the id, or if its step went back. `ludus api` keeps its workers.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ludus.errors import ConfigError, LudusError
from ludus.rl.atropos_client import AtroposClient, ServerRefused, ServerRunInfo, ServerUnavailable, WorkerPlace
from ludus.rl.server_credits import ServerStatus

LOST_AFTER = 3
"""The server has forgotten the worker if it answers this many questions about it with an error."""
FORBIDDEN = (401, 403)
GOODBYE_SECONDS = 5


class ServerLink:
    """The connection of one worker to one server."""

    def __init__(self, client: AtroposClient, fields: dict[str, Any], tell: Callable[[str], None]) -> None:
        """`fields` are the body of `/register-env`."""
        self._client = client
        self._fields = fields
        self._tell = tell
        self._told = ""
        self._errors = 0
        """Errors in a row when the server was asked about this worker."""
        self._away = False
        """Whether the server could not be reached when it was asked last."""
        self.place: WorkerPlace | None = None
        self.info = ServerRunInfo()
        self.registered = asyncio.Event()

    async def register(self) -> bool:
        """Try to register. False while the server or the trainer is not there."""
        try:
            place = await self._client.register(self._fields)
            if place is not None:
                self.info = await self._client.read_info()
        except ServerUnavailable as error:
            self._tell_once(f"waiting for the server: {error}")
            return False
        except ServerRefused as error:
            raise explain_refusal(error) from error
        if place is None:
            self._tell_once("waiting for the trainer: the server has none yet")
            return False
        self.place, self._errors, self._away = place, 0, False
        self._tell_once(f"registered as {place.wandb_name or place.env_id}, step {place.starting_step}")
        self.registered.set()
        return True

    async def look(self, step: int) -> ServerStatus | None:
        """Ask for the state of the queue. None if there is no answer. If the worker was forgotten, `registered` is
        cleared. `step` is the last one that the worker knows."""
        assert self.place is not None
        try:
            status = await self._client.read_status(self.place.env_id)
        except ServerUnavailable as error:
            if not error.status:
                self._away = True
                self._tell_once(f"{error}; groups are kept until it does")
                return None
            self._errors += 1
            if self._errors < LOST_AFTER:
                return None
        except ServerRefused as error:
            if error.status in FORBIDDEN:
                raise explain_refusal(error) from error
        else:
            forgotten = status.current_step < step or (self._away and not self._client.keeps_state)
            self._errors, self._away, self._told = 0, False, ""
            if not forgotten:
                return status
        self._tell_once("the server was restarted or reset: registering again")
        self.registered.clear()
        return None

    async def post(self, groups: list[dict[str, Any]], key: str) -> None:
        """Post groups under the id of the worker.

        Raises:
            ServerUnavailable: the post should be repeated, with the same key.
            ServerRefused: the server does not want these groups.
            ConfigError: the server does not want this worker.
        """
        env_id = self.place.env_id if self.place is not None else None
        try:
            await self._client.post_groups([{**group, "env_id": env_id} for group in groups], key)
        except ServerRefused as error:
            if error.status in FORBIDDEN:
                raise explain_refusal(error) from error
            raise

    async def disconnect(self) -> None:
        """Tell the server that the worker ends, so that no batch waits for it. A server that is away is not told."""
        if self.place is not None:
            with suppress(LudusError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._client.disconnect(self.place.env_id)

    def _tell_once(self, message: str) -> None:
        if message != self._told:
            self._tell(message)
            self._told = message


def explain_refusal(error: ServerRefused) -> ConfigError:
    if error.status in FORBIDDEN:
        return ConfigError(f"serve.token_var: {error}. Name the variable that holds the server's token")
    return ConfigError(f"serve.server: {error}")
