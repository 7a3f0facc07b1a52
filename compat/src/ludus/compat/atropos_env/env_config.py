"""The configuration classes that files written for atroposlib import and derive from. They are pydantic models."""

from enum import Enum
from typing import Any

from ludus.compat.atropos_env.pydantic_import import BaseModel, ConfigDict, Field


class EvalHandlingEnum(Enum):
    """What happens to rollouts while an evaluation runs."""

    STOP_TRAIN = "STOP_TRAIN"
    LIMIT_TRAIN = "LIMIT_TRAIN"
    NONE = "NONE"


class BaseEnvConfig(BaseModel):
    """`atroposlib.envs.base.BaseEnvConfig`: the same fields and defaults."""

    model_config = ConfigDict(protected_namespaces=())

    group_size: int = Field(default=4, description="Rollouts of each item.")
    max_num_workers: int = Field(default=-1, description="Groups at once; -1: max_num_workers_per_node per server.")
    max_eval_workers: int = Field(default=16, description="For the author's own evaluate().")
    max_num_workers_per_node: int = Field(default=8, description="Groups at once for each server.")
    steps_per_eval: int = Field(default=100, description="Steps of the trainer between evaluations; 0 or less: none.")
    max_token_length: int = Field(default=2048, description="The longest row that is reported to the server.")
    eval_handling: EvalHandlingEnum = Field(
        default=EvalHandlingEnum.STOP_TRAIN, description="Groups during evaluate()."
    )
    eval_limit_ratio: float = Field(default=0.5, description="The share of groups with LIMIT_TRAIN.")
    inference_weight: float = Field(default=1.0, description="The weight among the environments of a trainer.")
    batch_size: int = Field(default=-1, description="Rows of a batch; the trajectory server sets it.")
    max_batches_offpolicy: int = Field(default=3, description="Batches that may wait at the server.")
    tokenizer_name: str = Field(default="NousResearch/DeepHermes-3-Llama-3-3B-Preview", description="The tokenizer.")
    use_wandb: bool = Field(default=True, description="Whether metrics are sent to Weights & Biases.")
    rollout_server_url: str = Field(default="http://localhost:8000", description="The trajectory server.")
    total_steps: int = Field(default=1000, description="Steps, or groups of `process`; -1: what the trainer says.")
    wandb_name: str | None = Field(default=None, description="The name of the environment for server and tracker.")
    num_rollouts_to_keep: int = Field(default=32, description="Groups that the table of rollouts shows.")
    num_rollouts_per_group_for_logging: int = Field(default=1, description="Rollouts of a group in the table; -1: all.")
    ensure_scores_are_not_same: bool = Field(default=True, description="Drop groups whose scores are all equal.")
    data_path_to_save_groups: str | None = Field(default=None, description="Where groups are written as JSONL.")
    data_dir_to_save_evals: str | None = Field(default=None, description="Where evaluate_log() writes.")
    min_items_sent_before_logging: int = Field(default=2, description="Groups between two logs of metrics.")
    include_messages: bool = Field(default=False, description="Whether groups have messages.")
    min_batch_allocation: float | None = Field(default=None, description="The least share of a batch, 0 to 1.")
    worker_timeout: float = Field(default=600, description="Seconds for one group; 0 or less: no limit.")
    thinking_mode: bool = Field(default=False, description="Ask the server for reasoning.")
    reasoning_effort: str | None = Field(default=None, description="none, minimal, low, medium, high or xhigh.")
    max_reasoning_tokens: int | None = Field(default=None, description="Tokens for reasoning.")
    custom_thinking_prompt: str | None = Field(default=None, description="For the author's own prompts.")


class ServerBaseline(BaseModel):
    """`atroposlib`'s settings of servers without an address."""

    model_config = ConfigDict(protected_namespaces=())

    timeout: int = Field(default=1200, description="Seconds for one request.")
    num_max_requests_at_once: int = Field(default=512, description="Requests at once.")
    num_requests_for_eval: int = Field(default=64, description="Requests of evaluations at once.")
    model_name: str = Field(default="default", description="The model.")
    rolling_buffer_length: int = Field(default=1000, description="Timings that are kept.")
    server_type: str = Field(default="openai", description="openai, vllm, sglang or trl.")
    tokenizer_name: str = Field(default="none", description="The tokenizer; none: the model's.")


class APIServerConfig(ServerBaseline):
    """`atroposlib`'s settings of one server."""

    api_key: str | None = Field(default="", description="The key.")
    base_url: str | None = Field(default="", description="The address, most often with /v1 at its end.")
    n_kwarg_is_ignored: bool = Field(default=False, description="The server answers once, whatever `n` is.")
    health_check: bool = Field(default=True, description="Whether the server is probed.")


class ServerManagerConfig(BaseModel):
    """`atroposlib`'s settings of all servers together."""

    slurm: bool = Field(default=False, description="Find servers on SLURM nodes.")
    testing: bool = Field(default=False, description="Canned replies.")
    max_n_completions: int = Field(default=8, description="The most replies to one request.")
    proxy_url: str | None = Field(default=None, description="The proxy that keeps tokens.")


def dump_config(config: Any) -> dict[str, Any]:
    """The fields of a configuration as plain values."""
    return config.model_dump(mode="json")
