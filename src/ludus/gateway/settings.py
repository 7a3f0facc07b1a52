"""The `gateway` section of the settings."""

from typing import Annotated, ClassVar

from msgspec import Meta

from ludus.models.ledger import Budget
from ludus.settings import Settings
from ludus.types import Count, Positive


class GatewaySettings(Settings, frozen=True):
    """Where and how `ludus gateway` serves the model to agents (`docs/gateway.md`)."""

    added_later: ClassVar[tuple[str, ...]] = ("score_token_var",)

    host: str = "127.0.0.1"
    """The address to listen on. Any other than loopback needs `token_var`."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8100
    """The port to listen on; 0: a free one."""
    token_var: str = ""
    """The NAME of the environment variable that holds the token that agents must give as API key."""
    score_token_var: str = ""
    """The NAME of the environment variable that holds the token for `POST /sessions/NAME/score`. Without one, the route
    is off."""
    enforce: bool = True
    """Sample every reply as the `sampling` section says, whatever agents ask for."""
    session: Budget = Budget()
    """What one session may take; `budget` is for all of them together."""
    idle_seconds: Positive = 600.0
    """A session that is not used for this long is closed and written."""
    body_mb: Count = 32
    """The longest request."""
    atropos: bool = False
    """Serve the routes of Atropos' managed-server proxy too (`/sessions/create`, …)."""
