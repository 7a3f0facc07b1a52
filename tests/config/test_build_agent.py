"""Policies made of settings."""

import pytest

from ludus.config import load
from ludus.config.build_agent import build_env, build_policy
from ludus.models.embedded import EmbeddedSettings
from ludus.models.openai import OpenAISettings
from ludus.models.scripted import ScriptedModel
from ludus.tools.toolsets import BUILTIN


@pytest.mark.parametrize(
    ("flags", "kind", "context"),
    [
        ([], EmbeddedSettings, 3584),
        ([("model.mode", "token")], EmbeddedSettings, 3584),
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
