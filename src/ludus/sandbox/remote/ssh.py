"""Slots on other hosts, through the OpenSSH client.

The `ssh` program is used, not a library: it uses your configuration, agent, jump hosts and hardware keys, and adds no
dependency. One connection per host serves all its slots. Host keys are checked: a host that `known_hosts` does not list
is refused. Nothing is installed on the host and nothing stays there: slotd comes over the connection and ends with it.

A slot sees the programs of the host (`/usr`, `/etc` and the like) but not its other files. That needs namespaces. Root
may always make them, other users where the host allows user namespaces. Where it does not, slots are refused, unless
`trusted` says that code may run as the login user. There are no control groups: memory is limited per process.
"""

import shlex
from collections import Counter
from collections.abc import Hashable, Mapping
from types import MappingProxyType

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backend import BackendFinding, RemoteSettings, look_for_program
from ludus.sandbox.remote.bundle import build_receive_command
from ludus.sandbox.remote.fleet import RemoteBackend
from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.program import run_program
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake
from ludus.types import Count, Positive, Whole

_ALIVE_OPTIONS = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
_FIXED_OPTIONS = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"),
    *("-o", "PermitLocalCommand=no"),
)


class SshSettings(RemoteSettings, frozen=True, kw_only=True, tag="ssh"):
    """Slots on other hosts, reached with the OpenSSH client."""

    hosts: tuple[str, ...]
    """Hosts, as `ssh` takes them: a name, an address, or an alias of your ssh configuration."""
    slots: Count = 16
    """Slots per host."""
    port: Whole = 0
    """0: the port of your ssh configuration."""
    user: str = ""
    """Empty: the user of your ssh configuration."""
    key_file: str = ""
    """The file of a private key; empty: the keys of your ssh configuration and agent."""
    known_hosts: str = ""
    """A file of host keys; empty: your own. A host that is not in it is refused."""
    config_file: str = ""
    """Another ssh configuration file; `none` for no file at all."""
    connect_seconds: Positive = 15.0
    """Time to connect."""
    trusted: bool = False
    """Accept slots without isolation, where the host allows no better."""


class Ssh(RemoteBackend[SshSettings]):
    """Starts a slotd on each host."""

    name = "ssh"
    Settings = SshSettings

    def __init__(self, settings: SshSettings, secrets: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(settings, secrets)
        self._used: Counter[str] = Counter(dict.fromkeys(settings.hosts, 0))

    @classmethod
    async def look(cls) -> BackendFinding:
        return look_for_program(cls.name, "ssh", "name hosts with --sandbox.ssh.hosts")

    @property
    def room(self) -> int:
        return self.settings.slots * len(self.settings.hosts)

    def get_kind(self, spec: SandboxSpec) -> Hashable:
        return "any"

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        host = min(self._used, key=lambda name: self._used[name])
        if self._used[host]:
            raise SandboxError(
                f"all {self.room} slots of the hosts are taken: set sandbox.max_slots to {self.room}, or add hosts"
            )
        self._used[host] += 1
        try:
            return await self._start(host)
        except BaseException:
            self._used[host] -= 1
            raise

    async def _start(self, host: str) -> SlotServer:
        settings = self.settings
        link = StdioLink(await run_program(build_ssh_command(settings, host)))
        reply = link.start({"view": "system"}, seconds=settings.start_seconds, lapse=settings.lapse_seconds)
        try:
            info = await finish_handshake(link, reply, slots=settings.slots, trusted=settings.trusted, container=False)
        except SandboxError as error:
            raise SandboxError(f"host '{host}' runs no slots: {error}", retryable=error.retryable) from error

        async def end() -> None:
            self._used[host] -= 1

        return SlotServer(link, info, end=end, env=settings.env, mounts=settings.mounts)


def build_ssh_command(settings: SshSettings, host: str) -> list[str]:
    """The command that starts slotd on a host. The text that the host's shell reads is always the same."""
    options = [*_FIXED_OPTIONS, *_ALIVE_OPTIONS, "-o", f"ConnectTimeout={settings.connect_seconds:.0f}"]
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
