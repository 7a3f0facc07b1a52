"""Checks what works on this machine, and says how to fix the rest.

A finding is ok, warn (something optional is missing), off (a backend that the settings do not use is missing) or fail
(something required is missing), with a remedy. Required are the Python version, the sandboxes of the settings, and the
model server of the settings, if there is one. The checks change nothing and cost nothing: each server gets one request
for its list of models.
"""

import importlib.util
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ludus import __version__
from ludus.config import Config
from ludus.config.build_models import build_endpoints
from ludus.config.build_sandboxes import list_sections, make_profiles
from ludus.config.secrets import find_weights_folder, read_secret
from ludus.errors import ConfigError, describe_error, suggest
from ludus.http_client import Client, HttpError, Response, Timeouts
from ludus.models.server import ServerSettings
from ludus.models.settings import AnthropicSettings, AzureSettings
from ludus.models.weights import NAMED, Weights
from ludus.sandbox.limits import LimitStatus

PYTHON = (3, 11)
LITTLE_DISK = 1_000_000_000
PROBE = Timeouts(connect=5.0, silence=5.0, total=10.0)

EXTRAS = {
    "mcp": ("mcp", "tools from MCP servers"),
    "hub": ("datasets", "data sets and weights from the Hugging Face hub"),
    "tokens": ("tokenizers", "token mode: exact ids, for RL"),
}


class HostFinding(Struct, frozen=True):
    """The result of one check."""

    what: str
    status: Literal["ok", "warn", "off", "fail"]
    message: str
    remedy: str = ""


async def check_host(config: Config, folder: Path) -> list[HostFinding]:
    """Run all checks. `folder` is where runs are written."""
    findings = [
        check_python(sys.version_info[:2]),
        HostFinding("ludus", "ok", __version__),
        *await _try_sandboxes(config),
        *_try_check("embedded model", check_embedded),
        *_try_check("extras", check_extras),
        *_try_check("disk", lambda: [check_disk(shutil.disk_usage(folder).free)]),
    ]
    if isinstance(config.model, ServerSettings):
        for address in config.model.addresses or [""]:
            one = msgspec.structs.replace(config.model, base_url=address, servers=())
            findings.append(await check_server(one))
    return findings


async def _try_sandboxes(config: Config) -> list[HostFinding]:
    try:
        return await check_sandboxes(config)
    except Exception as error:  # as in `_try_check`; without sandboxes nothing runs
        return [HostFinding("sandbox", "fail", f"it cannot be checked here: {describe_error(error)}")]


def _try_check(what: str, check: Callable[[], Iterable[HostFinding]]) -> list[HostFinding]:
    """The findings of a check. One that raises is a finding, too: odd machines are what the doctor is for."""
    try:
        return list(check())
    except Exception as error:
        return [HostFinding(what, "warn", f"it cannot be checked here: {describe_error(error)}")]


def check_python(version: tuple[int, ...]) -> HostFinding:
    shown = ".".join(map(str, version))
    if version < PYTHON:
        return HostFinding("python", "fail", f"{shown} is too old", "install Python 3.11 or newer")
    return HostFinding("python", "ok", f"{shown} on {platform.system()} {platform.machine()}")


async def check_sandboxes(config: Config) -> list[HostFinding]:
    """Check every backend: whether it can make slots, and how it enforces their limits."""
    from ludus.sandbox.survey import format_title, survey

    try:
        profiles = make_profiles(config.sandbox)
    except ConfigError as error:
        return [HostFinding("sandbox", "fail", str(error))]
    wanted = {format_title(name, profile) for name, profile in profiles.items()}
    found: list[HostFinding] = []
    for each in await survey(profiles, read_secret, list_sections(config.sandbox)):
        status = _STATUS[each.state] if each.backend in wanted or each.state != "broken" else "warn"
        found.append(HostFinding(f"sandbox {each.backend}", status, each.message, each.remedy))
        if each.backend in wanted:
            found += [check_limit(limit) for limit in each.limits]
    return found


_STATUS: Mapping[str, Literal["ok", "off", "fail"]] = {"works": "ok", "ready": "ok", "off": "off", "broken": "fail"}


def check_limit(limit: LimitStatus) -> HostFinding:
    remedy = "" if limit.strong else "run where this user can make control groups, or use another backend"
    return HostFinding(f"sandbox {limit.limit}", "ok" if limit.strong else "warn", f"enforced by {limit.by}", remedy)


