"""Who owns a container or job: a mark that names one driver process and shows whether that driver is still alive.

A driver that was killed cannot clean up. What it leaves has its mark, so that the next driver on the same host can
remove it.
"""

import os
import re
import socket
from pathlib import Path

from msgspec import Struct


class OwnedResource(Struct, frozen=True):
    """Something that a driver owns: a folder of this host, a container, a job."""

    backend: str
    kind: str
    """What the backend calls it: `folder`, `container`, `job` …"""
    name: str
    """The name that it is removed by."""
    owner: str
    """The mark of its driver."""

    @property
    def orphaned(self) -> bool:
        return is_orphan(self.owner)

    @property
    def driver(self) -> str:
        """The driver, in words for people."""
        parts = self.owner.split("_")
        return f"process {parts[2]} of {parts[0]}" if len(parts) == 4 else "unknown"


def make_owner_mark() -> str:
    """The mark of this process, which no other process has: host, boot, process number and start time."""
    return "_".join((_get_host_name(), _read_boot_id(), str(os.getpid()), _read_start_time(os.getpid())))


def is_orphan(mark: str) -> bool:
    """Whether a mark belongs to a driver of this host that is gone. For marks of other hosts the answer is no, because
    this host cannot know."""
    parts = mark.split("_")
    if len(parts) != 4 or parts[0] != _get_host_name() or not parts[2].isdigit():
        return False
    return parts[1] != _read_boot_id() or _read_start_time(int(parts[2])) != parts[3]


def _get_host_name() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "", socket.gethostname())


def _read_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().partition("-")[0]


def _read_start_time(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""
