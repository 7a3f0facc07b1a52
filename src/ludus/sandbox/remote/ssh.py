"""Slots on other hosts, through the OpenSSH client.

The `ssh` program is used, not a library: it uses your configuration, agent, jump hosts and hardware keys, and adds no
dependency. One connection per host serves all its slots. Host keys are checked: a host that `known_hosts` does not list
is refused. Nothing is installed on the host and nothing stays there: slotd comes over the connection and ends with it.
A host that gives no slots is named on the screen and left out for a while. Its slots go to the others.

A slot sees the programs of the host (`/usr`, `/etc` and the like) but not its other files. That needs namespaces. Root
may always make them, other users where the host allows user namespaces. Where it does not, slots are refused, unless
`trusted` says that code may run as the login user. There are no control groups: memory is limited per process.
"""

import shlex
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from types import MappingProxyType

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backend import BackendFinding, look_for_program
from ludus.sandbox.backend_settings import SshSettings
from ludus.sandbox.remote.bundle import build_receive_command
from ludus.sandbox.remote.fleet import NoServerLeft, RemoteBackend
from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.program import run_program
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake

_FIRST_REST, _LONGEST_REST = 30.0, 600.0
"""How long a host that gave no slots is left out, in seconds: it doubles each time."""

_ALIVE_OPTIONS = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=3")
_FIXED_OPTIONS = (
    *("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", "ClearAllForwardings=yes"),
    *("-o", "PermitLocalCommand=no"),
)


class Ssh(RemoteBackend[SshSettings]):
    """Starts a slotd on each host."""

    name = "ssh"
    Settings = SshSettings

    def __init__(self, settings: SshSettings, secrets: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(settings, secrets)
        self._used: Counter[str] = Counter(dict.fromkeys(settings.hosts, 0))
        self._resting: dict[str, tuple[float, float]] = {}
        """Hosts that gave no slots: until when they are left out, and for how long."""

    @classmethod
    async def look(cls) -> BackendFinding:
        return look_for_program(cls.name, "ssh", "name hosts with --sandbox.ssh.hosts")

    @property
    def room(self) -> int:
        return self.settings.slots * len(self.settings.hosts)

    def get_kind(self, spec: SandboxSpec) -> Hashable:
        return "any"

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        failures: dict[str, SandboxError] = {}
        while (host := self._choose_host(failures)) is not None:
            self._used[host] += 1
            try:
                server = await self._start(host)
            except BaseException as error:
                self._used[host] -= 1
                if not isinstance(error, SandboxError):
                    raise
                failures[host] = error
                self._rest(host, error)
            else:
                if self._resting.pop(host, None) is not None:
                    self.tell(f"host '{host}' gives slots again")
                return server
        if not failures:
            raise NoServerLeft(f"all hosts are in use or left out: {', '.join(self._used)}")
        words, retryable = "; ".join(map(str, failures.values())), any(each.retryable for each in failures.values())
        raise NoServerLeft(words, retryable=retryable)

    def _choose_host(self, tried: Mapping[str, SandboxError]) -> str | None:
        """A host that is free. One that is left out is tried only where no other gives slots."""
        free = [host for host, used in self._used.items() if not used and host not in tried]
        awake = [host for host in free if self._resting.get(host, (0.0, 0.0))[0] <= time.monotonic()]
        return next(iter(awake if awake or any(self._used.values()) else free), None)

    def _rest(self, host: str, error: SandboxError) -> None:
        """Leave a host out for a while, and name it if there are others."""
        _, before = self._resting.get(host, (0.0, _FIRST_REST / 2))
        if host not in self._resting and len(self._used) > 1:
            self.tell(f"{error}. It is left out for now; slots go to the other hosts")
        seconds = min(_LONGEST_REST, 2 * before)
        self._resting[host] = time.monotonic() + seconds, seconds

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
