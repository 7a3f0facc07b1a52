"""Slots in containers, or in bare processes, that a Nomad cluster runs.

Each server is its own job (type `batch`, one allocation, never restarted), so that each can be ended alone. slotd comes
to it as a template of the job and listens on a port that Nomad assigns. Requests have a token that is made for each job
and is in the task's secrets folder. Everyone who may read the job in Nomad can read that token, and the requests are
not encrypted: keep Nomad and its network private.

Nothing polls Nomad: waiting for an allocation is a blocking query. When the driver dies, slotd ends when no message
comes, and the job ends with it. The next driver on the same host purges its record in Nomad.
"""

import asyncio
import base64
from collections.abc import Hashable, Mapping
from contextlib import suppress
from secrets import token_hex, token_urlsafe
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct, field

from ludus.errors import SandboxError
from ludus.http_client import Client, HttpError, Timeouts, send_with_retries
from ludus.sandbox import ImageSupport, SandboxSpec
from ludus.sandbox.backend import BackendFinding, BackendSettings
from ludus.sandbox.backend_settings import NomadSettings
from ludus.sandbox.limits import compute_container_mb
from ludus.sandbox.owner import OwnedResource, make_owner_mark
from ludus.sandbox.port.remote_port import STREAMS
from ludus.sandbox.remote.bundle import build_bundle, build_file_command
from ludus.sandbox.remote.fleet import Once, RemoteBackend
from ludus.sandbox.remote.link import HttpLink
from ludus.sandbox.remote.remote_sandbox import SlotServer, finish_handshake
from ludus.sandbox.slotd.frames import Frame
from ludus.sandbox.teardown import run_shielded

T = TypeVar("T")

_TASK, _PORT = "slotd", "slotd"
_WAIT_SECONDS = 30
_LOOK_SECONDS = 5.0
_PAUSES = (0.2, 1.0)
_USER_CAPABILITIES = ("setuid", "setgid", "chown", "kill", "dac_override", "fowner")
_NAMESPACE_CAPABILITIES = ("sys_admin", "sys_chroot", "net_admin", "setpcap")
_IMAGE_CAPABILITIES = ("fsetid", "setfcap")
_ENDED = ("failed", "lost", "complete")


