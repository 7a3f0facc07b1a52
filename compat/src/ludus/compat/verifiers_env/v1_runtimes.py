"""Where the roles of a taskset run (`runtime` of the package), and whether this machine can do that.

A role whose user named no place runs on this machine (`subprocess`) if its program only talks to the model. A program
that runs commands of the model needs a place that the user chooses: the package would take a cloud by default, and this
machine has no wall around a `subprocess`.
"""

import importlib.util
import shutil
import subprocess
from typing import Any

from msgspec import Struct

from ludus.errors import ConfigError

LOCAL = "subprocess"
ENGINES = ("docker", "podman")
CLOUDS = ("prime", "modal", "e2b")
SECONDS = 30.0
"""How long an engine may take to say its version."""


class RoleNeeds(Struct, frozen=True, kw_only=True):
    """What decides where a role runs."""

    role: str
    runtime: str
    """The type that the taskset or the user gives, or the package's default."""
    chosen: bool
    """Whether the user named it."""
    harness: str
    runs_code: bool
    needs_container: bool


def choose_runtime(needs: RoleNeeds) -> str:
    """The type of runtime of a role.

    Raises:
        ConfigError: the user must choose, or the choice does not fit.
    """
    field = f"env.args.{needs.role}.runtime"
    if needs.chosen or needs.runtime not in CLOUDS:
        if needs.runtime == LOCAL and needs.needs_container:
            raise ConfigError(
                f'{field}: the program "{needs.harness}" or the task needs a container, which subprocess is not: use '
                "docker, podman, apptainer or prime"
            )
        return needs.runtime
    if not needs.runs_code and not needs.needs_container:
        return LOCAL
    local = "" if needs.needs_container else f', or {{"type": "{LOCAL}"}}: on this machine, without a sandbox'
    raise ConfigError(
        f'{field}: the program "{needs.harness}" runs commands of the model. Where? {{"type": "docker"}} (or podman, '
        f'apptainer, prime){local}. With {{"harness": {{"id": "null"}}}} in env.args.{needs.role} it only talks'
    )


def check_runtime(role: str, kind: str, *, has_key: bool) -> None:
    """Raise `ConfigError` if this machine cannot provide a runtime. `has_key`: there is a key of Prime's cloud."""
    field = f"env.args.{role}.runtime.type"
    if kind in ENGINES:
        if problem := _ask_engine(kind):
            raise ConfigError(f"{field}: {kind} cannot be used: {problem}")
    elif kind == "apptainer":
        if shutil.which("apptainer") is None:
            raise ConfigError(f"{field}: the program apptainer is not installed")
    elif kind in CLOUDS:
        if kind != "prime" and importlib.util.find_spec(kind) is None:
            raise ConfigError(f"{field}: the package is missing: pip install 'verifiers[{kind}]'")
        if not has_key:
            raise ConfigError(
                f"{field}: {kind} is a cloud, which needs an account: set PRIME_API_KEY, or use docker, podman, "
                "apptainer or subprocess"
            )


def _ask_engine(engine: str) -> str:
    """Why a container engine cannot be used; empty if it can."""
    if shutil.which(engine) is None:
        return f"the program {engine} is not installed"
    try:
        asked = subprocess.run([engine, "version"], capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (asked.stderr or asked.stdout).strip() if asked.returncode else ""


async def runs_command(config: Any) -> bool:
    """Whether a new place of this runtime runs a command."""
    runtimes: Any = importlib.import_module("verifiers.v1.runtimes")
    try:
        async with runtimes.provision_runtime(config) as box:
            return (await box.run(["true"], {})).exit_code == 0
    except Exception:  # foreign code of many engines: whatever it raises, there is no place
        return False
