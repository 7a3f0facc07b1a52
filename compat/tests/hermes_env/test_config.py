"""The lengths of tool results in `HermesAgentEnvConfig`."""

import pytest

pytest.importorskip("pydantic")

from ludus.compat.hermes_env.config import HermesAgentEnvConfig


def test_the_budget_of_a_config_becomes_the_limits_of_the_loop():
    config = HermesAgentEnvConfig(default_result_size_chars=10, turn_budget_chars=20, preview_size_chars=5)
    limits = config.build_budget_config().make_limits(turns=3, seconds=7.0)
    assert (limits.turns, limits.tool_seconds) == (3, 7.0)
    assert (limits.result_chars, limits.turn_chars, limits.preview_chars) == (10, 20, 5)
