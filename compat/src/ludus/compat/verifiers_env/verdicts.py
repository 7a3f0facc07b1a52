"""What becomes of the names of `verifiers`: those of release 0.1, which environments import, and the hooks of tasksets.

`V0_NAMES` are the public names of release 0.1.14. They are honoured by that package if it is installed, and else by
`v0_standin`, whose modules refuse what this table refuses. `V1_HOOKS` are what a taskset of 0.4 can define.
"""

from collections.abc import Iterable

from ludus.compat.verdicts import Outcome, Verdict

PAGE = "compat/docs/verifiers.md"
_TASKSETS = "tasksets of 0.1.14: install verifiers==0.1.14, or write it for 0.4"
_TRAINING = "train with `ludus rl`, `ludus serve` or `ludus train`"
_CLIENTS = "the model is that of the run: `--model.base_url`"
_SLOTS = "runs code in Prime's cloud: write it as an environment of Ludus, whose tools run in a slot"


def _list(names: str, outcome: Outcome, becomes: str = "", remark: str = "") -> Iterable[Verdict]:
    return (Verdict(name, outcome, becomes, remark) for name in names.split())


V0_NAMES: tuple[Verdict, ...] = (
    *_list("SingleTurnEnv MultiTurnEnv ToolEnv StatefulToolEnv EnvGroup Environment", "honoured"),
    *_list("Rubric RubricGroup", "honoured"),
    Verdict("JudgeRubric", "honoured", remark="asks its judge_client, by default that of the package openai, itself"),
    Verdict("MathRubric", "honoured", remark="needs math-verify: the extra `math`"),
    *_list("Parser ThinkParser MaybeThinkParser XMLParser", "honoured"),
    *_list("extract_boxed_answer extract_hash_answer load_environment ensure_keys MissingKeyError", "honoured"),
    *_list("stop cleanup teardown DatasetBuilder", "honoured"),
    *_list("setup_logging log_level quiet_verifiers", "honoured", remark="what an environment logs goes to stderr"),
    Verdict("load_example_dataset", "refused", remark="load the data with datasets.load_dataset"),
    Verdict("print_prompt_completions_sample", "refused", remark="look at rollouts with `ludus show`"),
    *_list("SandboxEnv PythonEnv CliAgentEnv BrowserEnv", "refused", remark=_SLOTS),
    Verdict("ReasoningGymEnv", "refused", remark="run `ludus evaluate reasoning-gym`"),
    Verdict("HarborEnv", "refused", remark="run `ludus evaluate harbor`"),
    Verdict("OpenEnvEnv", "refused", remark="run `ludus evaluate openenv:URL`"),
    Verdict("MCPEnv", "refused", remark="install verifiers==0.1.14; environments of Ludus have `tools.mcp`"),
    *_list("TextArenaEnv GymEnv", "refused", remark="install verifiers==0.1.14"),
    *_list("Env EnvConfig Task Taskset TasksetConfig Harness HarnessConfig", "refused", remark=_TASKSETS),
    *_list("MCPTool MCPToolConfig SandboxConfig Toolset ToolsetConfig User UserConfig", "refused", remark=_TASKSETS),
    *_list("HarborTaskset HarborTasksetConfig CLIHarness MiniSWEAgent OpenCode Pi RLM", "refused", remark=_TASKSETS),
    *_list("setup update metric reward advantage", "refused", remark=_TASKSETS),
    *_list("Client AnthropicMessagesClient OpenAIChatCompletionsClient", "refused", remark=_CLIENTS),
    *_list("OpenAICompletionsClient OpenAIResponsesClient RendererClient", "refused", remark=_CLIENTS),
    *_list("get_model get_model_and_tokenizer RLConfig RLTrainer", "refused", remark=_TRAINING),
    *_list("GRPOTrainer GRPOConfig grpo_defaults lora_defaults", "refused", remark=_TRAINING),
)
"""Without the package. With verifiers 0.1.14 all of them are its own."""

V1_HOOKS: tuple[Verdict, ...] = (
    *_list("Taskset.load Taskset.toolsets Task.toolsets", "honoured"),
    Verdict("Task.setup", "honoured", remark="an error before the first reply is tried again"),
    Verdict("Task.finalize", "honoured"),
    Verdict("@reward", "honoured", remark="the sum with the weights is `value`, each is a part"),
    Verdict("@metric", "honoured", remark="a part of the score"),
    Verdict("@stop", "honoured", remark="its name is the stop condition in the record"),
    *_list("Env.setup Env.run Env.finalize Env.start Env.stop", "honoured"),
    Verdict("Task.validate", "no effect there", remark="it is for the package's own command"),
    Verdict("Env.complete", "no effect there", remark="it is for the package's own resume"),
)
"""Hooks of tasksets and environments of 0.4. It has no rewards of groups: its episodes are independent."""

_REFUSED = {verdict.name: verdict for verdict in V0_NAMES if verdict.outcome == "refused"}


def explain_missing(name: str) -> str:
    """How to go on without a name of release 0.1; empty if the name is not refused."""
    if name not in _REFUSED:
        return ""
    return f"verifiers.{name} is not provided without verifiers==0.1.14: {_REFUSED[name].remark} ({PAGE})"
