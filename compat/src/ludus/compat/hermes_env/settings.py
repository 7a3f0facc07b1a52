"""The sandboxes of a Hermes file, as sections of Ludus: its flat settings, or its terminal backend."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from ludus.compat.hermes_env.agent_env_config import refuse_agent_fields
from ludus.compat.hermes_env.sandboxes import FLAT_NAMES, read_modal_variables, read_sandboxes
from ludus.config.reading import Tree
from ludus.config.references import PARSER
from ludus.encoding import to_json
from ludus.errors import ConfigError, suggest
from ludus.parsers import list_names

BACKENDS = {"local": "bwrap", "docker": "docker", "modal": "modal", "ssh": "ssh", "singularity": "apptainer"}
"""Terminal backends of Hermes, and the backends here. `local` is isolated here."""
IMAGE = "nikolaik/python-nodejs:python3.11-nodejs20"
"""The image of Hermes' terminal backends."""


FALLBACK = "hermes"
"""The parser that is used in place of an unknown one."""
PROFILES = "ATROPOS_MODAL_PROFILES"
"""The variable that names further profiles of Modal."""


POOL_SECONDS = 300.0
"""The time limit of a command in a pool of Nomad or Modal, if the settings name none."""


def make_sandbox_trees(settings: Mapping[str, Any], variables: Mapping[str, str], named: Collection[str] = ()) -> Tree:
    """The `sandbox` section for a file's settings, with the profiles that environment variables describe. `named`: the
    settings that the file or the user has given.

    Raises:
        ConfigError: a value cannot be used or honoured.
    """
    refuse_agent_fields(settings)
    flat = {name: settings[name] for name in FLAT_NAMES if name in settings}
    try:
        found = read_sandboxes(flat)
    except ConfigError as error:
        raise ConfigError(f"env.{error}") from error
    more = read_modal_variables(variables) if variables.get(PROFILES) else {}
    section: Tree = {
        "profiles": {name: msgspec.json.decode(to_json(each.profile)) for name, each in more.items()},
        "network": found.network,
        "require_sandbox": found.require_sandbox or bool(settings.get("require_stateful_sandbox")),
        "acquire_seconds": found.pool.acquire_seconds,
        "command_seconds": choose_command_seconds(settings, found.command_seconds, named),
    }
    if "terminal_lifetime" in settings:
        section["lifetime_seconds"] = float(settings["terminal_lifetime"])
    if found.pool.max_slots is not None:
        section |= {"max_slots": found.pool.max_slots, "warm": found.pool.warm}
    if settings["tool_pool_mode"] != "default":
        backend = settings["tool_pool_mode"]
        profile: Tree = msgspec.json.decode(to_json(found.profile))
        profile.pop("backend", None)
        section |= {"backend": backend, backend: profile}
        return {"sandbox": section}
    backend = settings.get("terminal_backend", "local")  # files for AgentEnv have the pool alone
    if backend not in BACKENDS:
        raise ConfigError(
            f"env.terminal_backend is '{backend}', which is not here: use {', '.join(BACKENDS)}, or another backend "
            "with --sandbox.backend"
        )
    section["backend"] = BACKENDS[backend]
    if backend in ("docker", "modal", "singularity"):
        image = f"docker://{IMAGE}" if backend == "singularity" else IMAGE
        section[BACKENDS[backend]] = {"image": image}
    return {"sandbox": section}


def choose_command_seconds(settings: Mapping[str, Any], pool_seconds: float, named: Collection[str]) -> float:
    """The time limit of a command: `terminal_timeout`; of one in Modal's pool also `modal_execution_timeout`. If none
    was named it is that of the pool. Files for AgentEnv have the pool's alone."""
    if "terminal_timeout" not in settings:
        return pool_seconds
    mode = settings["tool_pool_mode"]
    if mode == "default" or "terminal_timeout" in named:
        return float(settings["terminal_timeout"])
    return pool_seconds if mode == "modal" and "modal_execution_timeout" in named else POOL_SECONDS


def choose_parser(settings: Mapping[str, Any], tell: Callable[[str], None]) -> Tree:
    """The parser of the model, if the settings name one that is not there: that of Hermes, as there."""
    name = settings.get("tool_call_parser") or FALLBACK
    if name in list_names() or PARSER.knows(name):
        return {}
    tell(f"env.tool_call_parser: there is no parser '{name}', so '{FALLBACK}' is used; {suggest(name, list_names())}")
    return {"model": {"parser": FALLBACK}}


def refuse_distribution(settings: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a training run samples toolsets: its measurements would not be comparable."""
    if settings.get("distribution"):
        raise ConfigError(
            "env.distribution: a skill is measured with the same tools in every rollout: use env.enabled_toolsets"
        )
