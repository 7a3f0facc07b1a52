"""Where past work goes: which model gets what, and whether that leaves the machine.

Sessions are masked, but a mask does not know every secret. So models, slots and trackers outside of this machine are
refused for past work unless `sleep.remote` allows them. A model class of the user's own may send its requests anywhere:
it counts as remote.
"""

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from ludus.config.build_sandboxes import find_profile
from ludus.config.secrets import find_proxy
from ludus.config.tree import (
    Config,
    ModelSettings,
    NoModelSettings,
    OwnModelSettings,
    SameSettings,
)
from ludus.errors import ConfigError
from ludus.models.server import ServerSettings
from ludus.models.settings import EmbeddedSettings, ScriptedSettings
from ludus.sandbox.backend import BackendSettings
from ludus.sleep.night import ModelUse
from ludus.tools.distributions import PUBLISHED
from ludus.tools.settings import ToolsSettings

HERE, PROCESS = "this machine", "this process"
_TASKS = "the requests of your sessions and the files that belong to them, masked"
_SESSIONS = "requests, answers and objections of your sessions, masked, and what the agent's model replies"
_LOCAL_TOOLS = frozenset({"terminal", "file", "code", "coding", "todo", "vision"})
"""Toolsets that work in the slot, or with a model that is named by itself."""
_LOCAL_SLOTS = frozenset({"bwrap", "docker", "podman", "apptainer"})


def list_models(config: Config, has_optimizer: bool) -> list[ModelUse]:
    """The models that get to see past work, and where they are."""
    uses = [_describe("model", config.model, _TASKS)]
    if has_optimizer:
        same = isinstance(config.optimizer, SameSettings)
        uses.append(_describe("optimizer", config.model if same else config.optimizer, _SESSIONS))
    if config.claim.enabled and not isinstance(config.claim_model, NoModelSettings):
        uses.append(_describe("claim_model", config.claim_model, _TASKS))
    if not isinstance(config.vision, NoModelSettings):
        uses.append(_describe("vision", config.vision, "pictures of those files"))
    return uses


def _describe(role: str, settings: ModelSettings | SameSettings, gets: str) -> ModelUse:
    match settings:
        case EmbeddedSettings():
            return ModelUse(role=role, name=settings.recorded_name, place=PROCESS, gets=gets)
        case ScriptedSettings():
            return ModelUse(role=role, name=settings.name, place=PROCESS, gets=gets)
        case OwnModelSettings():
            place = f"wherever {settings.reference} sends it"
            return ModelUse(role=role, name=settings.reference, place=place, gets=gets, remote=True)
        case ServerSettings():
            addresses = settings.addresses
            away = [address for address in addresses if not is_local(address, find_proxy(address, settings.proxy))]
            place = ", ".join(map(_name_host, away or addresses)) if away else HERE
            return ModelUse(role=role, name=settings.name, place=place, gets=gets, remote=bool(away))
        case SameSettings():
            raise TypeError("the agent's own model was named before")


def is_local(address: str, proxy: str = "") -> bool:
    """Whether requests to an address stay on this machine."""
    return _is_loopback(address) and (not proxy or _is_loopback(proxy))


def _is_loopback(address: str) -> bool:
    host = urlsplit(address).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name_host(address: str) -> str:
    return urlsplit(address).netloc.rpartition("@")[2] or address


def list_departures(config: Config, models: list[ModelUse]) -> list[str]:
    """Everything in the settings that takes past work off this machine, in words with the setting."""
    found = [f"{use.role}: {use.name} at {use.place} gets {use.gets}" for use in models if use.remote]
    return [*found, *_list_others(config)]


def _list_others(config: Config) -> Iterator[str]:
    profile = find_profile(config.sandbox, "")
    backend = str(profile.__struct_config__.tag) if isinstance(profile, BackendSettings) else config.sandbox.backend
    if backend == "local":
        raise ConfigError(
            "sandbox.backend: local runs commands as you, without isolation; past work is text of others: use bwrap or "
            "containers"
        )
    if backend not in _LOCAL_SLOTS:
        yield f"sandbox.backend: {backend} gets the files of tasks"
    if config.sandbox.network:
        yield "sandbox.network: commands in slots, which hold files of tasks, reach the network"
    if config.engine.type != "local":
        yield f"engine.type: {config.engine.type} runs tasks on other machines"
    if config.tools.mcp:
        yield f"tools.mcp: {', '.join(config.tools.mcp)} get what the agent sends them"
    yield from _list_tools(config.tools)
    if ":" in config.train.proposer:
        yield f"train.proposer: {config.train.proposer} is your own, and sends sessions wherever it wants"
    if others := [name for name in config.tracking.use if name != "tensorboard"]:
        yield f"tracking.use: {', '.join(others)} may send numbers and transcripts"


def _list_tools(settings: ToolsSettings) -> Iterator[str]:
    """Toolsets that are not known to work in the slot alone. Tools of the user's own may send anything anywhere."""
    places = {"tools.enabled": settings.enabled or ()}
    if name := settings.distribution:
        own = PUBLISHED[name].percent if name in PUBLISHED else ()  # an unknown one is refused when the run is opened
        drawn = settings.distributions.get(name, dict(own))
        places[f"tools.distribution {name}"] = tuple(toolset for toolset, percent in drawn.items() if percent)
    for place, names in places.items():
        if away := sorted({*names} - _LOCAL_TOOLS - {*settings.disabled}):
            yield f"{place}: {', '.join(away)} may send what the agent knows over the network"


def require_permission(config: Config, models: list[ModelUse]) -> list[str]:
    """What leaves the machine, if `sleep.remote` allows it.

    Raises:
        ConfigError: something would leave it, and `sleep.remote` is not set.
    """
    leaving = list_departures(config, models)
    if leaving and not config.sleep.remote:
        raise ConfigError(
            "sleep.remote: past work would leave this machine:\n  "
            + "\n  ".join(leaving)
            + "\nUse models on this machine (--model.type embedded, or a server at 127.0.0.1), or allow it: "
            "--sleep.remote true"
        )
    return leaving
