"""What becomes of the published names of Hermes: the fields of its environments, their methods, and its modules."""

from ludus.compat.verdicts import Verdict

_NOMAD, _MODAL = "with `tool_pool_mode: nomad`", "with `tool_pool_mode: modal`"

FIELDS = (
    Verdict("enabled_toolsets", "honoured", remark="one without its provider is left out with a message, as there; "
            "one that neither system has is an error"),
    Verdict("disabled_toolsets", "honoured", remark="one that neither system has is an error"),
    Verdict("distribution", "honoured", remark="drawn with the seed of the group; each rollout records what was drawn "
            "and skipped. `ludus train` refuses it"),
    Verdict("max_agent_turns", "honoured", remark="replies of a rollout"),
    Verdict("system_prompt", "honoured", remark="the system message"),
    Verdict("agent_temperature", "honoured", remark="of the agent's requests"),
    Verdict("terminal_backend", "honoured", "sandbox.backend", "`local` is `bwrap`, isolated; `docker`, `modal`, "
            "`ssh`, `singularity` (`apptainer`); `daytona` is refused"),
    Verdict("dataset_name", "honoured", remark="given to the file"),
    Verdict("dataset_split", "honoured", remark="given to the file"),
    Verdict("prompt_field", "honoured", remark="given to the file"),
    Verdict("tool_call_parser", "honoured", "model.parser", "in token mode; one that is not there is `hermes`, with a "
            "message"),
    Verdict("tool_pool_mode", "honoured", "sandbox.backend", "`default` is the terminal backend"),
    Verdict("allow_network", "honoured", "sandbox.network"),
    Verdict("require_sandbox", "honoured", "sandbox.require_sandbox"),
    Verdict("purge_job_on_start", "honoured", "sandbox.nomad.purge_on_start", _NOMAD),
    Verdict("purge_job_on_shutdown", "refused", remark="if it is false: jobs are always removed"),
    Verdict("acquire_timeout_s", "honoured", "sandbox.acquire_seconds", "not with `tool_pool_mode: modal`, as there"),
    Verdict("nomad_address", "honoured", "sandbox.nomad.address", _NOMAD),
    Verdict("sandbox_job_id", "honoured", "sandbox.nomad.job_prefix", _NOMAD),
    Verdict("sandbox_image", "honoured", "sandbox.nomad.image", _NOMAD),
    Verdict("slots_per_container", "honoured", "sandbox.nomad.slots", _NOMAD),
    Verdict("min_containers", "honoured", "sandbox.warm", f"{_NOMAD}; slots that are kept ready, not containers"),
    Verdict("max_containers", "honoured", "sandbox.max_slots", f"{_NOMAD}, times `slots_per_container`"),
    Verdict("privileged", "honoured", "sandbox.nomad.privileged", _NOMAD),
    Verdict("driver", "honoured", "sandbox.nomad.driver", f"{_NOMAD}; `singularity` needs `singularity_image`"),
    Verdict("singularity_image", "honoured", "sandbox.nomad.image", f"{_NOMAD} and `driver: singularity`"),
    Verdict("modal_app_name", "honoured", "sandbox.modal.app", _MODAL),
    Verdict("modal_image", "honoured", "sandbox.modal.image", _MODAL),
    Verdict("modal_gpu", "honoured", "sandbox.modal.gpu", _MODAL),
    Verdict("modal_cpu", "honoured", "sandbox.modal.cpus", _MODAL),
    Verdict("modal_memory", "honoured", "sandbox.modal.memory_mb", _MODAL),
    Verdict("modal_slots_per_sandbox", "honoured", "sandbox.modal.slots", _MODAL),
    Verdict("modal_min_sandboxes", "honoured", "sandbox.warm", f"{_MODAL}; slots that are kept ready, not sandboxes"),
    Verdict("modal_max_sandboxes", "honoured", "sandbox.max_slots", f"{_MODAL}, times `modal_slots_per_sandbox`"),
    Verdict("modal_idle_timeout", "honoured", "sandbox.modal.idle_seconds", _MODAL),
    Verdict("modal_max_lifetime", "honoured", "sandbox.modal.lifetime_seconds", _MODAL),
    Verdict("modal_acquire_timeout", "honoured", "sandbox.acquire_seconds", _MODAL),
    Verdict("modal_execution_timeout", "honoured", "sandbox.command_seconds", f"{_MODAL}, if it is named and "
            "`terminal_timeout` is not; otherwise commands have 300 s, as there"),
    Verdict("modal_secrets", "honoured", "sandbox.modal.secrets", _MODAL),
    Verdict("modal_env_vars", "honoured", "sandbox.modal.env", _MODAL),
    Verdict("modal_workspace_base", "refused", remark="unless it is `/data`: slots see `/workspace`"),
)  # fmt: skip
"""The fields of `HermesAgentEnvConfig` in the sandbox branch."""

