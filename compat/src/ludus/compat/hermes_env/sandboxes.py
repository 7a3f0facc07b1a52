"""Reads the flat sandbox settings of Hermes environments (`tool_pool_mode`, `nomad_address`, `modal_image` …).

    sandboxes = read_sandboxes({"tool_pool_mode": "nomad", "sandbox_image": "python:3.11", "slots_per_container": 4})
    async with open_pool(sandboxes.profile, sandboxes.pool) as pool: …

Hermes can have several Modal profiles. `read_modal_profiles` reads them from a YAML file, `read_modal_variables` from
environment variables; pass the `profile` of each to `open_pool` under its name. Unknown names are refused with the
nearest known one, and so is a setting that cannot mean the same here.

Differences: slots always see their files at `/workspace`. Jobs are always removed at the end. A pool grows with demand,
up to the maximum, and `min_containers` is the number of slots that are kept warm. The defaults are those of Hermes.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ludus.errors import ConfigError, suggest
from ludus.sandbox.backend import BackendSettings
from ludus.sandbox.backend_settings import BwrapSettings, ModalSettings, NomadSettings
from ludus.sandbox.pool import PoolSettings
from ludus.types import Count, Positive, Whole


class HermesSandboxes(Struct, frozen=True, kw_only=True):
    """The flat settings as settings of Ludus."""

    profile: BackendSettings = BwrapSettings()
    """With `tool_pool_mode: default`: isolated slots of this host."""
    network: bool = True
    require_sandbox: bool = False
    pool: PoolSettings = PoolSettings(acquire_seconds=30.0)
    command_seconds: float = 30.0


class _Flat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names and defaults of Hermes."""

    tool_pool_mode: Literal["default", "nomad", "modal"] = "default"
    allow_network: bool = True
    require_sandbox: bool = False
    purge_job_on_start: bool = False
    purge_job_on_shutdown: bool = True
    acquire_timeout_s: Positive = 30.0
    nomad_address: str = "http://localhost:4646"
    sandbox_job_id: str = "atropos-sandbox"
    sandbox_image: str = "atropos-sandbox:local"
    slots_per_container: Count = 10
    min_containers: Whole = 1
    max_containers: Count = 10
    privileged: bool = False
    driver: Literal["docker", "singularity"] = "docker"
    singularity_image: str | None = None
    modal_app_name: str | None = "atropos-sandbox"
    modal_image: str = "python:3.11"
    modal_gpu: str | None = None
    modal_cpu: Positive = 1.0
    modal_memory: Whole = 2048
    modal_slots_per_sandbox: Count = 10
    modal_min_sandboxes: Whole = 1
    modal_max_sandboxes: Count = 5
    modal_idle_timeout: Whole = 120
    modal_max_lifetime: Count = 3600
    modal_acquire_timeout: Positive = 60.0
    modal_execution_timeout: Positive = 30.0
    modal_secrets: str = ""
    modal_env_vars: str = ""
    modal_workspace_base: str = "/data"


FLAT_NAMES = _Flat.__struct_fields__
"""The names of all flat settings."""


