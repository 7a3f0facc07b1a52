"""What becomes of the names of atroposlib 0.4.0 that its files and configurations use."""

from collections.abc import Iterator

from ludus.compat.verdicts import Verdict

FILE = "the file reads it"
LOOP = "Ludus runs the loop"

ENV_FIELDS = (
    Verdict("group_size", "honoured", "env.group_size"),
    Verdict("max_num_workers", "honoured", "run.concurrency", "groups at once; `run.concurrency` counts rollouts"),
    Verdict("max_eval_workers", "honoured", remark=FILE),
    Verdict("max_num_workers_per_node", "honoured", "run.concurrency", "groups at once for each server"),
    Verdict("steps_per_eval", "honoured", "serve.eval_every", "every step counts, also with 1"),
    Verdict("max_token_length", "honoured", remark="told to the trajectory server; the file reads it, too"),
    Verdict("eval_handling", "honoured", "serve.eval_handling", "groups that run are finished"),
    Verdict("eval_limit_ratio", "honoured", "serve.eval_limit_ratio"),
    Verdict("inference_weight", "honoured", "serve.weight", "0 or less is 1"),
    Verdict("batch_size", "no effect there", remark="the trainer sets it; the file reads it"),
    Verdict("max_batches_offpolicy", "honoured", "serve.max_batches_offpolicy", "below 1 is refused"),
    Verdict("tokenizer_name", "honoured", "model.tokenizer", "in token mode; in chat mode only the file uses it"),
    Verdict("use_wandb", "honoured", "tracking.use", "if wandb is installed; metrics are always in `metrics.jsonl`"),
    Verdict("rollout_server_url", "honoured", "serve.server"),
    Verdict("total_steps", "honoured", "serve.steps", "the number of groups of `process`; `--env.limit` is the same"),
    Verdict("wandb_name", "honoured", "serve.name", "unset: the name of the class"),
    Verdict("num_rollouts_to_keep", "honoured", remark="groups in the table of rollouts"),
    Verdict("num_rollouts_per_group_for_logging", "honoured", remark="rollouts of a group in that table"),
    Verdict("ensure_scores_are_not_same", "honoured", remark="`process` presets False; dropped groups are counted"),
    Verdict("data_path_to_save_groups", "honoured", remark="beside `atropos_groups.jsonl`; no file is overwritten"),
    Verdict("data_dir_to_save_evals", "honoured", remark="unset: `evals/` in the run directory"),
    Verdict("min_items_sent_before_logging", "honoured", remark="in `serve`"),
    Verdict("include_messages", "honoured", remark="`process` presets True"),
    Verdict("min_batch_allocation", "honoured", "serve.min_batch_allocation"),
    Verdict("worker_timeout", "honoured", remark="the time limit of one group"),
    Verdict("thinking_mode", "honoured", remark="a field of chat requests, in the form of OpenAI or OpenRouter"),
    Verdict("reasoning_effort", "honoured", remark="the same"),
    Verdict("max_reasoning_tokens", "honoured", remark="the same"),
    Verdict("custom_thinking_prompt", "honoured", remark=FILE),
)
"""The fields of `BaseEnvConfig`, as `--env.NAME`."""

SERVER_FIELDS = (
    Verdict("timeout", "honoured", "model.timeouts"),
    Verdict("num_max_requests_at_once", "honoured", "model.concurrency"),
    Verdict("num_requests_for_eval", "honoured", remark='requests with `split="eval"` at once'),
    Verdict("model_name", "honoured", "model.name"),
    Verdict("rolling_buffer_length", "no effect there"),
    Verdict(
        "server_type",
        "honoured",
        "model.mode model.engine",
        "`openai`: chat; `vllm`: the `/generate` server of Atropos' trainers (for a plain vLLM add `--model.engine "
        "vllm`); `sglang`; `trl` is refused: it gives no logprobs",
    ),
    Verdict("tokenizer_name", "honoured", "model.tokenizer", "in token mode"),
    Verdict("api_key", "honoured", "model.api_key_var", "used, and never recorded"),
    Verdict("base_url", "honoured", "model.base_url"),
    Verdict("n_kwarg_is_ignored", "honoured", remark="every reply is a request of its own in any case"),
    Verdict("health_check", "honoured", remark="servers are judged by their answers in any case"),
    Verdict("slurm", "refused", remark="without an address of the servers"),
    Verdict("testing", "refused", remark="use a scripted model"),
    Verdict("max_n_completions", "honoured", remark="every reply is a request of its own in any case"),
    Verdict("proxy_url", "refused", remark="exact ids come from the model itself"),
)
"""The fields of `APIServerConfig`, as `--openai.NAME`, and of `ServerManagerConfig`."""

