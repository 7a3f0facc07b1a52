"""What becomes of the keys of SkillOpt's configurations, by their names in the flat form.

`KEYS` has every key that SkillOpt 0.2.0 knows, and those that it derives and writes into `config.json`; `ENV_KEYS`
those of environments; `LATER_KEYS` those that came after 0.2.0. Keys of a backend count if a role uses it.
"""

from collections.abc import Iterator

from ludus.compat.verdicts import Verdict

_ROLES = {"": "model optimizer", "optimizer_": "optimizer", "target_": "model"}
"""How keys of a role begin, and the sections of the roles that have them."""
_SAMPLING = {"model": "sampling", "optimizer": "train.sampling"}
_NO_LOGIN = "only a cloud login reads it"
_KEY = "keys are never settings; the message names the variable"


def _name_fields(role: str, *fields: str) -> str:
    """The fields of the sections of a role."""
    return " ".join(f"{section}.{field}" for section in _ROLES[role].split() for field in fields)


def _name_samplings(role: str, field: str) -> str:
    return " ".join(f"{_SAMPLING[section]}.{field}" for section in _ROLES[role].split())


def _list_azure(role: str) -> Iterator[Verdict]:
    name = f"{role}azure_openai"
    yield Verdict(f"{name}_endpoint", "honoured", _name_fields(role, "base_url"))
    yield Verdict(f"{name}_api_version", "honoured", _name_fields(role, "api_version"))
    yield Verdict(f"{name}_api_key", "refused", remark=_KEY)
    yield Verdict(f"{name}_auth_mode", "honoured", _name_fields(role, "type"), "a cloud login is refused")
    yield Verdict(f"{name}_ad_scope", "no effect there", remark=_NO_LOGIN)
    yield Verdict(f"{name}_managed_identity_client_id", "no effect there", remark=_NO_LOGIN)


def _list_qwen(role: str) -> Iterator[Verdict]:
    name = f"{role}qwen_chat"
    yield Verdict(f"{name}_base_url", "honoured", _name_fields(role, "base_url"))
    yield Verdict(f"{name}_api_key", "refused", remark=_KEY)
    yield Verdict(f"{name}_temperature", "honoured", _name_samplings(role, "temperature"))
    yield Verdict(f"{name}_timeout_seconds", "honoured", _name_fields(role, "timeouts.silence", "timeouts.total"))
    if role == "optimizer_":
        yield Verdict(f"{name}_max_tokens", "warned", remark="`train.reply_tokens`, `train.rewrite_tokens`")
    else:
        yield Verdict(f"{name}_max_tokens", "honoured", "sampling.max_tokens", "of the target")
    yield Verdict(
        f"{name}_enable_thinking", "honoured", _name_samplings(role, "extra.chat_template_kwargs.enable_thinking")
    )


def _list_models() -> Iterator[Verdict]:
    yield Verdict("model_backend", "honoured", "model.type", "programs other than Codex and Claude Code are refused")
    yield Verdict("optimizer_backend", "honoured", "optimizer.type")
    yield Verdict("target_backend", "honoured", "model.type agent.harness")
    yield Verdict("optimizer_model", "honoured", "optimizer.name")
    yield Verdict("target_model", "honoured", "model.name")
    efforts = "sampling.extra.reasoning_effort train.sampling.extra.reasoning_effort"
    yield Verdict("reasoning_effort", "honoured", efforts, "absent: none is sent")
    yield Verdict("rewrite_reasoning_effort", "honoured", "train.rewrite_extra.reasoning_effort", "absent: `high`")
    yield Verdict("rewrite_max_completion_tokens", "honoured", "train.rewrite_tokens")
    yield Verdict("azure_endpoint", "honoured", "model.base_url optimizer.base_url")
    yield Verdict("azure_api_version", "honoured", "model.api_version optimizer.api_version")
    yield Verdict("azure_api_key", "refused", remark=_KEY)
    for role in _ROLES:
        yield from _list_azure(role)
    for role in _ROLES:
        yield from _list_qwen(role)
    yield Verdict("minimax_base_url", "honoured", "model.base_url")
    yield Verdict("minimax_api_key", "refused", remark=_KEY)
    yield Verdict("minimax_model", "honoured", "model.name", "absent: `target_model`")
    yield Verdict("minimax_temperature", "honoured", "sampling.temperature")
    yield Verdict("minimax_max_tokens", "honoured", "sampling.max_tokens")
    yield Verdict("minimax_enable_thinking", "honoured", "sampling.extra.chat_template_kwargs.enable_thinking")


