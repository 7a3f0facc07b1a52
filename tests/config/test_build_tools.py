"""Toolsets made of settings."""

import pytest

from ludus.config import load
from ludus.config.build_agent import build_env
from ludus.config.build_tools import build_distribution
from ludus.errors import ConfigError
from ludus.tools.toolsets import BUILTIN


def test_distributions_by_name_and_in_the_settings():
    def found(*flags: tuple[str, str], env: str = "terminal-test"):
        settings = load([], [("env.name", env), *flags])
        return build_distribution(settings, build_env(settings), BUILTIN)

    own = found(("tools.distribution", "mine"), ("tools.distributions.mine", "{file: 50}"))
    assert own is not None and own.percent == (("file", 50.0),)
    assert found() is None
    with pytest.raises(ConfigError, match="exclude each other"):
        found(("tools.distribution", "safe"), ("tools.enabled", "file"))
    with pytest.raises(ConfigError, match="this run has none of its toolsets"):
        found(("tools.distribution", "safe"))
    with pytest.raises(ConfigError, match="toolset 'terminal' works in a sandbox"):
        found(("tools.distribution", "development"), env="gsm8k")