METHODS = (
    Verdict("name", "honoured"),
    Verdict("env_config_cls", "honoured"),
    Verdict("server_cls", "warned", remark="servers are those of the settings"),
    Verdict("derived_batch_size", "warned", remark=LOOP),
    Verdict("config_init", "honoured"),
    Verdict("collect_trajectory", "honoured"),
    Verdict("collect_trajectories", "honoured"),
    Verdict("postprocess_histories", "honoured"),
    Verdict("get_next_item", "honoured"),
    Verdict("evaluate", "honoured"),
    Verdict("load_checkpoint", "honoured"),
    Verdict("save_checkpoint", "honoured"),
    Verdict("setup", "honoured"),
    Verdict("setup_wandb", "warned", remark="the section `tracking`"),
    Verdict("register_env", "warned", remark=LOOP),
    Verdict("get_server_info", "warned", remark=LOOP),
    Verdict("perf_stats", "honoured", remark="may be called; times are in the summary"),
    Verdict("create_rollout_table", "honoured"),
    Verdict("add_rollouts_for_wandb", "honoured"),
    Verdict("wandb_log", "honoured"),
    Verdict("evaluate_log", "honoured"),
    Verdict("handle_send_to_api", "warned", remark="groups are returned, not sent by the file"),
    Verdict("handle_env", "warned", remark=LOOP),
    Verdict("cleanup", "honoured"),
    Verdict("get_status", "warned", remark=LOOP),
    Verdict("env_step_checks", "warned", remark=LOOP),
    Verdict("add_train_workers", "warned", remark=LOOP),
    Verdict("env_manager", "warned", remark=LOOP),
    Verdict("process_manager", "warned", remark=LOOP),
    Verdict("cli", "honoured", remark="`python FILE.py process`"),
    Verdict("get_cli_serve_config_cls", "warned", remark="the command line is that of Ludus"),
    Verdict("get_cli_process_config_cls", "warned", remark="the same"),
    Verdict("get_cli_evaluate_config_cls", "warned", remark="the same"),
)
"""What files define of `BaseEnv`. `warned`: a file that defines it is told that it is not called."""

_PACKAGE = "the package atroposlib has it: install it"
MODULES = (
    Verdict("atroposlib.envs.base", "honoured"),
    Verdict("atroposlib.envs.server_handling.server_manager", "honoured"),
    Verdict("atroposlib.envs.server_handling.server_baseline", "honoured"),
    Verdict("atroposlib.envs.server_handling.openai_server", "honoured"),
    Verdict("atroposlib.envs.server_handling.managed_server", "honoured"),
    Verdict("atroposlib.envs.server_handling.vllm_server", "honoured"),
    Verdict("atroposlib.type_definitions", "honoured"),
    Verdict("atroposlib.utils.tokenize_for_trainer", "honoured"),
    Verdict("atroposlib.utils.tool_call_parser", "honoured", remark="compared with the original on random inputs"),
    Verdict("atroposlib.utils.message_history_utils", "honoured", remark="compared with the original"),
    Verdict("atroposlib.utils.best_of_n_selection", "honoured", remark="compared with the original"),
    Verdict("atroposlib.utils.io", "honoured"),
    Verdict("atroposlib.envs.eval", "refused", remark=_PACKAGE),
    Verdict("atroposlib.envs.reward_fns", "refused", remark=_PACKAGE),
    Verdict("atroposlib.envs.reward_fns.combined_reward", "refused", remark=_PACKAGE),
    Verdict("atroposlib.envs.reward_fns.registry", "refused", remark=_PACKAGE),
)
"""Modules that published files import."""

NOT_CALLED = frozenset(each.name for each in METHODS if each.outcome == "warned")


def list_not_called(kind: type, home: str = "ludus") -> Iterator[str]:
    """What a file defines that is not called here. `home`: the package of the base classes; what one of these defines
    is called."""
    own = [vars(cls) for cls in kind.__mro__ if cls.__module__.partition(".")[0] != home]
    based = [vars(cls) for cls in kind.__mro__ if cls.__module__.partition(".")[0] == home]
    for name in (verdict.name for verdict in METHODS if verdict.name in NOT_CALLED):
        if any(names.get(name) is not None for names in own) and not any(names.get(name) for names in based):
            yield name
