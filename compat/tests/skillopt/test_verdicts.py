"""What becomes of SkillOpt's keys: each verdict is tried with a file that has the key."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest

from ludus.compat.skillopt.config_file import read_config
from ludus.compat.skillopt.verdicts import ENV_KEYS, KEYS, LATER_KEYS
from ludus.compat.verdicts import Verdict
from ludus.config import assemble
from ludus.config.reading import Layer
from ludus.errors import ConfigError

PUBLISHED = """
    accumulation analyst_workers azure_api_key azure_api_version azure_endpoint azure_openai_ad_scope
    azure_openai_api_key azure_openai_api_version azure_openai_auth_mode azure_openai_endpoint
    azure_openai_managed_identity_client_id batch_size batches_per_epoch claude_code_exec_effort
    claude_code_exec_max_thinking_tokens claude_code_exec_path claude_code_exec_profile claude_code_exec_use_sdk
    codex_exec_approval_policy codex_exec_full_auto codex_exec_network_access codex_exec_path codex_exec_profile
    codex_exec_reasoning_effort codex_exec_sandbox codex_exec_use_sdk codex_exec_web_search codex_trace_to_optimizer
    edit_budget env eval_test failure_only gate_metric gate_mixed_weight longitudinal_pair_policy lr_control_mode
    lr_scheduler max_analyst_rounds merge_batch_size meta_edit_budget min_edit_budget minibatch_size minimax_api_key
    minimax_base_url minimax_enable_thinking minimax_max_tokens minimax_model minimax_temperature model_backend
    num_epochs optimizer_azure_openai_ad_scope optimizer_azure_openai_api_key optimizer_azure_openai_api_version
    optimizer_azure_openai_auth_mode optimizer_azure_openai_endpoint
    optimizer_azure_openai_managed_identity_client_id optimizer_backend optimizer_model optimizer_qwen_chat_api_key
    optimizer_qwen_chat_base_url optimizer_qwen_chat_enable_thinking optimizer_qwen_chat_max_tokens
    optimizer_qwen_chat_temperature optimizer_qwen_chat_timeout_seconds out_root qwen_chat_api_key qwen_chat_base_url
    qwen_chat_enable_thinking qwen_chat_max_tokens qwen_chat_temperature qwen_chat_timeout_seconds reasoning_effort
    rewrite_max_completion_tokens rewrite_reasoning_effort samples_per_epoch seed sel_env_num
    skill_aware_appendix_source skill_aware_consolidate_threshold skill_init skill_update_mode
    slow_update_gate_with_selection slow_update_samples steps_per_epoch target_azure_openai_ad_scope
    target_azure_openai_api_key target_azure_openai_api_version target_azure_openai_auth_mode
    target_azure_openai_endpoint target_azure_openai_managed_identity_client_id target_backend target_model
    target_qwen_chat_api_key target_qwen_chat_base_url target_qwen_chat_enable_thinking target_qwen_chat_max_tokens
    target_qwen_chat_temperature target_qwen_chat_timeout_seconds test_env_num train_size use_gate use_meta_skill
    use_skill_aware_reflection use_slow_update
