"""A file that was written for `HermesAgentBaseEnv`, as an environment of Ludus."""

from typing import ClassVar

from ludus.compat.atropos_env.file_env import AtroposFileEnv
from ludus.sandbox import SandboxSpec


class HermesFileEnv(AtroposFileEnv, frozen=True, kw_only=True):
    """`hermes:FILE.py`."""

    name: ClassVar[str] = "hermes"
    sandbox: ClassVar[SandboxSpec | None] = SandboxSpec(network=True)