def _list_programs() -> Iterator[Verdict]:
    installed = "slots have an installation of their own (`agent.harnesses`)"
    started = "the agent is started as a program"
    yield Verdict("codex_exec_path", "warned", remark=installed)
    yield Verdict("codex_exec_sandbox", "refused", remark="a slot is `workspace-write`; full access is warned of")
    yield Verdict("codex_exec_profile", "refused", remark="a slot does not have your `config.toml`")
    yield Verdict("codex_exec_full_auto", "warned", remark="the agent never asks, and its slot isolates it")
    yield Verdict("codex_exec_reasoning_effort", "honoured", "sampling.extra.reasoning_effort")
    yield Verdict("codex_exec_use_sdk", "warned", remark=started)
    yield Verdict("codex_exec_network_access", "honoured", "sandbox.network")
    yield Verdict("codex_exec_web_search", "refused", remark="the model of the run answers the agent")
    yield Verdict("codex_exec_approval_policy", "refused", remark="other than `never`: nobody is there to approve")
    yield Verdict("claude_code_exec_path", "warned", remark=installed)
    yield Verdict("claude_code_exec_profile", "honoured", "agent.harnesses.claude-code.command")
    yield Verdict("claude_code_exec_use_sdk", "warned", remark=started)
    yield Verdict("claude_code_exec_effort", "honoured", "sampling.extra.output_config.effort")
    thinking = "sampling.extra.thinking.budget_tokens sampling.max_tokens"
    yield Verdict("claude_code_exec_max_thinking_tokens", "honoured", thinking, "absent: 16384")
    yield Verdict("codex_trace_to_optimizer", "warned", remark="false: analysts always see what the agent did")


def _list_training() -> Iterator[Verdict]:
    derived = "SkillOpt computes it; a message says so"
    yield Verdict("num_epochs", "honoured", "train.epochs")
    yield Verdict("train_size", "warned", remark="all train tasks are used; an adapter gets it")
    yield Verdict("steps_per_epoch", "no effect there", remark=derived)
    yield Verdict("batches_per_epoch", "no effect there", remark=derived)
    yield Verdict("samples_per_epoch", "no effect there", remark=derived)
    yield Verdict("batch_size", "honoured", "train.batch_size")
    yield Verdict("accumulation", "honoured", "train.accumulation")
    yield Verdict("seed", "honoured", "train.seed", "splits have `split_seed`")
    yield Verdict("minibatch_size", "honoured", "train.minibatch_size")
    yield Verdict("merge_batch_size", "honoured", "train.merge_batch_size")
    yield Verdict("analyst_workers", "honoured", "optimizer.concurrency", "speed, not outcome")
    yield Verdict("failure_only", "honoured", "train.failure_only")
    yield Verdict("max_analyst_rounds", "no effect there", remark="a message says so")
    yield Verdict("edit_budget", "honoured", "train.edit_budget", "in sections `optimizer.learning_rate`")
    yield Verdict("min_edit_budget", "honoured", "train.min_edit_budget", "never above `edit_budget`, with a message")
    yield Verdict("lr_scheduler", "honoured", "train.schedule", "absent: `constant`")
    yield Verdict("lr_control_mode", "honoured", "train.control", "`none` is no limit here, with a message")
    yield Verdict("skill_update_mode", "honoured", "train.update_mode")
    yield Verdict("meta_edit_budget", "no effect there", remark="a message says so")
    yield Verdict("use_slow_update", "honoured", "train.slow.enabled", "absent: false")
    yield Verdict("slow_update_samples", "honoured", "train.slow.samples")
    yield Verdict("slow_update_gate_with_selection", "honoured", "train.slow.gated")
    yield Verdict("longitudinal_pair_policy", "honoured", "train.slow.pairs")
    yield Verdict("use_meta_skill", "honoured", "train.memory", "absent: false")
    yield Verdict("use_skill_aware_reflection", "honoured", "train.appendix.enabled")
    yield Verdict("skill_aware_appendix_source", "honoured", "train.appendix.sources")
    yield Verdict("skill_aware_consolidate_threshold", "honoured", "train.appendix.consolidate_above")
    yield Verdict("use_gate", "honoured", "train.gate.enabled")
    yield Verdict("gate_metric", "honoured", "train.gate.metric")
    yield Verdict("gate_mixed_weight", "honoured", "train.gate.mixed_weight")
    yield Verdict("sel_env_num", "honoured", "train.selection_size", "the first ones")
    yield Verdict("test_env_num", "honoured", "train.test_size")
    yield Verdict("eval_test", "honoured", "train.test", "initial, best and final skill")
    yield Verdict("env", "honoured", "env.name", "the six benchmarks are environments of Ludus")
    yield Verdict("skill_init", "honoured", "agent.skill")
    yield Verdict("out_root", "honoured", "run.out")