def check_embedded() -> Iterator[HostFinding]:
    """Check the engine and the weights of the embedded model."""
    if not importlib.util.find_spec("xllamacpp"):
        yield HostFinding("embedded model", "warn", "its engine is not installed", "pip install 'ludus-train[local]'")
        return
    try:
        folder = find_weights_folder()
        states = [_describe_weights(name, folder / weights.file, weights) for name, weights in NAMED.items()]
    except RuntimeError:
        message = "its engine is installed, but this user has no home folder for its weights"
        yield HostFinding("embedded model", "warn", message, "set HOME or XDG_CACHE_HOME to a folder")
        return
    except OSError as error:
        message = f"its engine is installed, but this user may not look for its weights: {error}"
        yield HostFinding("embedded model", "warn", message, "set XDG_CACHE_HOME to a folder of this user")
        return
    yield HostFinding("embedded model", "ok", f"its engine is installed; {'; '.join(states)}")


def _describe_weights(name: str, kept: Path, weights: Weights) -> str:
    return f"{name} {'is here' if kept.is_file() else f'is fetched on first use ({weights.size // 10**6} MB)'}"


def check_extras() -> Iterator[HostFinding]:
    for extra, (module, purpose) in EXTRAS.items():
        if importlib.util.find_spec(module):
            yield HostFinding(f"extra {extra}", "ok", purpose)
        else:
            yield HostFinding(
                f"extra {extra}", "warn", f"not installed: no {purpose}", f"pip install 'ludus-train[{extra}]'"
            )


def check_disk(free: int) -> HostFinding:
    shown = f"{free / 1e9:.1f} GB free"
    if free < LITTLE_DISK:
        return HostFinding("disk", "warn", shown, "free some space, or write runs elsewhere with --out")
    return HostFinding("disk", "ok", shown)


# ---- the model server ---------------------------------------------------------------------------------------------


async def check_server(model: ServerSettings) -> HostFinding:
    """Check that the server answers, accepts the key and has the model."""
    try:
        endpoint = build_endpoints(msgspec.structs.replace(model, name=model.name or "any"))[0]
    except ConfigError as error:
        return HostFinding("model server", "fail", str(error))
    url, headers = make_models_request(model, endpoint.base_url, endpoint.api_key)
    async with Client(timeouts=PROBE, proxy=endpoint.proxy) as client:
        try:
            response = await client.request("GET", url, tuple({**headers, **model.headers, **endpoint.headers}.items()))
        except (HttpError, ValueError) as error:
            return HostFinding("model server", "fail", str(error), "is it running, and is model.base_url right?")
    return judge_models(response, url.partition("?")[0], model)


def make_models_request(model: ServerSettings, base_url: str, key: str) -> tuple[str, Mapping[str, str]]:
    """The address and the headers of a request for the list of models."""
    base = base_url.rstrip("/")
    match model:
        case AnthropicSettings():
            return f"{base}/v1/models", {"x-api-key": key, "anthropic-version": model.version}
        case AzureSettings():
            return f"{base}/openai/models?api-version={model.api_version}", {"api-key": key}
        case _:
            return f"{base}/models", {"Authorization": f"Bearer {key}"} if key else {}


class _Model(Struct):
    id: str = ""


class _Models(Struct):
    data: list[_Model]


def judge_models(response: Response, url: str, model: ServerSettings) -> HostFinding:
    """What the response to a request for the list of models means."""
    if response.status in (401, 403):
        key = f"in {model.api_key_var}" if model.api_key_var else "none was sent"
        return HostFinding(
            "model server", "fail", f"{url}: status {response.status}: the server refuses the key ({key})"
        )
    if response.status != 200:
        message = f"{url}: the server answers, but with status {response.status} to a request for its models"
        return HostFinding("model server", "warn", message, "check model.base_url: it usually ends in /v1")
    try:
        names = [each.id for each in msgspec.json.decode(response.body, type=_Models).data]
    except msgspec.DecodeError:
        message = f"{url}: the server answers, but not with a list of models"
        return HostFinding("model server", "warn", message, "check model.base_url: it usually ends in /v1")
    if names and model.name and model.name not in names and not isinstance(model, AzureSettings):
        message = f"{url}: the server answers, but does not list '{model.name}'"
        return HostFinding("model server", "warn", message, suggest(model.name, names[:20]))
    return HostFinding(
        "model server", "ok", f"{url}: the server answers{' and lists the model' if model.name in names else ''}"
    )


# ---- text ---------------------------------------------------------------------------------------------------------


def is_healthy(findings: list[HostFinding]) -> bool:
    return all(finding.status != "fail" for finding in findings)


def format_findings(findings: list[HostFinding]) -> str:
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.status:<5} {finding.what}: {finding.message}")
        if finding.remedy:
            lines.append(f"      → {finding.remedy}")
    return "\n".join(lines)