class NomadError(SandboxError):
    """Nomad refused a request, or did not reply."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message, retryable=status not in (400, 403))
        self.status = status


class Nomad(RemoteBackend[NomadSettings]):
    """Starts jobs, each with a slotd in it."""

    name = "nomad"
    Settings = NomadSettings

    def __init__(self, settings: NomadSettings, secrets: Mapping[str, str] = MappingProxyType({})) -> None:
        super().__init__(settings, secrets)
        self._api = _NomadApi(settings, secrets.get("token", ""))
        # Each connection through a slot's port has two requests under way; other requests must not wait for them.
        self._client = Client(connections=settings.slots * (2 * STREAMS + 4) + 8, response_bytes=2**30)
        """For slotds, not for Nomad."""
        self._owner = make_owner_mark()
        self._sweep_once = Once(self._sweep)

    @classmethod
    def get_image_support(cls, settings: NomadSettings) -> ImageSupport:
        return "named" if settings.driver == "docker" else "none"

    @classmethod
    async def look(cls) -> BackendFinding:
        return await cls.look_with(NomadSettings())

    @classmethod
    async def look_with(cls, settings: BackendSettings) -> BackendFinding:
        assert isinstance(settings, NomadSettings)
        limits = Timeouts(connect=_LOOK_SECONDS, silence=_LOOK_SECONDS, total=_LOOK_SECONDS)
        address, remedy = settings.address.rstrip("/"), "name your cluster: --sandbox.nomad.address"
        async with Client(timeouts=limits) as client:
            try:
                response = await client.request("GET", f"{address}/v1/status/leader")
            except HttpError:
                return BackendFinding(cls.name, "off", f"nothing answers at {address}", remedy)
        return BackendFinding(cls.name, "ready", f"{address} answers with status {response.status}")

    def get_kind(self, spec: SandboxSpec) -> Hashable:
        return spec.network, spec.memory_mb, spec.disk_mb, spec.processes, spec.caches, spec.image

    async def launch(self, spec: SandboxSpec) -> SlotServer:
        await self._sweep_once.run()
        name = f"{self.settings.job_prefix}-{self._owner}-{token_hex(4)}"
        try:
            return await self._start(name, spec)
        except BaseException:
            await run_shielded(self._purge(name))
            raise

    async def close(self) -> None:
        await self._sweep_once.stop()
        await self._client.close()
        await self._api.close()

    # ---- one job --------------------------------------------------------------------------------------------------

    async def _start(self, name: str, spec: SandboxSpec) -> SlotServer:
        settings, token = self.settings, token_urlsafe(32)
        try:
            async with asyncio.timeout(settings.start_seconds):
                body = {"Job": build_job(settings, spec, name, token)}
                # Nomad goes on when the driver disconnects, so the driver waits for its reply even when cancelled.
                submitted = await run_shielded(self._api.request("POST", "/v1/jobs", _Submitted, body=body))
                address = await self._wait_for_address(name, submitted.evaluation)
        except TimeoutError:
            raise SandboxError(f"Nomad did not run job {name} within {settings.start_seconds:g} s") from None
        link = HttpLink(self._client, f"http://{address}", token)
        reply = self._wait_for_slotd(link, name)
        alone = spec.image is not None
        info = await finish_handshake(
            link,
            reply,
            slots=settings.slots,
            trusted=settings.trusted,
            container=spec.network,
            image=alone,
        )
        bare = settings.driver == "raw_exec"
        return SlotServer(
            link,
            info,
            end=lambda: self._purge(name),
            env=settings.env if bare else {},
            mounts=settings.mounts if bare else None,
            container_limits=("memory", "processes", "disk") if alone else (),
            image_mounts=[target for _, target in _list_mounts(settings, spec)] if alone else None,
        )

    async def _wait_for_slotd(self, link: HttpLink, name: str) -> Frame:
        """Wait until slotd replies, or Nomad reports that its task has ended."""
        settings = self.settings
        starting = asyncio.create_task(link.start(seconds=settings.start_seconds, lapse=settings.lapse_seconds))
        watching = asyncio.create_task(self._watch(name))
        try:
            await asyncio.wait((starting, watching), return_when=asyncio.FIRST_COMPLETED)
            return starting.result() if starting.done() else watching.result()
        finally:
            starting.cancel()
            watching.cancel()
            await run_shielded(_wait_until_ended(starting, watching))

    async def _watch(self, name: str) -> NoReturn:
        """Wait until the job ends, which is an error."""
        index = 0
        while True:
            path = f"/v1/job/{quote(name, safe='')}/allocations"
            stubs, index = await self._api.wait_for_change(path, list[_Allocation], index)
            _raise_if_ended(name, stubs)

    async def _wait_for_address(self, name: str, evaluation: str) -> str:
        """Wait until the job runs. Returns the address that its slotd listens on."""
        index = 0
        while True:
            path = f"/v1/job/{quote(name, safe='')}/allocations"
            stubs, index = await self._api.wait_for_change(path, list[_Allocation], index)
            _raise_if_ended(name, stubs)
            for stub in stubs:
                if stub.client_status == "running":
                    return _find_address(await self._api.request("GET", f"/v1/allocation/{stub.id}", _Allocation))
            if not stubs and evaluation:
                await self._check_placement(evaluation)

    async def _check_placement(self, evaluation: str) -> None:
        found = await self._api.request("GET", f"/v1/evaluation/{evaluation}", _Evaluation)
        for failed in (found.failed or {}).values():
            why = [*(failed.dimension_exhausted or {}), *(failed.constraint_filtered or {})]
            raise SandboxError(f"Nomad has no room for a job: {', '.join(why) or 'no node fits'}")

    async def _purge(self, name: str) -> None:
        with suppress(NomadError):  # what is left is removed by the next driver
            await self._api.request("DELETE", f"/v1/job/{quote(name, safe='')}", _Submitted, {"purge": "true"})

    async def list_resources(self) -> list[OwnedResource]:
        prefix = f"{self.settings.job_prefix}-"
        jobs = await self._api.request("GET", "/v1/jobs", list[_Job], {"prefix": prefix})
        return [OwnedResource("nomad", "job", job.id, job.id.removeprefix(prefix).rpartition("-")[0]) for job in jobs]

    async def remove_resource(self, resource: OwnedResource) -> None:
        await self._purge(resource.name)

    async def _sweep(self) -> None:
        """Purge the jobs that dead drivers of this host have left; with `purge_on_start`, the jobs of all drivers."""
        for resource in await self.list_resources():
            if self.settings.purge_on_start or resource.orphaned:
                await self.remove_resource(resource)


# ---- Nomad's API --------------------------------------------------------------------------------------------------


class _Job(Struct):
    id: str = field(name="ID")


class _Submitted(Struct):
    evaluation: str = field(name="EvalID", default="")


class _NoRoom(Struct, rename="pascal"):
    dimension_exhausted: dict[str, Any] | None = None
    constraint_filtered: dict[str, Any] | None = None


class _Evaluation(Struct):
    failed: dict[str, _NoRoom] | None = field(name="FailedTGAllocs", default=None)


class _Event(Struct, rename="pascal"):
    type: str = ""
    display_message: str = ""


class _TaskState(Struct, rename="pascal"):
    events: list[_Event] | None = None


class _PortGiven(Struct, rename="pascal"):
    label: str
    value: int
    host: str = field(name="HostIP")


class _Shared(Struct, rename="pascal"):
    ports: list[_PortGiven] | None = None


class _Allocated(Struct, rename="pascal"):
    shared: _Shared


class _Allocation(Struct, rename="pascal"):
    id: str = field(name="ID")
    client_status: str
    task_states: dict[str, _TaskState] | None = None
    allocated_resources: _Allocated | None = None


class _NomadApi:
    """Nomad's HTTP API. Requests are repeated when Nomad fails: all of them may safely be sent twice."""

    def __init__(self, settings: NomadSettings, token: str) -> None:
        self._settings = settings
        self._headers = (("X-Nomad-Token", token),) if token else ()
        self._client = Client()

    async def request(
        self, method: str, path: str, kind: type[T], query: dict[str, str] | None = None, body: object = None
    ) -> T:
        reply, _ = await self._send(method, path, kind, query or {}, body, self._settings.api_seconds)
        return reply

    async def wait_for_change(self, path: str, kind: type[T], index: int) -> tuple[T, int]:
        """A blocking query. Returns when something has changed since `index`, with the reply and the next index."""
        query = {"index": str(index), "wait": f"{_WAIT_SECONDS}s"}
        return await self._send("GET", path, kind, query, None, self._settings.api_seconds + _WAIT_SECONDS)

    async def close(self) -> None:
        await self._client.close()

    async def _send(
        self, method: str, path: str, kind: type[T], query: dict[str, str], body: object, seconds: float
    ) -> tuple[T, int]:
        for name in ("region", "namespace"):
            if value := getattr(self._settings, name):
                query = {**query, name: value}
        url = self._settings.address.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        data = b"" if body is None else msgspec.json.encode(body)
        limits = Timeouts(connect=10.0, silence=seconds, total=seconds)
        try:
            response = await send_with_retries(
                lambda: self._client.request(method, url, self._headers, data, timeouts=limits),
                _PAUSES,
                lambda status: status >= 500,
            )
        except HttpError as error:
            raise NomadError(f"Nomad cannot be reached: {error}") from None
        if response.status >= 300:
            words = response.body[:300].decode(errors="replace").strip()
            raise NomadError(f"Nomad replied with status {response.status}: {words}", status=response.status)
        index = response.get_header("X-Nomad-Index")
        return _decode(response.body, kind), int(index) if index.isdigit() else 0


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise NomadError(f"Nomad's reply is not understood: {error}") from error


