"""What works here, and why not: every backend, and which limits hold for its slots.

A profile that the user has set is tried for real: one slot is made, runs a command, and ends. A backend that nobody has
asked for is only looked at: is its program installed, does its service answer? Nothing is installed, fetched or paid
for by looking.
"""

import asyncio
import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ludus.errors import ConfigError, LudusError
from ludus.http_client import Client, HttpError, Timeouts
from ludus.sandbox import SandboxSpec
from ludus.sandbox.local.bwrap import Bwrap
from ludus.sandbox.local.limits import LimitStatus
from ludus.sandbox.profiles import ReadSecret, open_fleet
from ludus.sandbox.remote.docker_api import DockerApi, DockerApiError
from ludus.sandbox.settings import (
    ApptainerSettings,
    BwrapSettings,
    DockerSettings,
    LocalSettings,
    NomadSettings,
    PodmanSettings,
    Profile,
    RemoteProfile,
    backend_of,
)

_LOOK_SECONDS = 5.0
_TRIAL_SECONDS = 120.0
_NONE_HELD = "nothing"

State = Literal["works", "ready", "off", "broken"]
"""`works`: a slot ran. `ready`: what it needs is here, but nothing was run. `off`: it is not here."""


class Finding(Struct, frozen=True):
    """One backend, or one profile of the user's."""

    backend: str
    state: State
    message: str
    remedy: str = ""
    limits: tuple[LimitStatus, ...] = ()


async def survey(profiles: Mapping[str, Profile], secret: ReadSecret) -> list[Finding]:
    """Every profile, tried, and every other backend, looked at. A profile's finding bears its name."""
    tried = [await try_out(format_title(name, profile), profile, secret) for name, profile in profiles.items()]
    used = {backend_of(profile) for profile in profiles.values()}
    return [*tried, *[await look(name) for name in _LOOKS if name not in used]]


def format_title(name: str, profile: Profile) -> str:
    return f"{backend_of(profile)}, profile {name}" if name else backend_of(profile)


# ---- what the user has set ----------------------------------------------------------------------------------------


async def try_out(name: str, profile: Profile, secret: ReadSecret) -> Finding:
    match profile:
        case BwrapSettings():
            return await asyncio.to_thread(_try_bwrap, name)
        case LocalSettings():
            return _local(name)
        case _:
            return await _try_remote(name, profile, secret)


def _try_bwrap(name: str = "bwrap") -> Finding:
    bwrap = Bwrap()
    try:
        path = bwrap.check()
        return Finding(name, "works", f"isolates, with {path}", limits=bwrap.describe_limits())
    except ConfigError as error:
        return Finding(name, "broken", str(error), "or, for code that you trust: --sandbox.backend local")
    finally:
        bwrap.close()


def _local(name: str = "local") -> Finding:
    limits = (
        *(LimitStatus(limit, _NONE_HELD, False) for limit in ("memory", "processes", "disk")),
        LimitStatus("time and output", "the driver", True),
    )
    return Finding(name, "works", "isolates nothing: for trusted code only", limits=limits)


async def _try_remote(name: str, profile: RemoteProfile, secret: ReadSecret) -> Finding:
    try:
        fleet = open_fleet(profile, secret=secret)
    except LudusError as error:
        return Finding(name, "broken", str(error))
    try:
        async with asyncio.timeout(_TRIAL_SECONDS):
            box = await fleet.create(SandboxSpec(disk_mb=64))
            await box.exec("true")
            server = fleet.list_servers()[0]
            await box.close()
        about = server.about
        message = f"a slot ran; slots are kept apart by {_WORDS[about.isolation]} (Python {about.python} over there)"
        return Finding(name, "works", message, limits=server.describe_limits())
    except LudusError as error:
        return Finding(name, "broken", str(error))
    except TimeoutError:
        return Finding(name, "broken", f"no slot within {_TRIAL_SECONDS:g} s")
    finally:
        await fleet.close()


_WORDS = {"namespaces": "namespaces", "user": "a user of their own", "none": "nothing"}


# ---- what is here besides -----------------------------------------------------------------------------------------


async def look(backend: str) -> Finding:
    """Whether a backend could be used here."""
    match backend:
        case "bwrap":
            return await asyncio.to_thread(_try_bwrap)
        case "local":
            return _local()
        case "docker" | "podman":
            return await _look_at_engine(backend)
        case "ssh":
            return _look_for("ssh", "ssh", "name hosts with --sandbox.ssh.hosts")
        case "apptainer":
            program = ApptainerSettings(image="").command
            return _look_for("apptainer", program, "name an image: --sandbox.apptainer.image")
        case "nomad":
            return await _look_at_nomad(NomadSettings().address)
        case _:
            return _look_for_modal()


_LOOKS = ("bwrap", "local", "docker", "podman", "ssh", "apptainer", "nomad", "modal")


class EngineInfo(Struct, rename="pascal"):
    """What an engine says of itself, as far as it does."""

    server_version: str = ""
    cgroup_version: str = ""
    memory_limit: bool = False
    pids_limit: bool = False


async def _look_at_engine(backend: str) -> Finding:
    settings = (PodmanSettings if backend == "podman" else DockerSettings)(image="")
    if not _is_there(settings.socket):
        start = "podman system service --time=0 &" if backend == "podman" else "start the engine"
        remedy = f"{start}, or name its socket: --sandbox.{backend}.socket"
        return Finding(backend, "off", f"there is no {settings.socket}", remedy)
    try:
        about = await DockerApi(settings.socket, seconds=_LOOK_SECONDS).read("/info", {}, EngineInfo)
    except DockerApiError as error:
        return Finding(backend, "broken", str(error), "may this user use the socket?")
    return Finding(backend, "ready", f"version {about.server_version} answers", limits=engine_limits(about))


def _is_there(path: str) -> bool:
    return Path(path).exists()


def engine_limits(about: EngineInfo) -> tuple[LimitStatus, ...]:
    """The limits of a container with one slot."""
    groups = f"the container's control group, version {about.cgroup_version or '?'}"
    memory = LimitStatus("memory", groups if about.memory_limit else _NONE_HELD, about.memory_limit)
    processes = LimitStatus("processes", groups if about.pids_limit else _NONE_HELD, about.pids_limit)
    disk = LimitStatus("disk", "size of the container's own file systems", True)
    return memory, processes, disk, LimitStatus("time and output", "slotd", True)


def _look_for(backend: str, program: str, remedy: str) -> Finding:
    path = shutil.which(program)
    if path is None:
        return Finding(backend, "off", f"there is no program '{program}'", f"install it; then {remedy}")
    return Finding(backend, "ready", f"{path} is here", remedy)


async def _look_at_nomad(address: str) -> Finding:
    limits = Timeouts(connect=_LOOK_SECONDS, silence=_LOOK_SECONDS, total=_LOOK_SECONDS)
    remedy = "name your cluster: --sandbox.nomad.address"
    async with Client(timeouts=limits) as client:
        try:
            response = await client.request("GET", f"{address}/v1/status/leader")
        except HttpError:
            return Finding("nomad", "off", f"nothing answers at {address}", remedy)
    return Finding("nomad", "ready", f"{address} answers with status {response.status}")


def _look_for_modal() -> Finding:
    if importlib.util.find_spec("modal") is None:
        return Finding("modal", "off", "Modal's client is not installed", "pip install 'ludus[modal]'")
    return Finding("modal", "ready", "Modal's client is here; your account shows when it is used")
