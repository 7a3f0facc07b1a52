"""A file that was written for `HermesAgentBaseEnv` or `AgentEnv`, as an environment of Ludus."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ludus.compat.atropos_env.file_env import AtroposFileEnv
from ludus.sandbox import SandboxSpec

if TYPE_CHECKING:
    from ludus.compat.atropos_env.file_host import LoadedFile


class HermesFileEnv(AtroposFileEnv, frozen=True, kw_only=True):
    """`hermes:FILE.py`."""

    name: ClassVar[str] = "hermes"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec(network=True)

    def load_file(self) -> "LoadedFile":
        from ludus.compat.atropos_env.file_host import load_file
        from ludus.compat.hermes_env.agent_env import AgentEnv
        from ludus.compat.hermes_env.hermes_base import HermesAgentBaseEnv
        from ludus.compat.hermes_env.hermes_modules import AGENT_ENVS, list_hermes_modules

        bases = (HermesAgentBaseEnv, AgentEnv)
        return load_file(Path(self.file), self.class_name, list_hermes_modules(), bases, package=AGENT_ENVS)


class HermesTaskEnv(HermesFileEnv, frozen=True, kw_only=True):
    """`hermes:FILE.py` in a training run: the file leases the slots of its rollouts itself."""

    sandbox: ClassVar[SandboxSpec | None] = None
