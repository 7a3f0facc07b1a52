"""How slots are isolated from each other and from slotd. Three levels, best first:

`namespaces`  Mount, pid, ipc, uts and (unless the network is allowed) net namespaces, its own file system view, no
              capabilities, no new privileges. Made in a user namespace if that is allowed, else with slotd's own
              CAP_SYS_ADMIN. If slotd is root, each slot has a user id of its own.
`user`        slotd is root but may not make namespaces, as in a container with default rights. Each slot has a user id
              of its own, so it can neither signal nor read slotd or other slots. World-readable files and the network
              are shared with the rest of the container.
`none`        slotd is an ordinary user, or the slot must run as root. No isolation, as with the backend `local`.

`namespace_starter.py` and `plain_starter.py` start and end the processes of slots.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

NAMESPACES, USER, NONE = "namespaces", "user", "none"
_HIGH_USERS, _LOW_USERS = (0x7000_0000, 0x0FFF_0000), (20_000, 40_000)
"""The ranges (start, size) of user ids for slots. The high one is far from the ids that systems assign. The low one is
for containers that have only 65,536 ids."""


class Isolation(NamedTuple):
    """How slots are isolated here."""

    level: str
    in_user_namespace: bool = False
    own_users: bool = False
    """Each slot has a user id of its own. slotd must be root and able to switch to any id."""
    reason: str = ""
    """Why a better level is not available."""


BEST_FIRST = (
    Isolation(NAMESPACES, in_user_namespace=True, own_users=True),
    Isolation(NAMESPACES, own_users=True),
    Isolation(NAMESPACES, in_user_namespace=True),
    Isolation(USER, own_users=True),
)

WITH_IMAGE = (Isolation(NAMESPACES),)
"""How slots with an image are isolated: in slotd's own user namespace, until their programs enter another one."""


async def find_isolation(
    *, as_root: bool, probe: Callable[[Isolation], Awaitable[str]], choices: Sequence[Isolation] = BEST_FIRST
) -> Isolation:
    """Find the best isolation that works here. `probe` starts a slot briefly and returns the error, or "". `choices`:
    what is tried, best first."""
    if as_root:
        return Isolation(NONE, reason="slots run as root")
    reason = "namespaces are not allowed here"
    for isolation in choices:
        if isolation.own_users and os.geteuid() != 0:
            continue
        problem = await probe(isolation)
        if not problem:
            return isolation._replace(reason="" if isolation.level == NAMESPACES else reason)
        reason += f"; {problem}"
    return Isolation(NONE, reason=reason)


def sample_user() -> int:
    """Sample a random user id for a slot. Only root can use it."""
    start, size = _HIGH_USERS
    user = start + secrets.randbelow(size)
    fd = os.memfd_create("probe")
    try:
        os.fchown(fd, user, user)
    except OSError:
        start, size = _LOW_USERS
        return start + secrets.randbelow(size)
    finally:
        os.close(fd)
    return user
