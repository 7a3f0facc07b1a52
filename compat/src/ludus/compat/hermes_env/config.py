"""`HermesAgentEnvConfig`: the fields of Hermes environments, those of its sandbox pool included."""

from dataclasses import dataclass
from typing import Any

from ludus.compat.atropos_env.env_config import BaseEnvConfig
from ludus.compat.atropos_env.pydantic_import import Field
from ludus.policy import Limits


@dataclass(frozen=True)
class HermesBudget:
    """How long the results of tools may be (`build_budget_config`)."""

    default_result_size: int = 100_000
    turn_budget: int = 200_000
    preview_size: int = 1_500
    tool_overrides: dict[str, int] | None = None

    def make_limits(self, turns: int, seconds: float) -> Limits:
        return Limits(
            turns=turns,
            tool_seconds=seconds,
            result_chars=self.default_result_size,
            turn_chars=self.turn_budget,
            preview_chars=self.preview_size,
        )


class SandboxPoolConfig(BaseEnvConfig):
    """The fields and defaults of the sandbox pool."""

    allow_network: bool = Field(default=True, description="Whether commands may reach the network.")
    require_sandbox: bool = Field(default=False, description="Refuse to run without isolation.")
    purge_job_on_start: bool = Field(default=False, description="Remove an earlier job of the same name.")
    purge_job_on_shutdown: bool = Field(default=True, description="Must be true: jobs are always removed.")
    acquire_timeout_s: float = Field(default=30.0, description="Seconds to wait for a slot.")
    nomad_address: str = Field(default="http://localhost:4646", description="Nomad's address.")
    sandbox_job_id: str = Field(default="atropos-sandbox", description="The name of Nomad jobs.")
    sandbox_image: str = Field(default="atropos-sandbox:local", description="The image of Nomad's slots.")
    slots_per_container: int = Field(default=10, description="Slots in a container of Nomad.")
    min_containers: int = Field(default=1, description="Containers that are kept ready.")
    max_containers: int = Field(default=10, description="Containers at most.")
    privileged: bool = Field(default=False, description="Privileged containers.")
    driver: str = Field(default="docker", description="docker or singularity.")
    singularity_image: str | None = Field(default=None, description="The image for singularity.")
    modal_app_name: str | None = Field(default="atropos-sandbox", description="The Modal app.")
    modal_image: str = Field(default="python:3.11", description="The image of Modal's slots.")
    modal_gpu: str | None = Field(default=None, description="A GPU.")
    modal_cpu: float = Field(default=1.0, description="Processors.")
    modal_memory: int = Field(default=2048, description="Memory in MB.")
    modal_slots_per_sandbox: int = Field(default=10, description="Slots in a sandbox of Modal.")
    modal_min_sandboxes: int = Field(default=1, description="Sandboxes that are kept ready.")
    modal_max_sandboxes: int = Field(default=5, description="Sandboxes at most.")
    modal_idle_timeout: int = Field(default=120, description="Seconds after which an idle sandbox ends.")
    modal_max_lifetime: int = Field(default=3600, description="Seconds after which a sandbox ends.")
    modal_acquire_timeout: float = Field(default=60.0, description="Seconds to wait for a slot.")
    modal_execution_timeout: float = Field(default=30.0, description="Seconds for one command.")
    modal_secrets: str = Field(default="", description="Names of Modal secrets, with commas.")
    modal_env_vars: str = Field(default="", description="NAME=value, with semicolons.")
    modal_workspace_base: str = Field(default="/data", description="Must be /data: slots see /workspace.")


class HermesAgentEnvConfig(SandboxPoolConfig):
    """The fields and defaults of Hermes, with those of its sandbox pool."""

    enabled_toolsets: list[str] | None = Field(default=None, description="Toolsets; None: all that can be used.")
    disabled_toolsets: list[str] | None = Field(default=None, description="Toolsets that are left out.")
    distribution: str | None = Field(
        default=None, description="Sample toolsets for each group, instead of naming them."
    )
    max_agent_turns: int = Field(default=30, ge=1, description="Replies that a rollout may have.")
    system_prompt: str | None = Field(default=None, description="The system message.")
    agent_temperature: float = Field(default=1.0, description="The temperature of the agent.")
    terminal_backend: str = Field(default="local", description="local, docker, modal, ssh or singularity.")
    terminal_timeout: int = Field(default=120, ge=1, description="Seconds for one command.")
    terminal_lifetime: int = Field(default=3600, ge=1, description="Seconds that a rollout may hold its slot.")
    dataset_name: str | None = Field(default=None, description="For the author's own setup().")
    dataset_split: str = Field(default="train", description="For the author's own setup().")
    prompt_field: str = Field(default="prompt", description="For the author's own format_prompt().")
    tool_pool_size: int = Field(default=128, ge=1, description="Tool calls at once.")
    tool_call_parser: str = Field(default="hermes", description="How the model writes calls, in token mode.")
    default_result_size_chars: int = Field(default=100_000, description="A longer result is shown as a preview.")
    turn_budget_chars: int = Field(default=200_000, description="The length of all results of one turn.")
    preview_size_chars: int = Field(default=1_500, description="The length of a preview.")
    tool_result_overrides: dict[str, int] | None = Field(default=None, description="Lengths for single tools.")
    extra_body: dict[str, Any] | None = Field(default=None, description="More fields of the agent's requests.")
    tool_pool_mode: str = Field(default="default", description="default, nomad or modal.")

    def build_budget_config(self) -> HermesBudget:
        return HermesBudget(
            self.default_result_size_chars,
            self.turn_budget_chars,
            self.preview_size_chars,
            self.tool_result_overrides,
        )
