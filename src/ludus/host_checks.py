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
from ludus.config.tree import AnthropicConfig, AzureConfig, ServerConfig
from ludus.config.secrets import read_secret, weights_folder
from ludus.errors import ConfigError, suggest
from ludus.http_client import Client, HttpError, Response, Timeouts
from ludus.models.weights import SMOLLM2
from ludus.sandbox.local.limits import Held

PYTHON = (3, 11)
LITTLE_DISK = 1_000_000_000
PROBE = Timeouts(connect=5.0, silence=5.0, total=10.0)

EXTRAS = {
    "mcp": ("mcp", "tools from MCP servers"),
    "hub": ("datasets", "data sets and weights from the Hugging Face hub"),
    "tokens": ("tokenizers", "token mode: exact ids, for RL"),
}


class Finding(Struct, frozen=True):
    what: str
    status: Literal["ok", "warn", "off", "fail"]
    message: str
    remedy: str = ""


async def examine(config: Config, folder: Path) -> list[Finding]:
    """Look at everything. `folder` is where runs are written."""
    findings = [
        about_python(sys.version_info[:2]),
        Finding("ludus", "ok", __version__),
        *await about_sandboxes(config),
        *about_embedded(),
        *about_extras(),
        about_disk(shutil.disk_usage(folder).free),
    ]
    if isinstance(config.model, ServerConfig):
        for address in [url for url in (config.model.base_url, *config.model.servers) if url] or [""]:
            one = msgspec.structs.replace(config.model, base_url=address, servers=())
            findings.append(await about_server(one))
    return findings


def about_python(version: tuple[int, ...]) -> Finding:
    shown = ".".join(map(str, version))
    if version < PYTHON:
        return Finding("python", "fail", f"{shown} is too old", "install Python 3.11 or newer")
    return Finding("python", "ok", f"{shown} on {platform.system()} {platform.machine()}")


async def about_sandboxes(config: Config) -> list[Finding]:
    """Every backend: whether slots can be made, and which of their limits hold."""
    from ludus.sandbox.survey import survey, title

    try:
        profiles = sandbox_profiles(config.sandbox)
    except ConfigError as error:
        return [Finding("sandbox", "fail", str(error))]
    asked = {title(name, profile) for name, profile in profiles.items()}
    found: list[Finding] = []
    for each in await survey(profiles, read_secret):
        status = _STATUS[each.state] if each.backend in asked or each.state != "broken" else "warn"
        found.append(Finding(f"sandbox {each.backend}", status, each.message, each.remedy))
        if each.backend in asked:
            found += [about_limit(held) for held in each.limits]
    return found


_STATUS: Mapping[str, Literal["ok", "off", "fail"]] = {"works": "ok", "ready": "ok", "off": "off", "broken": "fail"}


def about_limit(held: Held) -> Finding:
    remedy = "" if held.strong else "run where this user may make control groups, or use another backend"
    return Finding(f"sandbox {held.limit}", "ok" if held.strong else "warn", f"held by {held.by}", remedy)


def about_embedded() -> Iterator[Finding]:
    """The model that needs no account: its engine and its weights."""
    if not importlib.util.find_spec("xllamacpp"):
        yield Finding("embedded model", "warn", "its engine is not installed", "pip install 'ludus[local]'")
        return
    kept = weights_folder() / SMOLLM2.file
    state = "its weights are here" if kept.is_file() else "its weights are fetched on first use (98 MB)"
    yield Finding("embedded model", "ok", f"its engine is installed, {state}")


def about_extras() -> Iterator[Finding]:
    for extra, (module, purpose) in EXTRAS.items():
        if importlib.util.find_spec(module):
            yield Finding(f"extra {extra}", "ok", purpose)
        else:
            yield Finding(f"extra {extra}", "warn", f"not installed: no {purpose}", f"pip install 'ludus[{extra}]'")


def about_disk(free: int) -> Finding:
    shown = f"{free / 1e9:.1f} GB free"
    if free < LITTLE_DISK:
        return Finding("disk", "warn", shown, "free some space, or write runs elsewhere with --out")
    return Finding("disk", "ok", shown)


# ---- the model server ---------------------------------------------------------------------------------------------


async def about_server(model: ServerConfig) -> Finding:
    """Whether the server answers, takes the key and knows the model."""
    try:
        settings = server_settings(msgspec.structs.replace(model, name=model.name or "any"))[0]
    except ConfigError as error:
        return Finding("model server", "fail", str(error))
    url, headers = models_request(model, settings.base_url, settings.api_key)
    async with Client(timeouts=PROBE, proxy=settings.proxy) as client:
        try:
            response = await client.request("GET", url, tuple({**headers, **settings.headers}.items()))
        except (HttpError, ValueError) as error:
            return Finding("model server", "fail", str(error), "is it running, and is model.base_url right?")
    return read_models(response, url.partition("?")[0], model)


def models_request(model: ServerConfig, base_url: str, key: str) -> tuple[str, Mapping[str, str]]:
    """Where a server lists its models, and the headers to ask with."""
    base = base_url.rstrip("/")
    match model:
        case AnthropicConfig():
            return f"{base}/v1/models", {"x-api-key": key, "anthropic-version": model.version}
        case AzureConfig():
            return f"{base}/openai/models?api-version={model.api_version}", {"api-key": key}
        case _:
            return f"{base}/models", {"Authorization": f"Bearer {key}"} if key else {}


class _Model(Struct):
    id: str = ""


class _Models(Struct):
    data: list[_Model]


def read_models(response: Response, url: str, model: ServerConfig) -> Finding:
    """What the server's answer means."""
    if response.status in (401, 403):
        key = f"in {model.api_key_var}" if model.api_key_var else "none was sent"
        return Finding("model server", "fail", f"{url}: status {response.status}: it refuses the key ({key})")
    if response.status != 200:
        message = f"{url}: it answers, but with status {response.status} to a request for its models"
        return Finding("model server", "warn", message, "check model.base_url, which most often ends in /v1")
    try:
        names = [each.id for each in msgspec.json.decode(response.body, type=_Models).data]
    except msgspec.DecodeError:
        message = f"{url}: it answers, but not with a list of models"
        return Finding("model server", "warn", message, "check model.base_url, which most often ends in /v1")
    if names and model.name and model.name not in names and not isinstance(model, AzureConfig):
        message = f"{url}: it answers, but does not list '{model.name}'"
        return Finding("model server", "warn", message, suggest(model.name, names[:20]))
    return Finding("model server", "ok", f"{url}: it answers{' and lists the model' if model.name in names else ''}")


# ---- for people ---------------------------------------------------------------------------------------------------


def healthy(findings: list[Finding]) -> bool:
    return all(finding.status != "fail" for finding in findings)


def as_text(findings: list[Finding]) -> str:
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{finding.status:<5} {finding.what}: {finding.message}")
        if finding.remedy:
            lines.append(f"      → {finding.remedy}")
    return "\n".join(lines)
