"""Slots in containers of Apptainer (or Singularity), which needs neither a daemon nor root: for clusters.

A container is one `apptainer exec` that the driver holds by its stdin and stdout; it ends with slotd, and slotd ends
when the driver does, so there is no instance to list, stop or forget. It is started with `--containall`, without the
user's home and environment, over a file system in memory.

slotd runs as the user who runs the driver. Slots get namespaces of their own inside the container wherever the host
allows user namespaces, which Apptainer itself most often needs too; where it does not, slots are refused, unless
`trusted`. Memory and processes of a whole container are limited only with `limit_memory`, which needs control groups
that the user may use; else memory is limited per process, and processes per slot.
"""

from collections.abc import Hashable

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.local.limits import SHM_MB
from ludus.sandbox.owner import OwnedResource
from ludus.sandbox.remote.bundle import build_receive_command
from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.program import run_program
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake
from ludus.sandbox.settings import ApptainerSettings

_SLOTD_MB = 96


class Apptainer:
    """Starts containers, each with a slotd in it."""

    def __init__(self, settings: ApptainerSettings) -> None:
        self._settings = settings

    def kind(self, spec: SandboxSpec) -> Hashable:
        return spec.network, spec.memory_mb, spec.disk_mb, spec.processes, spec.caches

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        settings = self._settings
        link = StdioLink(await run_program(build_apptainer_command(settings, spec)))
        hello = {"view": "image", "exclusive": settings.slots == 1, "as_root": settings.fakeroot}
        greeting = link.start(hello, seconds=settings.start_seconds, lapse=settings.lapse_seconds)
        try:
            about = await finish_handshake(link, greeting, slots=settings.slots, trusted=settings.trusted, container=False)
        except SandboxError as error:
            raise SandboxError(f"image '{settings.image}' runs no slots: {error}", retryable=error.retryable) from error
        return SlotServer(link, about, places=settings.slots, end=_do_nothing, held=_list_container_limits(settings), env=settings.env)

    async def holdings(self) -> list[OwnedResource]:
        return []

    async def drop(self, holding: OwnedResource) -> None:
        raise AssertionError("there are none")

    async def close(self) -> None:
        """Nothing is left when its servers are ended."""


async def _do_nothing() -> None:
    pass


def _list_container_limits(settings: ApptainerSettings) -> tuple[str, ...]:
    """What control groups hold of a slot."""
    return ("memory", "processes") if settings.limit_memory and settings.slots == 1 else ()


def build_apptainer_command(settings: ApptainerSettings, spec: SandboxSpec) -> list[str]:
    """How slotd is started in a container."""
    options = ["--containall", "--no-home", "--cleanenv", "--writable-tmpfs"]
    for source, target in (*((mount.source, mount.target) for mount in settings.mounts), *spec.caches):
        options += ("--bind", f"{source}:{target}:ro")
    if settings.gpus:
        options.append("--nv")
    if settings.fakeroot:
        options.append("--fakeroot")
    if settings.cpus:
        options += ("--cpus", f"{settings.cpus:g}")
    if settings.limit_memory:
        memory = settings.slots * (spec.memory_mb + 3 * spec.disk_mb + SHM_MB) + _SLOTD_MB
        options += ("--memory", f"{memory}M", "--pids-limit", str(spec.processes * settings.slots + 32))
    return [settings.command, "exec", *options, *settings.arguments, settings.image, *build_receive_command(settings.python)]
