"""Slots in containers of Apptainer (or Singularity), which needs neither a daemon nor root: for clusters.

A container is one `apptainer exec` whose stdin and stdout the driver holds. It ends with slotd, and slotd ends with the
driver, so there is no instance to list, to stop or to forget. It is started with `--containall`, without the user's
home and environment, on a file system in memory.

slotd runs as the user who runs the driver. Slots get their own namespaces inside the container where the host allows
user namespaces, which Apptainer itself most often needs too. Where it does not, slots are refused, unless `trusted` is
set. Memory and processes of a whole container are limited only with `limit_memory`, which needs control groups that the
user may use. Else memory is limited per process, and processes per slot.
"""

from collections.abc import Hashable

from ludus.errors import SandboxError
from ludus.sandbox import SandboxSpec
from ludus.sandbox.backend import BackendFinding, look_for_program
from ludus.sandbox.backend_settings import ApptainerSettings
from ludus.sandbox.limits import compute_container_mb
from ludus.sandbox.remote.bundle import build_receive_command
from ludus.sandbox.remote.fleet import RemoteBackend
from ludus.sandbox.remote.link import StdioLink
from ludus.sandbox.remote.program import run_program
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake

_PROGRAM = "apptainer"


class Apptainer(RemoteBackend[ApptainerSettings]):
    """Starts containers, each with a slotd in it."""

    name = "apptainer"
    Settings = ApptainerSettings

    @classmethod
    async def look(cls) -> BackendFinding:
        return look_for_program(cls.name, _PROGRAM, "name an image: --sandbox.apptainer.image")

    def get_kind(self, spec: SandboxSpec) -> Hashable:
        return spec.network, spec.memory_mb, spec.disk_mb, spec.processes, spec.caches

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        settings = self.settings
        link = StdioLink(await run_program(build_apptainer_command(settings, spec)))
        hello = {"view": "image", "exclusive": settings.slots == 1, "as_root": settings.fakeroot}
        reply = link.start(hello, seconds=settings.start_seconds, lapse=settings.lapse_seconds)
        try:
            info = await finish_handshake(link, reply, slots=settings.slots, trusted=settings.trusted, container=False)
        except SandboxError as error:
            raise SandboxError(f"image '{settings.image}' runs no slots: {error}", retryable=error.retryable) from error
        return SlotServer(
            link,
            info,
            end=_do_nothing,
            container_limits=("memory", "processes") if settings.limit_memory and settings.slots == 1 else (),
            env=settings.env,
        )


async def _do_nothing() -> None:
    """The container has ended with its link."""


def build_apptainer_command(settings: ApptainerSettings, spec: SandboxSpec) -> list[str]:
    """The command that starts slotd in a container."""
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
        memory = compute_container_mb(spec, settings.slots)
        options += ("--memory", f"{memory}M", "--pids-limit", str(spec.processes * settings.slots + 32))
    return [
        settings.command,
        "exec",
        *options,
        *settings.arguments,
        settings.image,
        *build_receive_command(settings.python),
    ]
