"""The names in SkillOpt's configurations, and what SkillOpt's code takes where a file does not say.

A key that a file leaves out has the value of SkillOpt's code, which differs from that of the base file that SkillOpt
ships: the schedule is constant, and slow update and meta skill are off. SkillOpt stops without some keys, such as
`batch_size`. Those have the value of the base file.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ludus.config.reading import Tree


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section of their files."""


class TrainSection(Section, frozen=True):
    num_epochs: int = 4
    train_size: int = 0
    steps_per_epoch: int | None = None
    batches_per_epoch: int | None = None
    samples_per_epoch: int | None = None
    batch_size: int = 40
    accumulation: int = 1
    seed: int = 42


class GradientSection(Section, frozen=True):
    minibatch_size: int = 8
    merge_batch_size: int = 8
    analyst_workers: int = 16
    failure_only: bool = False
    max_analyst_rounds: int | None = None


class OptimizerSection(Section, frozen=True):
    learning_rate: int = 4
    min_learning_rate: int = 2
    lr_scheduler: Literal["constant", "linear", "cosine", "autonomous"] = "constant"
    lr_control_mode: str = "fixed"
    skill_update_mode: str = "patch"
    meta_learning_rate: int | None = None
    use_slow_update: bool = False
    slow_update_samples: int = 20
    slow_update_gate_with_selection: bool = False
    longitudinal_pair_policy: str = "mixed"
    use_meta_skill: bool = False
    use_meta_reflect: bool | None = None
    use_skill_aware_reflection: bool = False
    skill_aware_appendix_source: Literal["both", "failure_only"] = "both"
    skill_aware_consolidate_threshold: int = 0


class EvaluationSection(Section, frozen=True):
    use_gate: bool = True
    gate_metric: Literal["hard", "soft", "mixed"] = "hard"
    gate_mixed_weight: float = 0.5
    use_semantic_density: bool = False
    semantic_density_weight: float = 0.05
    leading_words: str | list[str] | None = None
    sel_env_num: int = 0
    test_env_num: int = 0
    eval_test: bool = True


SECTIONS: Mapping[str, type[Section]] = {
    "train": TrainSection,
    "gradient": GradientSection,
    "optimizer": OptimizerSection,
    "evaluation": EvaluationSection,
}

DEAD = (
    "train.steps_per_epoch",
    "train.batches_per_epoch",
    "train.samples_per_epoch",
    "gradient.max_analyst_rounds",
    "optimizer.meta_learning_rate",
    "optimizer.use_meta_reflect",
)
"""Keys that have no effect in SkillOpt: it computes them from the data, or nothing reads them."""

FLAT = {
    "model_backend": "model.backend",
    "optimizer_model": "model.optimizer",
    "target_model": "model.target",
    "edit_budget": "optimizer.learning_rate",
    "min_edit_budget": "optimizer.min_learning_rate",
    "meta_edit_budget": "optimizer.meta_learning_rate",
    "env": "env.name",
}
"""Names in the flat form that differ from those in sections."""
TO_FLAT = {home: flat for flat, home in FLAT.items()}

_ROLES = ("", "optimizer_", "target_")
_AZURE = "endpoint api_version api_key auth_mode ad_scope managed_identity_client_id"
_QWEN = "base_url api_key temperature timeout_seconds max_tokens enable_thinking thinking_mode"
_MINIMAX = "region base_url api_key model temperature max_tokens enable_thinking"
_PROGRAMS = """
    codex_exec_path codex_exec_sandbox codex_exec_profile codex_exec_reasoning_effort codex_exec_use_sdk
    codex_exec_network_access codex_exec_web_search codex_exec_approval_policy codex_exec_full_auto codex_path
    codex_cli_bin codex_bin codex_sandbox sandbox claude_code_exec_path claude_code_exec_profile
    claude_code_exec_use_sdk claude_code_exec_effort claude_code_exec_max_thinking_tokens cursor_exec_path
    cursor_exec_sandbox copilot_exec_path
    copilot_exec_home copilot_exec_allow_all_tools copilot_chat_optimizer_model copilot_chat_target_model
    copilot_chat_timeout
"""
_ALWAYS = """
    backend optimizer target optimizer_backend target_backend reasoning_effort rewrite_reasoning_effort
    rewrite_max_completion_tokens codex_trace_to_optimizer azure_endpoint azure_api_version azure_api_key
    resolved_qwen_thinking_modes
"""
MODEL = (
    frozenset(_ALWAYS.split())
    | {f"{role}azure_openai_{key}" for role in _ROLES for key in _AZURE.split()}
    | {f"{role}qwen_chat_{key}" for role in _ROLES for key in _QWEN.split()}
    | {f"{role}minimax_{key}" for role in _ROLES for key in _MINIMAX.split()}
    | set(_PROGRAMS.split())
)
_BENCHMARKS = """
    name skill_init out_root split_mode split_ratio split_seed split_dir data_path split_output_dir limit exec_timeout
    workers max_turns max_steps max_api_workers max_completion_tokens image_detail shuffle_choices use_theorem
    use_sketch data_root mode data_dirs docs_dirs max_tool_turns search_mode max_queries_per_turn search_api_url
    search_auth_env search_provider search_max_num_results search_timeout_seconds use_local_tools judge_model
    judge_max_completion_tokens judge_retries
"""
ENV = frozenset(_BENCHMARKS.split())


def flatten(sections: Mapping[str, Mapping[str, Any]]) -> Tree:
    """The keys of sections by their names in the flat form."""
    return {
        TO_FLAT.get(f"{section}.{key}", key): value for section, keys in sections.items() for key, value in keys.items()
    }


def list_defaults() -> Tree:
    """What SkillOpt's code takes for the trainer's keys, by flat name."""
    return flatten({name: msgspec.structs.asdict(kind()) for name, kind in SECTIONS.items()})


# ---- spellings ------------------------------------------------------------------------------------------------------


def _make_spellings(**names: str) -> dict[str, str]:
    """Every accepted spelling, with the name it stands for."""
    return {spelling: name for name, others in names.items() for spelling in (name, *others.split())}


UPDATE_MODES = _make_spellings(
    patch="edits",
    rewrite_from_suggestions="rewrite suggestions rewrite_suggestions",
    full_rewrite_minibatch="full_rewrite minibatch_full_rewrite skill_rewrite_minibatch",
)
CONTROLS = _make_spellings(scheduled="fixed manual scheduler", autonomous="auto optimizer", none="off no_lr")
PAIR_POLICIES = _make_spellings(
    mixed="default random all", changed="change delta 10_01 01_10", unchanged="stable same 00_11"
)
BACKENDS = _make_spellings(
    openai_chat="azure_openai",
    openai_compatible="compat openai-compatible",
    claude_chat="claude anthropic",
    qwen_chat="qwen",
    minimax_chat="minimax",
    copilot_chat="copilot copilot_cli github_copilot",
    codex_exec="codex openai",
    cursor_exec="cursor cursor_agent",
    claude_code_exec="",
    copilot_exec="",
)
