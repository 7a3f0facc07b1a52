"""A file that was written for `HermesAgentBaseEnv` or `AgentEnv`, as an environment of Ludus."""

import asyncio
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING, ClassVar

import msgspec

from ludus.compat.atropos_env.file_env import AtroposFileEnv
from ludus.sandbox import SandboxSpec
from ludus.sandbox.dockerfile import PATH

if TYPE_CHECKING:
    from ludus.compat.atropos_env.file_host import LoadedFile
    from ludus.compat.hermes_env.task_slots import TaskSlots
    from ludus.config import Config
    from ludus.sandbox.pool import Pool
    from ludus.tools.toolsets import Registry

PROGRAMS = "/home/agent/.local/bin"
MAKE_PYTHON = f"""mkdir -p {PROGRAMS} && printf '#!/bin/sh\\nexec python3 "$@"\\n' > {PROGRAMS}/python &&
chmod +x {PROGRAMS}/python"""
"""Files start `python`, which the images of Hermes have. Some hosts have `python3` alone."""


class HermesFileEnv(AtroposFileEnv, frozen=True, kw_only=True):
    """`hermes:FILE.py`."""

    name: ClassVar[str] = "hermes"
    leased: ClassVar[SandboxSpec | None] = SandboxSpec(network=True, folders=("/data",))
    sandbox: ClassVar[SandboxSpec | None] = leased

    def load_file(self) -> "LoadedFile":
        from ludus.compat.atropos_env.file_host import load_file
        from ludus.compat.hermes_env.agent_env import AgentEnv
        from ludus.compat.hermes_env.base import HermesAgentBaseEnv
        from ludus.compat.hermes_env.modules import AGENT_ENVS, list_hermes_modules

        bases = (HermesAgentBaseEnv, AgentEnv)
        return load_file(Path(self.file), self.class_name, list_hermes_modules(), bases, package=AGENT_ENVS)

    def make_slots(
        self, config: "Config", registry: "Registry", pool: "Pool", spec: SandboxSpec | None
    ) -> "TaskSlots | None":
        from ludus.compat.hermes_env.task_slots import TaskSlots

        if spec is None:
            return None
        found = {name: getattr(profile, "image", "") for name, profile in config.sandbox.profiles.items()}
        images = {str(image): name for name, image in found.items() if image}
        at_once = self.settings.get("tool_pool_size", self.settings.get("tool_max_batch_size", 1))
        prepare = ""
        if config.sandbox.backend == "bwrap" and Path("/usr/bin/python3").exists() and not which("python", path=PATH):
            spec = msgspec.structs.replace(spec, env=(*spec.env, ("PATH", f"{PROGRAMS}:{PATH}")))
            prepare = MAKE_PYTHON
        return TaskSlots(pool, spec, registry, images, asyncio.get_running_loop(), int(at_once), prepare)


class HermesTaskEnv(HermesFileEnv, frozen=True, kw_only=True):
    """`hermes:FILE.py` in a training run: the file leases the slots of its rollouts itself."""

    sandbox: ClassVar[SandboxSpec | None] = None
