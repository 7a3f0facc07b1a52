"""Fields of `AgentEnvConfig` that cannot be honoured are refused by name."""

import pytest

pytest.importorskip("pydantic")

from ludus.compat.hermes_env.agent_env_config import AgentEnvConfig, refuse_agent_fields
from ludus.errors import ConfigError


def test_the_defaults_are_honoured():
    refuse_agent_fields(AgentEnvConfig().model_dump())
    refuse_agent_fields({"tool_server_url": "inprocess", "a_field_of_the_author": 3})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tool_batch_window_ms", 50),
        ("modal_function_name", "mine"),
        ("modal_volume_name", "cache"),
        ("modal_volume_mount_path", "/mnt"),
        ("tool_server_token", "secret"),
        ("tool_server_url", "http://127.0.0.1:1"),
    ],
)
def test_other_values_are_refused_with_the_field(name: str, value: object):
    with pytest.raises(ConfigError, match=f"^env.{name}") as refused:
        refuse_agent_fields({name: value})
    assert "secret" not in str(refused.value)
