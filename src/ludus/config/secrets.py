"""Secrets, proxies and folders: everything that is read from environment variables.

Settings name variables. Their values are read here when a client is built, and are stored nowhere. `find_exposed` finds
settings that hold a secret themselves, as far as their names tell.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ludus.config.tree import Config, OwnModelSettings
from ludus.errors import ConfigError
from ludus.models.server import ServerSettings
from ludus.rl.tinker_settings import TinkerSettings
from ludus.sandbox.backend import BackendSettings
from ludus.sandbox.backends import BACKENDS


def read_secret(variable: str, setting: str) -> str:
    """The value of the environment variable that a setting names; empty if it names none. Raises ConfigError."""
    if not variable:
        return ""
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(
            f"{setting}: the environment variable {variable} is not set or empty. "
            f"Set it (export {variable}=…), or name another one with --{setting}"
        )
    return value


def list_secrets(config: Config) -> tuple[str, ...]:
    """The values of all variables that the settings name. They are masked in all files of a run."""
    variables = [variable for _, variable in _list_variables(config)]
    values = [os.environ.get(variable, "").strip() for variable in variables]
    proxies = [urlsplit(_add_scheme(os.environ.get(name, ""))).password or "" for name in _PROXIES]
    return tuple(dict.fromkeys(value for value in (*values, *proxies) if value))


def read_variables(config: Config) -> dict[str, str]:
    """The variables that another process needs for the same settings: those that they name, proxies, and
    `engine.variables`. Those that are not set are left out.

    Raises:
        ConfigError: one of `engine.variables` is not set.
    """
    for name in config.engine.variables:
        read_secret(name, "engine.variables")
    named = [variable for _, variable in _list_variables(config)]
    names = (*named, *_PROXIES, "NO_PROXY", "no_proxy", *config.engine.variables)
    return {name: os.environ[name] for name in names if name in os.environ}


def find_ray_address() -> str:
    """The cluster that this program was submitted to; empty if it was not."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address.startswith("http") else address


def refuse_ray_reports() -> None:
    """Tell Ray to report nothing about its use, unless the user has decided on it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def set_variables(values: Mapping[str, str]) -> None:
    """Set variables of this process."""
    os.environ.update(values)


_PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


def _list_variables(config: Config) -> Iterator[tuple[str, str]]:
    """Every setting that names the variable of a secret, and the variable."""
    for role, model in _list_servers(config):
        yield f"{role}.api_key_var", model.api_key_var
        yield from ((f"{role}.header_vars.{key}", var) for key, var in model.header_vars.items())
    for setting, options in _list_options(config):
        yield from ((f"{setting}.{key}", str(var)) for key, var in options.items() if key.endswith("_var"))
    yield "tools.web.api_key_var", config.tools.web.api_key_var
    yield "gateway.token_var", config.gateway.token_var
    yield "gateway.score_token_var", config.gateway.score_token_var
    if isinstance(config.trainer, TinkerSettings):
        yield "trainer.api_key_var", config.trainer.key_variable
    yield "serve.token_var", config.serve.token_var
    yield "rl.token_var", config.rl.token_var
    yield "api.token_var", config.api.token_var
    for setting, profile in _list_profiles(config):
        names = [field for field in profile.__struct_fields__ if field.endswith("_var")]
        yield from ((f"{setting}.{name}", getattr(profile, name)) for name in names)
    for name, server in config.tools.mcp.items():
        yield from ((f"tools.mcp.{name}.env_vars.{key}", var) for key, var in server.env_vars.items())
        yield from ((f"tools.mcp.{name}.header_vars.{key}", var) for key, var in server.header_vars.items())


def _list_profiles(config: Config) -> Iterator[tuple[str, BackendSettings]]:
    """The settings of every sandbox profile, by the path of the setting."""
    sandbox = config.sandbox
    for name in BACKENDS:
        if (profile := getattr(sandbox, name, None)) is not None:
            yield f"sandbox.{name}", profile
    yield from ((f"sandbox.profiles.{name}", profile) for name, profile in sandbox.profiles.items())


def _list_options(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """The options of the user's own classes, by the path of the setting."""
    for role, model in _list_models(config).items():
        if isinstance(model, OwnModelSettings):
            yield f"{role}.options", model.options
    yield "sandbox.options", config.sandbox.options
    yield "train.proposer_options", config.train.proposer_options
    yield from ((f"tracking.options.{name}", options) for name, options in config.tracking.options.items())


def _list_servers(config: Config) -> Iterator[tuple[str, ServerSettings]]:
    """The models that are servers, by section."""
    return ((role, model) for role, model in _list_models(config).items() if isinstance(model, ServerSettings))


def _list_models(config: Config) -> dict[str, object]:
    """The settings of all models, by section."""
    names = ("model", "optimizer", "claim_model", "judge", "second_judge", "vision")
    return {name: getattr(config, name) for name in names}


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SECRET = re.compile(r"(key|token|secret|password|passwd|cookie|authorization)$", re.IGNORECASE)


