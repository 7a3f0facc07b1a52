"""An environment of release 0.1 without its package."""

from collections.abc import Mapping
from typing import Any

from ludus.compat.verifiers_env.v0_environments import EnvironmentRelease
from ludus.compat.verifiers_env.v0_standin.modules import provide_v0
from ludus.compat.verifiers_env.v0_standin.session_client import SessionClient


class StandInRelease(EnvironmentRelease):
    """Loads an environment with the modules that are provided here, and closes it at the end."""

    def __init__(self, id: str, args: Mapping[str, Any]) -> None:
        provide_v0()
        super().__init__(id, args, SessionClient)

    async def close(self) -> None:
        await self.environment._teardown()
