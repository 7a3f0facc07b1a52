"""The sandboxes of a Hermes file, as sections of Ludus: its flat settings, or its terminal backend."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ludus.compat.hermes_env.agent_env_config import refuse_agent_fields
from ludus.compat.hermes_env.hermes_sandboxes import FLAT_NAMES, read_modal_variables, read_sandboxes
from ludus.config.reading import Tree
from ludus.errors import ConfigError
from ludus.types import to_json

BACKENDS = {"local": "bwrap", "docker": "docker", "modal": "modal", "ssh": "ssh", "singularity": "apptainer"}
"""Terminal backends of Hermes, and the backends here. `local` is isolated here."""
IMAGE = "nikolaik/python-nodejs:python3.11-nodejs20"
"""The image of Hermes' terminal backends."""


PROFILES = "ATROPOS_MODAL_PROFILES"
"""The variable that names further profiles of Modal."""


def make_sandbox_trees(settings: Mapping[str, Any], variables: Mapping[str, str]) -> Tree:
    """The `sandbox` section for a file's settings, with the profiles that environment variables describe.

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
        "acquire_seconds": max(found.pool.acquire_seconds, 30.0),
        "command_seconds": float(settings.get("terminal_timeout", found.command_seconds)),
    }
    if "terminal_lifetime" in settings:
        section["lifetime_seconds"] = float(settings["terminal_lifetime"])
    if found.pool.max_slots is not None:
        section |= {"max_slots": found.pool.max_slots, "warm": found.pool.warm}
    if settings["tool_pool_mode"] != "default":
        backend = settings["tool_pool_mode"]
        profile: Tree = msgspec.json.decode(to_json(found.profile))
        profile.pop("backend", None)
        section |= {"backend": backend, backend: profile, "command_seconds": found.command_seconds}
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