def find_exposed(config: Config) -> Iterator[str]:
    """Messages about settings that hold a secret, which would be recorded. They do not repeat the secret."""
    for setting, variable in _list_variables(config):
        if variable and not _VARIABLE.fullmatch(variable):
            yield f"{setting}: this is not the name of an environment variable. Put the key in one and give its name"
    mcp = config.tools.mcp
    urls = {"tools.web.base_url": config.tools.web.base_url, **{f"tools.mcp.{n}.url": s.url for n, s in mcp.items()}}
    urls["serve.server"] = config.serve.server
    plain = {f"tools.mcp.{n}.headers": s.headers for n, s in mcp.items()}
    plain |= {f"tools.mcp.{n}.env": s.env for n, s in mcp.items()}
    for setting, profile in _list_profiles(config):
        for key in getattr(profile, "env", ()):
            if _SECRET.search(key):
                yield f"{setting}.env: {key} looks like a secret, which would be recorded; slots should hold none"
    for setting, options in _list_options(config):
        for key in filter(_SECRET.search, options):
            yield f"{setting}.{key}: looks like a secret, which would be recorded; name its variable in {key}_var"
    for name, harness in config.agent.harnesses.items():
        for key, value in harness.env.items():
            if _SECRET.search(key) and "{" not in value:
                yield f"agent.harnesses.{name}.env: {key} looks like a secret, which would be recorded; give it {{key}}"
    if isinstance(config.trainer, TinkerSettings):
        urls["trainer.base_url"] = config.trainer.base_url
    for role, model in _list_servers(config):
        urls |= {f"{role}.base_url": model.base_url, f"{role}.proxy": model.proxy}
        urls |= {f"{role}.servers[{i}]": url for i, url in enumerate(model.servers)}
        plain[f"{role}.headers"] = model.headers
    for setting, url in urls.items():
        if _has_secret(url):
            instead = (
                "set HTTPS_PROXY instead" if setting.endswith(".proxy") else "send it with api_key_var or header_vars"
            )
            yield f"{setting}: the address has a password or key in it, which would be recorded; {instead}"
    for setting, values in plain.items():
        instead = f"{setting.removesuffix('s')}_vars"
        for key in filter(_SECRET.search, values):
            yield f"{setting}.{key}: looks like a secret, which would be recorded; name its variable in {instead}"


def _has_secret(url: str) -> bool:
    parts = urlsplit(_add_scheme(url))
    return parts.username is not None or any(_SECRET.search(name) for name, _ in parse_qsl(parts.query))


def _add_scheme(address: str) -> str:
    return address if "://" in address else f"http://{address}"


def find_proxy(url: str, setting: str) -> str:
    """The proxy for an address: the setting, or else the usual variables. Without a scheme it is an HTTP proxy."""
    found = setting or _find_usual_proxy(url)
    if found in ("", "none"):
        return ""
    found = _add_scheme(found)
    if (scheme := urlsplit(found).scheme) not in ("http", "https"):
        raise ConfigError(
            f"the proxy for {urlsplit(url).hostname} is a {scheme} one, but only http:// and https:// proxies can be "
            "used: name one with model.proxy or HTTPS_PROXY, or set model.proxy to none"
        )
    return found


def _find_usual_proxy(url: str) -> str:
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return ""
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all") or ""


def find_weights_folder() -> Path:
    """The folder where model weights are kept."""
    return _find_user_cache() / "weights"


def find_agents_folder() -> Path:
    """The folder where `scripts/setup-agents` installs command-line agents. Slots cannot see the home of root."""
    if given := os.environ.get("LUDUS_AGENTS", ""):
        return Path(given).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/ludus/agents")
    return _find_user_cache() / "agents"


def find_audits_folder() -> Path:
    """The folder where results of `ludus audit` are kept."""
    return _find_user_cache() / "audits"


def find_view_folder() -> Path:
    """The folder where `ludus view` keeps what it has read of runs."""
    return _find_user_cache() / "view"


def find_session_folders(word: str) -> tuple[Path, ...]:
    """The folders in which an agent keeps its sessions; none if the word is not the name of such an agent.

    Raises:
        ConfigError: the agent has no such folder on this machine.
    """
    if word == "claude-code":
        home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")
        folders = [home / "projects"]
    elif word == "codex":
        home = Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex")
        folders = [home / "sessions", home / "archived_sessions"]
    else:
        return ()
    if not any(folder.is_dir() for folder in folders):
        tried = " and ".join(map(str, folders))
        raise ConfigError(f"{word}: there are no sessions on this machine (looked in {tried}); name a folder")
    return tuple(folder for folder in folders if folder.is_dir())


def _find_user_cache() -> Path:
    """The user's folder for what can be fetched or made again.

    Raises:
        RuntimeError: no variable names one, and the user has no home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ludus"
