"""Slots on other hosts, through the OpenSSH client.

The `ssh` program is used, not a library: it brings your configuration, agent, jump hosts and hardware keys, and adds no
dependency. One connection per host carries all its slots, so nothing has to be multiplexed. Host keys are checked: a
host that `known_hosts` does not know is refused. Nothing is installed over there and nothing stays: slotd comes over
the connection and leaves with it.

A slot sees the programs of the host (`/usr`, `/etc` and the like) but not its other files. That takes namespaces: root
may always make them, others where the host allows user namespaces. Where it does not, slots are refused, unless
`trusted` says that code may run as the login user. There are no control groups: memory is limited per process.
"""

import shlex
from collections import Counter
from collections.abc import Hashable

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.owner import OwnedResource
from ludus.sandbox.remote.bundle import build_receive_command
from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.program import run_program
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake
from ludus.sandbox.settings import SshSettings

_ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
_PLAIN = ("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes", "-o", "PermitLocalCommand=no")


class Ssh:
    """Starts a slotd on each host."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._used: Counter[str] = Counter(dict.fromkeys(settings.hosts, 0))

    def kind(self, spec: SandboxSpec) -> Hashable:
        return "any"

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        host = min(self._used, key=lambda name: self._used[name])
        if self._used[host]:
            room = len(self._settings.hosts) * self._settings.slots
            raise SandboxError(f"all {room} slots of the hosts are taken: set max_slots to {room}, or add hosts")
        self._used[host] += 1
        try:
            return await self._start(host)
        except BaseException:
            self._used[host] -= 1
            raise

    async def holdings(self) -> list[OwnedResource]:
        return []

    async def drop(self, holding: OwnedResource) -> None:
        raise AssertionError("there are none")

    async def close(self) -> None:
        """Nothing is left over there when its servers are ended."""

    async def _start(self, host: str) -> SlotServer:
        settings = self._settings
        link = StdioLink(await run_program(build_ssh_command(settings, host)))
        greeting = link.start({"view": "system"}, seconds=settings.start_seconds, lapse=settings.lapse_seconds)
        try:
            about = await finish_handshake(link, greeting, slots=settings.slots, trusted=settings.trusted, container=False)
        except SandboxError as error:
            raise SandboxError(f"host '{host}' runs no slots: {error}", retryable=error.retryable) from error

        async def end() -> None:
            self._used[host] -= 1

        return SlotServer(link, about, places=settings.slots, end=end, env=settings.env, mounts=settings.mounts)


def build_ssh_command(settings: SshSettings, host: str) -> list[str]:
    """How slotd is started on a host. What goes through the host's shell is the same text always."""
    options = [*_PLAIN, *_ALIVE, "-o", f"ConnectTimeout={settings.connect_seconds:.0f}"]
    options += ("-o", "StrictHostKeyChecking=yes")
    if settings.known_hosts:
        options += ("-o", f"UserKnownHostsFile={settings.known_hosts}", "-o", "GlobalKnownHostsFile=none")
    if settings.config_file:
        options += ("-F", settings.config_file)
    if settings.key_file:
        options += ("-i", settings.key_file, "-o", "IdentitiesOnly=yes")
    if settings.port:
        options += ("-p", str(settings.port))
    if settings.user:
        options += ("-l", settings.user)
    return ["ssh", *options, "--", host, f"exec {shlex.join(build_receive_command(settings.python))}"]
