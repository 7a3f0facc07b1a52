"""Verdicts on the names of verifiers: they are the published ones, and they are true."""

import re
from typing import Any

import pytest

from ludus.compat.verdicts import Verdict
from ludus.compat.verifiers_env.v0_standin.modules import MODULES, MissingName, list_provided
from ludus.compat.verifiers_env.verdicts import PAGE, V0_NAMES, V1_HOOKS, explain_missing

NAMES = (
    "DatasetBuilder Parser ThinkParser MaybeThinkParser XMLParser Rubric JudgeRubric RubricGroup MathRubric "
    "TextArenaEnv ReasoningGymEnv GymEnv CliAgentEnv HarborEnv MCPEnv BrowserEnv OpenEnvEnv Env EnvConfig Task "
    "Taskset TasksetConfig Harness HarnessConfig MCPTool MCPToolConfig SandboxConfig Toolset ToolsetConfig User "
    "UserConfig HarborTaskset HarborTasksetConfig CLIHarness MiniSWEAgent OpenCode Pi RLM Environment MultiTurnEnv "
    "SingleTurnEnv PythonEnv SandboxEnv StatefulToolEnv ToolEnv EnvGroup Client AnthropicMessagesClient "
    "OpenAIChatCompletionsClient OpenAICompletionsClient OpenAIResponsesClient RendererClient extract_boxed_answer "
    "extract_hash_answer load_example_dataset setup_logging log_level quiet_verifiers load_environment "
    "print_prompt_completions_sample cleanup metric reward advantage setup stop teardown update ensure_keys "
    "MissingKeyError get_model get_model_and_tokenizer RLConfig RLTrainer GRPOTrainer GRPOConfig grpo_defaults "
    "lora_defaults "
)
PUBLISHED = set(NAMES.split())
"""`verifiers.__all__` of release 0.1.14."""


def test_every_published_name_has_one_verdict():
    names = [verdict.name for verdict in V0_NAMES]
    assert sorted(names) == sorted(PUBLISHED)


def test_the_published_names_are_those_of_the_package():
    pytest.importorskip("verifiers.rubrics", reason="verifiers 0.1.14 is not installed")
    package: Any = pytest.importorskip("verifiers")
    assert set(package.__all__) == PUBLISHED


@pytest.mark.parametrize("verdict", V0_NAMES, ids=lambda verdict: verdict.name)
def test_a_name_is_provided_or_refused_with_the_way_on(verdict: Verdict):
    if verdict.outcome == "honoured":
        assert verdict.name in list_provided() and explain_missing(verdict.name) == ""
        return
    assert verdict.outcome == "refused" and verdict.name not in MODULES["verifiers"]
    with pytest.raises(MissingName, match=rf"verifiers\.{verdict.name} is not provided.*{re.escape(PAGE)}"):
        MODULES["verifiers"]["__getattr__"](verdict.name)


def test_an_unknown_name_is_only_unknown():
    with pytest.raises(AttributeError, match="has no attribute 'Absent'"):
        MODULES["verifiers"]["__getattr__"]("Absent")


def test_hooks_of_tasksets_are_those_of_the_package():
    v1: Any = pytest.importorskip("verifiers.v1", reason="verifiers 0.4 is not installed")
    if not hasattr(v1, "SingleAgentEnv"):
        pytest.skip("verifiers 0.4 is not installed")
    for verdict in V1_HOOKS:
        owner, _, name = verdict.name.removeprefix("@").rpartition(".")
        assert hasattr(getattr(v1, owner) if owner else v1, name), verdict.name