KEYS = (*_list_training(), *_list_models(), *_list_programs())

ENV_KEYS = (
    Verdict("split_mode", "honoured", "data.mode"),
    Verdict("split_ratio", "honoured", "data.ratio"),
    Verdict("split_seed", "honoured", "data.seed", "absent: 42; 0: that of the training"),
    Verdict("split_dir", "honoured", "env.path", "of a benchmark; of other environments `data.folder`"),
    Verdict("data_path", "honoured", "env.path", "of a benchmark; refused for other environments"),
    Verdict("split_output_dir", "warned", remark="splits are made in memory"),
    Verdict("limit", "honoured", "data.limit"),
    Verdict("workers", "honoured", "run.concurrency"),
    Verdict("exec_timeout", "honoured", "limits.rollout_seconds"),
    Verdict("max_turns", "honoured", "limits.turns"),
    Verdict("max_completion_tokens", "honoured", "sampling.max_tokens"),
    Verdict("max_steps", "honoured", "env.max_steps", "ALFWorld"),
    Verdict("max_api_workers", "warned", remark="ALFWorld: `run.concurrency`"),
    Verdict("image_detail", "warned", remark="DocVQA"),
    Verdict("shuffle_choices", "honoured", "env.shuffle_choices", "LiveMathematicianBench"),
    Verdict("use_theorem", "honoured", "env.use_theorem", "LiveMathematicianBench"),
    Verdict("use_sketch", "honoured", "env.use_sketch", "LiveMathematicianBench"),
    Verdict("data_dirs", "honoured", "env.docs", "OfficeQA: one folder"),
    Verdict("docs_dirs", "honoured", "env.docs", "OfficeQA: one folder"),
    Verdict("max_tool_turns", "honoured", "limits.turns", "OfficeQA"),
    Verdict("search_mode", "refused", remark="OfficeQA: other than `offline`; there is no search service"),
    Verdict("use_local_tools", "refused", remark="OfficeQA: false; the agent searches with tools"),
    Verdict("max_queries_per_turn", "no effect there", remark="OfficeQA, offline"),
    Verdict("search_api_url", "no effect there", remark="OfficeQA, offline"),
    Verdict("search_auth_env", "no effect there", remark="OfficeQA, offline"),
    Verdict("search_provider", "no effect there", remark="OfficeQA, offline"),
    Verdict("search_max_num_results", "no effect there", remark="OfficeQA, offline"),
    Verdict("search_timeout_seconds", "no effect there", remark="OfficeQA, offline"),
    Verdict("data_root", "honoured", "env.data", "SpreadsheetBench"),
    Verdict("mode", "warned", remark="SpreadsheetBench: the agent has a slot and turns"),
    Verdict("judge_model", "warned", remark="nothing reads it there"),
    Verdict("judge_max_completion_tokens", "warned", remark="nothing reads it there"),
    Verdict("judge_retries", "warned", remark="nothing reads it there"),
)

LATER_KEYS = (
    Verdict("use_semantic_density", "honoured", "train.gate.density"),
    Verdict("semantic_density_weight", "honoured", "train.gate.density_weight"),
    Verdict("leading_words", "honoured", "train.gate.leading_words"),
    Verdict(
        "target_qwen_chat_thinking_mode",
        "honoured",
        "sampling.extra.chat_template_kwargs.enable_thinking",
        "and others",
    ),
    Verdict("minimax_region", "refused", remark="give `minimax_base_url`"),
    Verdict("target_minimax_model", "no effect there", remark="and others of a role; a message says so"),
    Verdict("resolved_qwen_thinking_modes", "no effect there", remark="derived; a message says so"),
    Verdict("use_meta_reflect", "no effect there", remark="a message says so"),
    Verdict("human_feedback", "refused", remark="if it is enabled: a run does not wait for people"),
)
