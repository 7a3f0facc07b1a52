"""The flat sandbox settings of Hermes environments (`tool_pool_mode`, `nomad_address`, `modal_image` …), as ours.

    sandboxes = read_sandboxes({"tool_pool_mode": "nomad", "sandbox_image": "python:3.11", "slots_per_container": 4})
    async with open_profile(sandboxes.profile, max_slots=sandboxes.max_slots, …) as pool: …

Names that are not among theirs are refused with the nearest one; so is a setting that cannot mean here what it meant
there.
What differs: slots always see their files at `/workspace`; jobs are always removed at the end; a pool grows with the
slots that are asked for, up to the maximum, and `min_containers` is a number of slots kept warm. Defaults are theirs.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ludus.errors import ConfigError, suggest
from ludus.sandbox.settings import ModalSettings, NomadSettings, Profile


class HermesSandboxes(Struct, frozen=True, kw_only=True):
    """What the flat settings say, in our terms."""

    profile: Profile | None = None
    """None: slots of this host, as with `tool_pool_mode: default`."""
    network: bool = True
    require_sandbox: bool = False
    max_slots: int = 64
    warm: int = 0
    acquire_seconds: float = 30.0
    command_seconds: float = 30.0


class _Flat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Their names and defaults."""

    tool_pool_mode: Literal["default", "nomad", "modal"] = "default"
    allow_network: bool = True
    require_sandbox: bool = False
    purge_job_on_start: bool = False
    purge_job_on_shutdown: bool = True
    acquire_timeout_s: float = 30.0
    nomad_address: str = "http://localhost:4646"
    sandbox_job_id: str = "atropos-sandbox"
    sandbox_image: str = "atropos-sandbox:local"
    slots_per_container: int = 10
    min_containers: int = 1
    max_containers: int = 10
    privileged: bool = False
    driver: Literal["docker", "singularity"] = "docker"
    singularity_image: str | None = None
    modal_app_name: str | None = "atropos-sandbox"
    modal_image: str = "python:3.11"
    modal_gpu: str | None = None
    modal_cpu: float = 1.0
    modal_memory: int = 2048
    modal_slots_per_sandbox: int = 10
    modal_min_sandboxes: int = 1
    modal_max_sandboxes: int = 5
    modal_idle_timeout: int = 120
    modal_max_lifetime: int = 3600
    modal_acquire_timeout: float = 60.0
    modal_execution_timeout: float = 30.0
    modal_secrets: str = ""
    modal_env_vars: str = ""
    modal_workspace_base: str = "/data"


def read_sandboxes(flat: Mapping[str, Any], *, nomad_token_var: str = "") -> HermesSandboxes:
    """Take flat settings. `nomad_token_var` names the variable with Nomad's token (theirs is NOMAD_TOKEN).

    Raises:
        ConfigError: a name is unknown, or a value cannot be used.
    """
    for name in flat:
        if name not in _Flat.__struct_fields__:
            raise ConfigError(
                f"'{name}' is not a sandbox setting of Hermes; {suggest(name, list(_Flat.__struct_fields__))}"
            )
    try:
        given = msgspec.convert(dict(flat), _Flat, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"sandbox settings: {error}") from error
    _refuse(given)
    if given.tool_pool_mode == "nomad":
        return _nomad(given, nomad_token_var)
    if given.tool_pool_mode == "modal":
        return _modal(given)
    return HermesSandboxes(network=given.allow_network, require_sandbox=given.require_sandbox)


def _refuse(given: _Flat) -> None:
    if not given.purge_job_on_shutdown:
        raise ConfigError("purge_job_on_shutdown is false: jobs are always removed at the end; leave it out")
    if given.modal_workspace_base != "/data":
        raise ConfigError("modal_workspace_base is set: slots always see their files at /workspace; leave it out")
    if given.driver == "singularity" and given.tool_pool_mode == "nomad" and not given.singularity_image:
        raise ConfigError(
            "driver is 'singularity' but singularity_image is not set: name a SIF file or a docker:// image"
        )
    if given.tool_pool_mode == "modal" and not given.modal_app_name:
        raise ConfigError("modal_app_name is empty: name the Modal app that sandboxes belong to")


def _nomad(given: _Flat, token_var: str) -> HermesSandboxes:
    slots = given.slots_per_container
    profile = NomadSettings(
        address=given.nomad_address,
        token_var=token_var,
        job_prefix=given.sandbox_job_id,
        driver=given.driver,
        image=given.singularity_image or "" if given.driver == "singularity" else given.sandbox_image,
        slots=slots,
        privileged=given.privileged,
        purge_on_start=given.purge_job_on_start,
    )
    return HermesSandboxes(
        profile=profile,
        network=given.allow_network,
        require_sandbox=given.require_sandbox,
        max_slots=slots * given.max_containers,
        warm=given.min_containers,
        acquire_seconds=given.acquire_timeout_s,
    )


def _modal(given: _Flat) -> HermesSandboxes:
    assert given.modal_app_name
    slots = given.modal_slots_per_sandbox
    profile = ModalSettings(
        app=given.modal_app_name,
        image=given.modal_image,
        gpu=given.modal_gpu or "",
        cpus=given.modal_cpu,
        memory_mb=given.modal_memory,
        slots=slots,
        idle_seconds=float(given.modal_idle_timeout),
        lifetime_seconds=given.modal_max_lifetime,
        secrets=tuple(name.strip() for name in given.modal_secrets.split(",") if name.strip()),
        env=tuple(_variable(pair) for pair in given.modal_env_vars.split(";") if pair.strip()),
    )
    return HermesSandboxes(
        profile=profile,
        network=given.allow_network,
        require_sandbox=given.require_sandbox,
        max_slots=slots * given.modal_max_sandboxes,
        warm=given.modal_min_sandboxes,
        acquire_seconds=given.modal_acquire_timeout,
        command_seconds=given.modal_execution_timeout,
    )


def _variable(pair: str) -> tuple[str, str]:
    name, equals, value = pair.strip().partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"modal_env_vars: '{pair.strip()}' is not NAME=value; several are separated by ';'")
    return name, value