LATER_FIELDS = (
    Verdict("terminal_timeout", "honoured", "sandbox.command_seconds", "in every pool; if it is not named, 120 s, and "
            "300 s with Nomad and Modal"),
    Verdict("terminal_lifetime", "honoured", "sandbox.lifetime_seconds"),
    Verdict("tool_pool_size", "honoured", remark="tool calls at once"),
    Verdict("default_result_size_chars", "honoured", remark="a longer result is a preview, and a file in the slot"),
    Verdict("turn_budget_chars", "honoured", remark="all results of one turn"),
    Verdict("preview_size_chars", "honoured", remark="the length of a preview"),
    Verdict("tool_result_overrides", "honoured", remark="lengths for single tools"),
    Verdict("extra_body", "honoured", remark="more fields of the agent's requests"),
)  # fmt: skip
"""The fields that later versions added."""

METHODS = (
    Verdict("config_init", "honoured"),
    Verdict("setup", "honoured", remark="called once, before the first group"),
    Verdict("get_next_item", "honoured"),
    Verdict("format_prompt", "honoured"),
    Verdict("compute_reward", "honoured", remark="in a thread of its own; not if the file defines "
            "`verify_and_score_trajectory`"),
    Verdict("evaluate", "honoured"),
    Verdict("setup_trajectory_workspace", "honoured", remark="always, not with a pool alone"),
    Verdict("verify_and_score_trajectory", "honoured", remark="always, not with a pool alone"),
    Verdict("collect_trajectories", "honoured"),
    Verdict("collect_trajectory", "honoured", remark="a rollout that failed is run again in a fresh slot"),
    Verdict("_collect_trajectory_local", "honoured", remark="the rollouts of `tool_pool_mode: default`"),
    Verdict("_collect_trajectory_sandbox", "honoured", remark="the rollouts of a pool"),
    Verdict("_run_agent_loop", "honoured"),
    Verdict("_build_scored_item", "honoured", remark="returns `(item, backlog)`; `inference_logprobs` are cut with the "
            "ids"),
    Verdict("_resolve_tools_for_group", "honoured", remark="once for each group"),
    Verdict("_current_group_tools", "honoured", remark="each group has its own; outside of one, those of the last"),
    Verdict("_use_managed_server", "honoured", remark="whether the model gives exact ids"),
    Verdict("_use_sandbox_backend", "honoured", remark="whether there is a pool of Nomad or Modal"),
    Verdict("_start_sandbox_backend", "honoured", remark="called before `setup`; the pool itself is opened by the run"),
    Verdict("_stop_sandbox_backend", "honoured", remark="called after the last group"),
    Verdict("_sandbox_backend", "honoured", remark="`acquire`, `execute_batch`, `release` over the run's slots"),
    Verdict("env_manager", "honoured", remark="holds a run of `ludus serve`: it returns when the run ends. Ludus makes "
            "the groups"),
    Verdict("process_manager", "honoured", remark="the same for `ludus process` and `train`"),
    Verdict("wandb_log", "honoured", remark="numbers, texts and tables are in `metrics.jsonl`"),
    Verdict("add_rollouts_for_wandb", "honoured", remark="readable text"),
    Verdict("_format_trajectory_for_display", "honoured"),
    Verdict("_tool_error_buffer", "honoured", remark="`turn`, `tool`, `args`, `error`, `result`"),
)  # fmt: skip
"""The methods and attributes of `HermesAgentBaseEnv` that files define, change or use."""

MODULES = (
    Verdict("environments.hermes_base_env", "honoured", "ludus.compat.hermes"),
    Verdict("environments.agent_loop", "honoured", "ludus.compat.hermes"),
    Verdict("environments.tool_context", "honoured", "ludus.compat.hermes"),
    Verdict("environments.tool_call_parsers", "honoured", remark="`get_parser`; an unknown name is a KeyError"),
    Verdict("environments.patches", "honoured", remark="`apply_patches` has nothing to do"),
    Verdict("model_tools", "honoured", remark="`get_tool_definitions`, `handle_function_call`"),
    Verdict("toolset_distributions", "honoured", remark="drawn with the seed of the group"),
    Verdict("tools.terminal_tool", "honoured", remark="overrides and the end of single tasks"),
    Verdict("tools.budget_config", "honoured"),
    Verdict("dotenv", "honoured", remark="a stand-in that reads `NAME=value`, if the package is not installed"),
    Verdict("atropos.agent", "honoured", "ludus.compat.atropos_agent"),
    Verdict("atropos.tools", "honoured", "ludus.compat.atropos_agent"),
    Verdict("atropos.envs.agent_env", "honoured", "ludus.compat.atropos_agent"),
    Verdict("atropos.backends", "honoured", remark="`create_tool_backend` gives the run's slots"),
    Verdict("atropos.slots", "honoured", remark="`Slot`"),
    Verdict("atropos.slots.executor", "honoured", remark="`ExecutionResult`"),
)
"""The modules that exist while a file is loaded, beside those of atroposlib."""