def _raise_if_ended(name: str, allocations: list[_Allocation]) -> None:
    for allocation in allocations:
        if allocation.client_status in _ENDED:
            raise SandboxError(f"job {name} {allocation.client_status}: {_describe_events(allocation)}")


async def _wait_until_ended(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


def _describe_events(allocation: _Allocation) -> str:
    """What Nomad reports about a task that failed."""
    states = (allocation.task_states or {}).values()
    words = [event.display_message or event.type for state in states for event in state.events or []]
    return "; ".join(words[-4:]) or "no reason was given"


def _find_address(allocation: _Allocation) -> str:
    given = allocation.allocated_resources
    for port in (given.shared.ports if given else None) or []:
        if port.label == _PORT:
            return f"{f'[{port.host}]' if ':' in port.host else port.host}:{port.value}"
    raise SandboxError("Nomad gave the job no port")


# ---- the job ------------------------------------------------------------------------------------------------------


def build_job(settings: NomadSettings, spec: SandboxSpec, name: str, token: str) -> dict[str, Any]:
    """The job that runs one slotd."""
    task = {
        "Name": _TASK,
        "Driver": "docker" if settings.driver == "docker" else "raw_exec",
        "Config": _build_config(settings, spec),
        "Env": settings.env,
        **({"User": "root"} if spec.image is not None else {}),
        "Resources": _build_resources(settings, spec),
        "Templates": _build_templates(settings, spec, token),
        "KillTimeout": 10_000_000_000,
        "KillSignal": "SIGTERM",
    }
    group = {
        "Name": "slots",
        "Count": 1,
        "RestartPolicy": {"Attempts": 0, "Mode": "fail"},
        "ReschedulePolicy": {"Attempts": 0, "Unlimited": False},
        "Networks": [{"DynamicPorts": [{"Label": _PORT}]}],
        "Tasks": [task],
    }
    return {
        "ID": name,
        "Name": name,
        "Type": "batch",
        "Datacenters": list(settings.datacenters),
        "TaskGroups": [group],
        **({"Namespace": settings.namespace} if settings.namespace else {}),
        **({"Region": settings.region} if settings.region else {}),
    }


def _build_config(settings: NomadSettings, spec: SandboxSpec) -> dict[str, Any]:
    tasks, hidden, port = "${NOMAD_TASK_DIR}", "${NOMAD_SECRETS_DIR}", f"${{NOMAD_PORT_{_PORT}}}"
    if settings.driver == "raw_exec":
        command, *arguments = build_file_command(settings.python, f"{tasks}/slotd", f"{hidden}/slotd.json", port)
        return {"command": command, "args": arguments}
    if settings.driver == "singularity":
        binds = [f"{tasks}:/local:ro", f"{hidden}:/secrets:ro", *_list_binds(settings, spec)]
        options = ["--containall", "--no-home", "--writable-tmpfs", "--cleanenv"]
        options += [part for bind in binds for part in ("--bind", bind)]
        return {
            "command": "apptainer",
            "args": [
                "exec",
                *options,
                settings.image,
                *build_file_command(settings.python, "/local/slotd", "/secrets/slotd.json", port),
            ],
        }
    command, *arguments = build_file_command(settings.python, f"{tasks}/slotd", f"{hidden}/slotd.json", port)
    config: dict[str, Any] = {
        "image": settings.image if spec.image is None else spec.image.name,
        "entrypoint": [],
        "command": command,
        "args": arguments,
        "ports": [_PORT],
        "pids_limit": spec.processes * (settings.slots if spec.image is None else 1) + 32,
        "volumes": _list_binds(settings, spec),
    }
    if settings.privileged:
        return {**config, "privileged": True}
    more = () if spec.image is None else _IMAGE_CAPABILITIES
    config |= {"cap_drop": ["all"], "cap_add": [*_USER_CAPABILITIES, *_NAMESPACE_CAPABILITIES, *more]}
    return {**config, "security_opt": ["no-new-privileges", "apparmor=unconfined"]}


def _list_binds(settings: NomadSettings, spec: SandboxSpec) -> list[str]:
    """Folders of the node that the container may read."""
    return [f"{source}:{target}:ro" for source, target in _list_mounts(settings, spec)]


def _list_mounts(settings: NomadSettings, spec: SandboxSpec) -> list[tuple[str, str]]:
    return [*((mount.source, mount.target) for mount in settings.mounts), *spec.caches]


def _build_resources(settings: NomadSettings, spec: SandboxSpec) -> dict[str, Any]:
    memory = settings.memory_mb or compute_container_mb(spec, settings.slots)
    gpus = {"Devices": [{"Name": "nvidia/gpu", "Count": settings.gpus}]} if settings.gpus else {}
    return {"CPU": settings.cpu_mhz, "MemoryMB": memory, **gpus}


def _build_templates(settings: NomadSettings, spec: SandboxSpec, token: str) -> list[dict[str, Any]]:
    view = "root" if spec.image is not None else "system" if settings.driver == "raw_exec" else "image"
    config = {
        "token": token,
        "host": "0.0.0.0",
        "view": view,
        "lapse": settings.lapse_seconds,
        "exclusive": settings.slots == 1 and settings.driver != "raw_exec",
    }
    common = {"LeftDelim": "<%ludus", "RightDelim": "ludus%>", "ChangeMode": "noop"}
    program = {"EmbeddedTmpl": base64.b64encode(build_bundle()).decode(), "DestPath": "local/slotd", "Perms": "0644"}
    text = msgspec.json.encode(config).decode()
    secret = {"EmbeddedTmpl": text, "DestPath": "secrets/slotd.json", "Perms": "0600"}
    return [{**program, **common}, {**secret, **common}]
