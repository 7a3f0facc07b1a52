"""Policies made of settings."""

from pathlib import Path

import pytest
from tests.config_kit import SERVER, write_text

from ludus.agent_settings import AgentSettings, HarnessSettings
from ludus.config import load
from ludus.config.build_agent import build_env, build_harness, build_policy, build_slot
from ludus.config.build_models import build_ledger, build_model
from ludus.env import Env
from ludus.errors import ConfigError
from ludus.harness.known import CODEX, KNOWN
from ludus.models.scripted import ScriptedModel
from ludus.models.settings import EmbeddedSettings, OpenAISettings
from ludus.runner import Runner
from ludus.sandbox import SandboxSpec
from ludus.tools.toolsets import BUILTIN
from ludus.types import Task


@pytest.mark.parametrize(
    ("flags", "kind", "context"),
    [
        ([], EmbeddedSettings, 3584),
        ([("model.mode", "token")], EmbeddedSettings, 3584),
        ([("model.context", "8192")], EmbeddedSettings, 7680),
        ([("model.threads", "1"), ("limits.context_tokens", "1000")], EmbeddedSettings, 1000),
        (
            [("model.mode", "token"), ("model.base_url", "http://localhost"), ("model.name", "x")],
            OpenAISettings,
            None,
        ),
    ],
)
def test_the_context_of_the_embedded_model_is_known(flags, kind, context):
    config = load(flags=[("env.name", "gsm8k"), *flags])
    assert isinstance(config.model, kind)
    policy = build_policy(config, build_env(config), ScriptedModel(["unused"]), BUILTIN)
    assert policy.limits.context_tokens == context


def test_the_sandbox_section_overrides_the_environment_s_slot():
    def build(name: str, *flags: tuple[str, str]) -> tuple[Env, SandboxSpec | None]:
        config = load([], [("env.name", name), *flags])
        env = build_env(config)
        return env, build_slot(config, env)

    plain, slot = build("terminal-test")
    assert slot == SandboxSpec()
    changed, slot = build("terminal-test", ("sandbox.network", "true"))
    assert slot == SandboxSpec(network=True)
    assert type(changed) is type(plain) and changed.sandbox == SandboxSpec(), "the environment itself stays as it is"
    assert Runner(changed, slot=slot).make_spec(Task(id="t", prompt="p")) == SandboxSpec(network=True)
    _, slot = build("gsm8k", ("sandbox.network", "true"))
    assert slot is None


def test_a_policy_leaves_the_toolsets_to_the_environment_unless_they_are_set():
    def toolsets(*flags: tuple[str, str]) -> tuple[str, ...] | None:
        settings = load([], [("env.name", "terminal-test"), ("model.type", "scripted"), *flags])
        model = build_model(load([], [*SERVER]).model, build_ledger(settings))
        return build_policy(settings, build_env(settings), model, BUILTIN).toolsets

    assert toolsets() is None
    assert toolsets(("tools.disabled", "terminal")) == ("file",)
    assert toolsets(("tools.enabled", "coding"), ("tools.disabled", "code")) == ("terminal", "file")
    assert toolsets(("tools.enabled", "[]")) == ()
    with pytest.raises(ConfigError, match="did you mean 'terminal'"):
        toolsets(("tools.enabled", "terminl"))


def test_a_skill_is_read_from_its_file(tmp_path: Path):
    def policy(path: str):
        settings = load([], [("env.name", "gsm8k"), ("agent.skill", path)])
        return build_policy(
            settings, build_env(settings), build_model(load([], SERVER).model, build_ledger(settings)), BUILTIN
        )

    skill = policy(str(write_text(tmp_path, "Be brief.", "SKILL.md"))).skill
    assert skill is not None and skill.text == "Be brief."
    with pytest.raises(ConfigError, match=r"^agent\.skill: there is no file none\.md$"):
        policy("none.md")


def test_no_harness_is_the_loop():
    assert build_harness(AgentSettings()) is None


def test_an_unknown_agent_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match=r"agent.harness: 'codx' is unknown; did you mean 'codex'\?"):
        build_harness(AgentSettings(harness="codx"))


def test_an_agent_in_the_settings_needs_a_command():
    with pytest.raises(ConfigError, match=r"agent.harnesses.mine.command is not set"):
        build_harness(AgentSettings(harness="mine", harnesses={"mine": HarnessSettings()}))


def test_a_variable_with_an_impossible_name_is_refused():
    mine = HarnessSettings(command="go", env={"NO-WAY": "x"})
    with pytest.raises(ConfigError, match=r"agent.harnesses.mine.env: 'NO-WAY' is not the name of a variable"):
        build_harness(AgentSettings(harness="mine", harnesses={"mine": mine}))


def test_a_known_agent_can_be_changed(monkeypatch):
    mine = HarnessSettings(model="gpt-5", env={"RUST_LOG": "debug"})
    monkeypatch.setattr("ludus.harness.known.find_installation", lambda harness, folder: harness)
    found = build_harness(AgentSettings(harness="codex", harnesses={"codex": mine}))
    assert found is not None
    assert (found.command, found.skills, found.model) == (CODEX.command, CODEX.skills, "gpt-5")
    assert found.env == {**CODEX.env, "RUST_LOG": "debug"}


def test_a_known_agent_that_is_in_the_image_needs_no_installation_here(monkeypatch, tmp_path):
    monkeypatch.setenv("LUDUS_AGENTS", str(tmp_path))
    mine = HarnessSettings(command="claude -p --dangerously-skip-permissions --model {model}")
    found = build_harness(AgentSettings(harness="claude-code", harnesses={"claude-code": mine}))
    assert found is not None
    assert (found.mounts, found.env) == ((), KNOWN["claude-code"].env)