def read_sandboxes(flat: Mapping[str, Any], *, nomad_token_var: str = "") -> HermesSandboxes:
    """Read flat settings. `nomad_token_var` names the variable with Nomad's token (in Hermes it is NOMAD_TOKEN).

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
    common = HermesSandboxes(
        network=given.allow_network,
        require_sandbox=given.require_sandbox,
        pool=PoolSettings(acquire_seconds=given.acquire_timeout_s),
    )
    match given.tool_pool_mode:
        case "nomad":
            return _add_nomad(common, given, nomad_token_var)
        case "modal":
            return _add_modal(common, given)
        case "default":
            return common


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


def _add_nomad(common: HermesSandboxes, given: _Flat, token_var: str) -> HermesSandboxes:
    profile = NomadSettings(
        address=given.nomad_address,
        token_var=token_var,
        job_prefix=given.sandbox_job_id,
        driver=given.driver,
        image=given.singularity_image or "" if given.driver == "singularity" else given.sandbox_image,
        slots=given.slots_per_container,
        privileged=given.privileged,
        purge_on_start=given.purge_job_on_start,
    )
    pool = replace(common.pool, max_slots=profile.slots * given.max_containers, warm=given.min_containers)
    return replace(common, profile=profile, pool=pool)


def _add_modal(common: HermesSandboxes, given: _Flat) -> HermesSandboxes:
    assert given.modal_app_name
    profile = ModalSettings(
        app=given.modal_app_name,
        image=given.modal_image,
        gpu=given.modal_gpu or "",
        cpus=given.modal_cpu,
        memory_mb=given.modal_memory,
        slots=given.modal_slots_per_sandbox,
        idle_seconds=float(given.modal_idle_timeout),
        lifetime_seconds=given.modal_max_lifetime,
        secrets=tuple(name.strip() for name in given.modal_secrets.split(",") if name.strip()),
        env=dict(_parse_variable(pair) for pair in given.modal_env_vars.split(";") if pair.strip()),
    )
    pool = PoolSettings(
        max_slots=profile.slots * given.modal_max_sandboxes,
        warm=given.modal_min_sandboxes,
        acquire_seconds=given.modal_acquire_timeout,
    )
    return replace(common, profile=profile, pool=pool, command_seconds=given.modal_execution_timeout)


# ---- several Modal profiles ---------------------------------------------------------------------------------------

_PROFILE_KEYS = {
    "app_name": "modal_app_name",
    "image": "modal_image",
    "gpu": "modal_gpu",
    "cpu": "modal_cpu",
    "memory": "modal_memory",
    "slots_per_sandbox": "modal_slots_per_sandbox",
    "min_sandboxes": "modal_min_sandboxes",
    "max_sandboxes": "modal_max_sandboxes",
    "idle_timeout": "modal_idle_timeout",
    "max_lifetime": "modal_max_lifetime",
    "acquire_timeout": "modal_acquire_timeout",
    "execution_timeout": "modal_execution_timeout",
    "secrets": "modal_secrets",
    "env_vars": "modal_env_vars",
    "workspace_base": "modal_workspace_base",
}
_PREFIX = "ATROPOS_MODAL_"


def read_modal_profiles(profiles: Mapping[str, Mapping[str, Any]]) -> dict[str, HermesSandboxes]:
    """Read the `profiles:` of a YAML file, by name. There is always a `default`.

    Raises:
        ConfigError: a name is unknown, or a value cannot be used; the message begins with the profile.
    """
    found = {"default": _read_modal_profile("default", {})}
    return found | {name: _read_modal_profile(name, keys) for name, keys in profiles.items()}


def read_modal_variables(variables: Mapping[str, str]) -> dict[str, HermesSandboxes]:
    """Read profiles from environment variables: ATROPOS_MODAL_PROFILES has their names,
    ATROPOS_MODAL_PROFILE_<NAME>_<KEY> sets a key of one profile, and ATROPOS_MODAL_<KEY> of all."""
    names = [name.strip() for name in variables.get(f"{_PREFIX}PROFILES", "").split(",") if name.strip()]
    found: dict[str, dict[str, str]] = {}
    for name in dict.fromkeys(["default", *names]):
        own = f"{_PREFIX}PROFILE_{name.upper()}_"
        found[name] = {}
        for key in _PROFILE_KEYS:
            value = variables.get(own + key.upper(), variables.get(_PREFIX + key.upper()))
            if value is not None:
                found[name][key] = value
    return read_modal_profiles(found)


def _read_modal_profile(name: str, keys: Mapping[str, Any]) -> HermesSandboxes:
    flat: dict[str, Any] = {"tool_pool_mode": "modal"}
    for key, value in keys.items():
        short = key.removesuffix("_s")
        if key == "name":
            continue
        if short not in _PROFILE_KEYS:
            raise ConfigError(f"profile '{name}': '{key}' is unknown; {suggest(key, list(_PROFILE_KEYS))}")
        flat[_PROFILE_KEYS[short]] = _flatten_value(value)
    try:
        return read_sandboxes(flat)
    except ConfigError as error:
        raise ConfigError(f"profile '{name}': {error}") from error


def _flatten_value(value: Any) -> Any:
    """A list or mapping of a YAML file as the text of a flat setting."""
    match value:
        case list() | tuple():
            return ",".join(map(str, cast(list[object], value)))
        case dict():
            return ";".join(f"{key}={text}" for key, text in cast(dict[object, object], value).items())
        case _:
            return value


def _parse_variable(pair: str) -> tuple[str, str]:
    name, equals, value = pair.strip().partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"modal_env_vars: '{pair.strip()}' is not NAME=value; several are separated by ';'")
    return name, value
