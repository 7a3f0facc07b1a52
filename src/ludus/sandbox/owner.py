"""Whose a container or job is: a mark that names one driver process, and tells whether that driver still lives.

A driver that was killed cannot clean up. What it left carries its mark, so the next driver on the same host can.
"""

import os
import re
import socket
from pathlib import Path

from msgspec import Struct


class OwnedResource(Struct, frozen=True):
    """Something that a driver has: a folder of this host, a container, a job."""

    backend: str
    kind: str
    """What it is called there: `folder`, `container`, `job` …"""
    name: str
    """What it is removed by."""
    owner: str
    """The mark of its driver."""

    @property
    def orphaned(self) -> bool:
        return is_orphan(self.owner)

    @property
    def driver(self) -> str:
        """The driver, for people."""
        parts = self.owner.split("_")
        return f"process {parts[2]} of {parts[0]}" if len(parts) == 4 else "unknown"


def make_owner_mark() -> str:
    """This process, in a form that no other process has: host, boot, number, and when it started."""
    return "_".join((_get_host_name(), _read_boot_id(), str(os.getpid()), _read_start_time(os.getpid())))


def is_orphan(mark: str) -> bool:
    """Whether a mark is of a driver of this host that is gone. Marks of other hosts are not ours to judge."""
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
