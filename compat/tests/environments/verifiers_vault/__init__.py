"""A taskset as users of verifiers 0.4 write one: the agent's tool is on a server (MCP)."""

import verifiers.v1 as vf
from verifiers_vault.servers import VaultTools


class VaultTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class VaultTask(vf.Task[vf.TaskData, vf.State, VaultTaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [VaultTools(config.tools)]

    @vf.reward
    async def opened(self, trace) -> float:
        return float("4711" in trace.last_reply)


class VaultConfig(vf.TasksetConfig):
    task: VaultTaskConfig = VaultTaskConfig()


class VaultTaskset(vf.Taskset[VaultTask, VaultConfig]):
    def load(self):
        yield VaultTask(vf.TaskData(id="vault", prompt="What is in the vault?"), self.config.task)


__all__ = ["VaultTaskset"]