"""
"""The keys of SkillOpt 0.2.0 (`skillopt.config`), and two that its trainer derives."""


class Trial(NamedTuple):
    """A value to try a key with, and the keys beside it."""

    value: Any
    beside: Mapping[str, Any] = MappingProxyType({})


QWEN = {"optimizer_backend": "qwen_chat", "target_backend": "qwen_chat"}
MINIMAX = {"target_backend": "minimax_chat"}
CODEX = {"target_backend": "codex_exec"}
CLAUDE = {"target_backend": "claude_code_exec"}
TRIALS: dict[str, Trial] = {
    "model_backend": Trial("claude"),
    "optimizer_backend": Trial("claude_chat"),
    "target_backend": Trial("claude_code_exec"),
    "optimizer_model": Trial("gpt-o"),
    "target_model": Trial("gpt-t"),
    "reasoning_effort": Trial("low"),
    "rewrite_reasoning_effort": Trial("low", {"skill_update_mode": "rewrite"}),
    "rewrite_max_completion_tokens": Trial(9000),
    "azure_endpoint": Trial("https://x"),
    "azure_api_version": Trial("2025-01-01"),
    "codex_trace_to_optimizer": Trial(False, CODEX),
    "minimax_base_url": Trial("http://m/v1", MINIMAX),
    "minimax_model": Trial("m", MINIMAX),
    "minimax_temperature": Trial(0.1, MINIMAX),
    "minimax_max_tokens": Trial(99, MINIMAX),
    "minimax_enable_thinking": Trial("true", MINIMAX),
    "minimax_api_key": Trial("k", MINIMAX),
    "minimax_region": Trial("cn", MINIMAX),
    "target_minimax_model": Trial("x"),
    "resolved_qwen_thinking_modes": Trial({"target": "off"}),
    "target_qwen_chat_thinking_mode": Trial("enabled", QWEN),
    "codex_exec_path": Trial("/opt/codex", CODEX),
    "codex_exec_sandbox": Trial("read-only", CODEX),
    "codex_exec_profile": Trial("fast", CODEX),
    "codex_exec_full_auto": Trial(True, CODEX),
    "codex_exec_reasoning_effort": Trial("high", CODEX),
    "codex_exec_use_sdk": Trial("sdk", CODEX),
    "codex_exec_network_access": Trial(True, CODEX),
    "codex_exec_web_search": Trial(True, CODEX),
    "codex_exec_approval_policy": Trial("on-request", CODEX),
    "claude_code_exec_path": Trial("/opt/claude", CLAUDE),
    "claude_code_exec_profile": Trial("careful", CLAUDE),
    "claude_code_exec_use_sdk": Trial("cli", CLAUDE),
    "claude_code_exec_effort": Trial("high", CLAUDE),
    "claude_code_exec_max_thinking_tokens": Trial(2048, CLAUDE),
    "num_epochs": Trial(2),
    "train_size": Trial(400),
    "steps_per_epoch": Trial(3),
    "batches_per_epoch": Trial(3),
    "samples_per_epoch": Trial(9),
    "batch_size": Trial(5),
    "accumulation": Trial(2),
    "seed": Trial(7),
    "minibatch_size": Trial(3),
    "merge_batch_size": Trial(3),
    "analyst_workers": Trial(2),
    "failure_only": Trial(True),
    "max_analyst_rounds": Trial(3),
    "edit_budget": Trial(9),
    "min_edit_budget": Trial(1),
    "lr_scheduler": Trial("linear"),
    "lr_control_mode": Trial("autonomous"),
    "skill_update_mode": Trial("full_rewrite"),
    "meta_edit_budget": Trial(2),
    "use_slow_update": Trial(True),
    "slow_update_samples": Trial(5),
    "slow_update_gate_with_selection": Trial(True),
    "longitudinal_pair_policy": Trial("delta"),
    "use_meta_skill": Trial(True),
    "use_skill_aware_reflection": Trial(True),
    "skill_aware_appendix_source": Trial("failure_only"),
    "skill_aware_consolidate_threshold": Trial(20),
    "use_gate": Trial(False),
    "gate_metric": Trial("soft"),
    "gate_mixed_weight": Trial(0.1),
    "sel_env_num": Trial(3),
    "test_env_num": Trial(3),
    "eval_test": Trial(False),
    "env": Trial("searchqa"),
    "skill_init": Trial("s.md"),
    "out_root": Trial("o"),
    "use_semantic_density": Trial(True),
    "semantic_density_weight": Trial(0.1),
    "leading_words": Trial(["must"]),
    "use_meta_reflect": Trial(False),
    "human_feedback": Trial({"enabled": True}),
    "split_mode": Trial("split_dir", {"split_dir": "d"}),
    "split_ratio": Trial("1:1:1"),
    "split_seed": Trial(5),
    "split_dir": Trial("d", {"env": "searchqa", "split_mode": "split_dir"}),
    "data_path": Trial("f", {"env": "searchqa"}),
    "split_output_dir": Trial("s"),
    "limit": Trial(3),
    "workers": Trial(3),
    "exec_timeout": Trial(33),
    "max_turns": Trial(3),
    "max_completion_tokens": Trial(33),
    "max_steps": Trial(3, {"env": "alfworld"}),
    "max_api_workers": Trial(3, {"env": "alfworld"}),
    "image_detail": Trial("high", {"env": "docvqa"}),
    "shuffle_choices": Trial(False, {"env": "livemathematicianbench"}),
    "use_theorem": Trial(True, {"env": "livemathematicianbench"}),
    "use_sketch": Trial(True, {"env": "livemathematicianbench"}),
    "data_dirs": Trial(["d"], {"env": "officeqa"}),
    "docs_dirs": Trial("d", {"env": "officeqa"}),
    "max_tool_turns": Trial(3, {"env": "officeqa"}),
    "search_mode": Trial("online", {"env": "officeqa"}),
    "use_local_tools": Trial(False, {"env": "officeqa"}),
    "max_queries_per_turn": Trial(3, {"env": "officeqa"}),
    "search_api_url": Trial("http://s", {"env": "officeqa"}),
    "search_auth_env": Trial("A", {"env": "officeqa"}),
    "search_provider": Trial("p", {"env": "officeqa"}),
    "search_max_num_results": Trial(3, {"env": "officeqa"}),
    "search_timeout_seconds": Trial(3, {"env": "officeqa"}),
    "data_root": Trial("d", {"env": "spreadsheetbench"}),
    "mode": Trial("multi", {"env": "spreadsheetbench"}),
    "judge_model": Trial("m", {"env": "searchqa"}),
    "judge_max_completion_tokens": Trial(3, {"env": "searchqa"}),
    "judge_retries": Trial(3, {"env": "searchqa"}),
}
BY_ENDING = {
    "_openai_endpoint": Trial("https://x"),
    "_openai_api_version": Trial("2025-01-01"),
    "_api_key": Trial("k"),
    "_openai_auth_mode": Trial("openai"),
    "_ad_scope": Trial("s"),
    "_client_id": Trial("c"),
    "_chat_base_url": Trial("http://q/v1", QWEN),
    "_chat_temperature": Trial(0.1, QWEN),
    "_chat_timeout_seconds": Trial(33, QWEN),
    "_chat_max_tokens": Trial(99, QWEN),
    "_chat_enable_thinking": Trial(True, QWEN),
}
"""For keys that several servers and roles have."""


def find_trial(name: str) -> Trial:
    return TRIALS.get(name) or next(trial for ending, trial in BY_ENDING.items() if name.endswith(ending))


def read(folder: Path, keys: Mapping[str, Any]) -> tuple[Any, str]:
    """The settings of a file with these keys, and its notes."""
    path = folder / "flat.yaml"
    path.write_bytes(msgspec.yaml.encode({"env": "gsm8k", **keys}))
    given = read_config(path)
    config = assemble([Layer(str(path), given.tree)])
    return msgspec.to_builtins(config) | {"env": given.tree["env"]}, "\n".join(given.notes)


def look_up(settings: Any, path: str) -> Any:
    for name in path.split("."):
        settings = settings.get(name) if isinstance(settings, dict) else None
    return settings


def test_every_published_key_has_a_verdict():
    assert sorted(verdict.name for verdict in KEYS) == sorted(PUBLISHED.split())
    names = [verdict.name for verdict in (*KEYS, *ENV_KEYS, *LATER_KEYS)]
    assert len(set(names)) == len(names)


@pytest.mark.filterwarnings("ignore")
def test_the_published_keys_are_those_of_the_package():
    pytest.importorskip("skillopt", reason="compares with the original, if it is installed", exc_type=ImportError)
    from skillopt.config import _FLATTEN_MAP

    derived = {"batches_per_epoch", "samples_per_epoch"}
    assert {*_FLATTEN_MAP.values(), *derived} == set(PUBLISHED.split())


@pytest.mark.parametrize("verdict", [*KEYS, *ENV_KEYS, *LATER_KEYS], ids=lambda verdict: verdict.name)
def test_a_key_becomes_what_its_verdict_says(tmp_path: Path, verdict: Verdict):
    trial = find_trial(verdict.name)
    without, _ = read(tmp_path, trial.beside)
    keys = {**trial.beside, verdict.name: trial.value}
    if verdict.outcome == "refused":
        with pytest.raises(ConfigError, match=f"{verdict.name}|search_mode"):
            read(tmp_path, keys)
        return
    settings, notes = read(tmp_path, keys)
    kept = settings["run"].pop("notes", None)
    without["run"].pop("notes", None)
    if verdict.outcome == "honoured":
        assert verdict.becomes
        for path in verdict.becomes.split():
            assert look_up(settings, path) != look_up(without, path), path
    else:
        assert settings == without
    told = "a message says so" in verdict.remark or verdict.outcome == "warned"
    if told:
        own = {"meta_edit_budget": "meta_learning_rate"}.get(verdict.name, verdict.name)
        assert own in notes and any(own in note for note in kept), "on the screen, and in the run's record"
