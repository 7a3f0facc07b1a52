"""What works on this machine, and what to do about the rest.

Each finding is a line: ok, warn (something optional is missing), off (a backend that nobody asked for is not here) or
fail (something essential is missing), with the remedy. Essential are the Python version, and whatever the user asked
for: the sandboxes of the settings, and a model server if one is configured. Nothing is changed and nothing is paid for:
each server is asked for its list of models, once.
"""

import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from ludus import __version__
from ludus.config import Config
from ludus.config.build_models import server_settings
from ludus.config.build_sandboxes import sandbox_profiles
from ludus.config.secrets import read_secret, weights_folder
from ludus.errors import ConfigError, suggest
from ludus.http_client import Client, HttpError, Response, Timeouts
from ludus.models.anthropic import AnthropicSettings
from ludus.models.openai import AzureSettings
from ludus.models.server import ServerSettings
from ludus.models.weights import SMOLLM2
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
    what: str
    status: Literal["ok", "warn", "off", "fail"]
    message: str
    remedy: str = ""


async def check_host(config: Config, folder: Path) -> list[HostFinding]:
    """Look at everything. `folder` is where runs are written."""
    findings = [
        check_python(sys.version_info[:2]),
        HostFinding("ludus", "ok", __version__),
        *await check_sandboxes(config),
        *check_embedded(),
        *check_extras(),
        check_disk(shutil.disk_usage(folder).free),
    ]
    if isinstance(config.model, ServerSettings):
        for address in [url for url in (config.model.base_url, *config.model.servers) if url] or [""]:
            one = msgspec.structs.replace(config.model, base_url=address, servers=())
            findings.append(await check_server(one))
    return findings


def check_python(version: tuple[int, ...]) -> HostFinding:
    shown = ".".join(map(str, version))
    if version < PYTHON:
        return HostFinding("python", "fail", f"{shown} is too old", "install Python 3.11 or newer")
    return HostFinding("python", "ok", f"{shown} on {platform.system()} {platform.machine()}")


async def check_sandboxes(config: Config) -> list[HostFinding]:
    """Every backend: whether slots can be made, and which of their limits hold."""
    from ludus.sandbox.survey import format_title, survey

    try:
        profiles = sandbox_profiles(config.sandbox)
    except ConfigError as error:
        return [HostFinding("sandbox", "fail", str(error))]
    asked = {format_title(name, profile) for name, profile in profiles.items()}
    found: list[HostFinding] = []
    for each in await survey(profiles, read_secret):
        status = _STATUS[each.state] if each.backend in asked or each.state != "broken" else "warn"
        found.append(HostFinding(f"sandbox {each.backend}", status, each.message, each.remedy))
        if each.backend in asked:
            found += [check_limit(held) for held in each.limits]
    return found


_STATUS: Mapping[str, Literal["ok", "off", "fail"]] = {"works": "ok", "ready": "ok", "off": "off", "broken": "fail"}


def check_limit(held: LimitStatus) -> HostFinding:
    remedy = "" if held.strong else "run where this user may make control groups, or use another backend"
    return HostFinding(f"sandbox {held.limit}", "ok" if held.strong else "warn", f"held by {held.by}", remedy)


def check_embedded() -> Iterator[HostFinding]:
    """The model that needs no account: its engine and its weights."""
    if not importlib.util.find_spec("xllamacpp"):
        yield HostFinding("embedded model", "warn", "its engine is not installed", "pip install 'ludus[local]'")
        return
    kept = weights_folder() / SMOLLM2.file
    state = "its weights are here" if kept.is_file() else "its weights are fetched on first use (98 MB)"
    yield HostFinding("embedded model", "ok", f"its engine is installed, {state}")


def check_extras() -> Iterator[HostFinding]:
    for extra, (module, purpose) in EXTRAS.items():
        if importlib.util.find_spec(module):
            yield HostFinding(f"extra {extra}", "ok", purpose)
        else:
            yield HostFinding(f"extra {extra}", "warn", f"not installed: no {purpose}", f"pip install 'ludus[{extra}]'")


def check_disk(free: int) -> HostFinding:
    shown = f"{free / 1e9:.1f} GB free"
    if free < LITTLE_DISK:
        return HostFinding("disk", "warn", shown, "free some space, or write runs elsewhere with --out")
    return HostFinding("disk", "ok", shown)


# ---- the model server ---------------------------------------------------------------------------------------------


async def check_server(model: ServerSettings) -> HostFinding:
    """Whether the server answers, takes the key and knows the model."""
    try:
        settings = server_settings(msgspec.structs.replace(model, name=model.name or "any"))[0]
    except ConfigError as error:
        return HostFinding("model server", "fail", str(error))
    url, headers = make_models_request(model, settings.base_url, settings.api_key)
    async with Client(timeouts=PROBE, proxy=settings.proxy) as client:
        try:
            response = await client.request("GET", url, tuple({**headers, **settings.headers}.items()))
        except (HttpError, ValueError) as error:
            return HostFinding("model server", "fail", str(error), "is it running, and is model.base_url right?")
    return judge_models(response, url.partition("?")[0], model)


def make_models_request(model: ServerSettings, base_url: str, key: str) -> tuple[str, Mapping[str, str]]:
    """Where a server lists its models, and the headers to ask with."""
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
    """What the server's answer means."""
    if response.status in (401, 403):
        key = f"in {model.api_key_var}" if model.api_key_var else "none was sent"
        return HostFinding("model server", "fail", f"{url}: status {response.status}: it refuses the key ({key})")
    if response.status != 200:
        message = f"{url}: it answers, but with status {response.status} to a request for its models"
        return HostFinding("model server", "warn", message, "check model.base_url, which most often ends in /v1")
    try:
        names = [each.id for each in msgspec.json.decode(response.body, type=_Models).data]
    except msgspec.DecodeError:
        message = f"{url}: it answers, but not with a list of models"
        return HostFinding("model server", "warn", message, "check model.base_url, which most often ends in /v1")
    if names and model.name and model.name not in names and not isinstance(model, AzureSettings):
        message = f"{url}: it answers, but does not list '{model.name}'"
        return HostFinding("model server", "warn", message, suggest(model.name, names[:20]))
    return HostFinding("model server", "ok", f"{url}: it answers{' and lists the model' if model.name in names else ''}")


# ---- for people ---------------------------------------------------------------------------------------------------


def is_healthy(findings: list[HostFinding]) -> bool:
    return all(finding.status != "fail" for finding in findings)


def format_findings(findings: list[HostFinding]) -> str:
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.status:<5} {finding.what}: {finding.message}")
        if finding.remedy:
            lines.append(f"      → {finding.remedy}")
    return "\n".join(lines)
