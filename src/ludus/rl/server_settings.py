"""The `api` section of the settings."""

from typing import Annotated, Literal

from msgspec import Meta

from ludus.settings import Settings
from ludus.types import Count, Positive


class ApiSettings(Settings, frozen=True):
    """Where and how `ludus api` takes groups and gives batches (`docs/rl.md`)."""

    host: str = "127.0.0.1"
    """The address to listen on. Any other than loopback needs `token_var`."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """The port to listen on; 0: a free one."""
    data: str = ""
    """The directory of the log; default: `runs/api-<time>`. A server that is started on the same directory again
    continues where it was."""
    token_var: str = ""
    """The NAME of the environment variable that holds the token (`Authorization: Bearer …`)."""
    sync: Literal["system", "disk"] = "system"
    """When an accepted group is safe. `system`: it is written to the file; a killed process loses nothing, a power
    failure may lose the last seconds. `disk`: it is flushed to the disk before it is answered, many posts at once."""
    max_staleness: Annotated[int, Meta(ge=0)] | None = None
    """A group is dropped when its policy is more than this many steps old, and counted; default: never. Slow tasks give
    old groups, so a limit here trains on fast tasks more often. Limit what is under way instead
    (`serve.max_batches_offpolicy`). The version is `generation_params.policy_version` of the group, or the step at
    which it came."""
    body_mb: Count = 256
    """The longest request, also after decompression."""
    backlog_groups: Count = 250_000
    """How many groups may wait. Further posts are answered with 503 and `Retry-After`."""
    backlog_gb: Positive = 16.0
    """How many gigabytes may wait on disk. Further posts are answered with 503 and `Retry-After`."""
    env_timeout: Positive = 120.0
    """An environment that sent nothing for this many seconds is treated as gone: no batch waits for its minimum."""
    minimum_patience: Positive = 60.0
    """How many seconds a batch waits for the minimum share of a live environment. Then it is made without it."""
    lease_seconds: Positive = 600.0
    """A batch that its consumer has not acknowledged for this many seconds is given to the next consumer."""
    checkers: Annotated[int, Meta(ge=0)] | None = None
    """Processes that check posted groups beside the server's own; default: one for each core but one, at most 4."""
