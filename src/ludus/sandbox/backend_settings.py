"""The settings of the backends that come with Ludus.

They are beside the backends and not within them, so that reading settings imports no backend.
"""

from typing import ClassVar, Literal

from msgspec import field

from ludus.sandbox.backend import BackendSettings, RemoteSettings
from ludus.types import Count, Positive, Whole


class DockerSettings(RemoteSettings, frozen=True, kw_only=True, tag="docker"):
    """Containers of a Docker engine."""

    needed: ClassVar[tuple[str, ...]] = ("image",)

    image: str = ""
    """The image; it needs bash and Python. Required, unless the tasks have images of their own."""
    socket: str = "/var/run/docker.sock"
    """The engine's unix socket."""
    cpus: float = 0.0
    """Processors of a container; 0 for no limit."""
    memory_mb: Whole = 0
    """Memory of a container; 0: what its slots may use by their spec, and some for slotd."""
    gpus: int = 0
    """GPUs of a container; -1 for all."""
    network: str = "bridge"
    """The engine's network for slots that may use one, and for the images of tasks when they are built: `bridge`,
    `host`, or one that you made."""
    root: bool = False
    """Run commands as the container's root, for images that expect it. A slot can then break itself."""
    read_only: bool = False
    """Make the image's own files read-only for slotd as well. A command's input is then limited to 32 MB."""
    runtime: str = ""
    """Another runtime of the engine, such as `runsc`."""
    pull: bool = True
    """Fetch an image that is not there."""
    pull_seconds: Positive = 1800.0
    """Time to fetch it."""
    api_seconds: Positive = 60.0
    """Time for the engine to reply."""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    """Labels for the containers."""


class PodmanSettings(DockerSettings, frozen=True, kw_only=True, tag="podman"):
    """Containers of Podman's service (`podman system service`), which has the same API as Docker."""

    socket: str = "/run/podman/podman.sock"
    """The service's unix socket."""


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


class ApptainerSettings(RemoteSettings, frozen=True, kw_only=True, tag="apptainer"):
    """Containers of Apptainer or Singularity: no daemon, no root."""

    image: str
    """A SIF file, a folder, or an address such as docker://python:3.11."""
    command: str = "apptainer"
    """The program; `singularity` for older installations."""
    slots: Count = 1
    """Slots per container."""
    cpus: float = 0.0
    """Processors of a container; 0 for no limit. Needs control groups."""
    limit_memory: bool = False
    """Limit the container's memory and processes by control groups (apptainer's --memory, --pids-limit)."""
    gpus: bool = False
    """Make NVIDIA GPUs visible (--nv)."""
    fakeroot: bool = False
    """Root inside the container (--fakeroot), for images that expect it."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `apptainer exec`."""
    trusted: bool = False
    """Accept slots without isolation from each other and from slotd."""


class NomadSettings(RemoteSettings, frozen=True, kw_only=True, tag="nomad"):
    """Containers (or bare processes) that a Nomad cluster runs."""

    address: str = "http://localhost:4646"
    """Nomad's address."""
    token_var: str = ""
    """The NAME of the environment variable that holds Nomad's token; empty for none."""
    job_prefix: str = "ludus"
    """How the names of our jobs begin."""
    datacenters: tuple[str, ...] = ("dc1",)
    """Where jobs may run."""
    region: str = ""
    """Empty: Nomad's own."""
    namespace: str = ""
    """Empty: Nomad's own."""
    driver: Literal["docker", "singularity", "raw_exec"] = "docker"
    """How Nomad runs slotd. `singularity` is raw_exec of `apptainer exec`."""
    image: str = ""
    """The image, for docker and singularity. Tasks with images of their own, for docker, name theirs."""
    slots: Count = 10
    """Slots per container."""
    cpu_mhz: Count = 500
    """Processor share of a container."""
    memory_mb: Whole = 0
    """Memory of a container; 0: what its slots may use by their spec, and some for slotd."""
    gpus: Whole = 0
    """NVIDIA GPUs of a container."""
    privileged: bool = False
    """Let slotd make namespaces: docker's privileged mode. Nomad's client must allow it."""
    purge_on_start: bool = False
    """Remove jobs with our prefix that other drivers have left, before the first job is started."""
    api_seconds: Positive = 30.0
    """Time for Nomad to reply."""
    trusted: bool = False
    """Accept slots without isolation, where nothing better is allowed."""


class ModalSettings(RemoteSettings, frozen=True, kw_only=True, tag="modal"):
    """Sandboxes of Modal."""

    app: str = "ludus"
    """The app that sandboxes belong to; made when it does not exist."""
    image: str = "python:3.11"
    """An image of a registry."""
    slots: Count = 1
    """Slots per sandbox; more than one needs namespaces inside it."""
    cpus: Positive = 1.0
    """Processors of a sandbox."""
    memory_mb: Whole = 0
    """Memory of a sandbox; 0: what its slots may use by their spec, and some for slotd."""
    gpu: str = ""
    """Kind and number of GPUs, such as `T4` or `A100:2`; empty for none."""
    lifetime_seconds: Count = 3600
    """Modal ends a sandbox after this time, whatever it does."""
    secrets: tuple[str, ...] = ()
    """Names of Modal secrets whose variables the container gets."""
    region: str = ""
    """Where to run; empty: anywhere."""
    token_id_var: str = ""
    """The NAME of the environment variable with Modal's token id; empty: what the modal client finds."""
    token_secret_var: str = ""
    """The NAME of the environment variable with Modal's token secret."""
    trusted: bool = False
    """Accept slots that are not isolated from each other, where Modal allows no better."""


class LocalSettings(BackendSettings, frozen=True, tag="local"):
    """Slots of this machine that isolate nothing: for trusted code only."""


class BwrapSettings(BackendSettings, frozen=True, tag="bwrap"):
    """Slots of this machine, isolated by bubblewrap."""
