"""The settings of the worker."""

import pytest

from ludus.config import Config, load, to_record
from ludus.errors import ConfigError
from ludus.rl.group_filters import GroupRules
from ludus.rl.worker_settings import ServeSettings


def test_defaults_are_those_of_the_original_where_it_has_them():
    settings = ServeSettings()
    assert settings.max_batches_offpolicy == 3 and settings.eval_handling == "stop"
    assert (settings.eval_limit_ratio, settings.weight, settings.shown_rollouts) == (0.5, 1.0, 32)
    rules = GroupRules()
    names = ("too_long", "equal_scores", "partial", "branches")
    assert [getattr(settings, name) for name in names] == [getattr(rules, name) for name in names]


def test_flags_are_checked():
    assert load([], [("serve.too_long", "cut"), ("serve.steps", "5")]).serve.too_long == "cut"
    with pytest.raises(ConfigError, match=r"serve\.eval_handling"):
        load([], [("serve.eval_handling", "wait")])
    with pytest.raises(ConfigError, match=r"serve\.server: the address has a password"):
        load([], [("serve.server", "http://me:secret@host")])
    with pytest.raises(ConfigError, match=r"serve\.token_var: this is not the name"):
        load([], [("serve.token_var", "sk-12345678-abcdef")])
    assert to_record(Config())["serve"]["server"] == "http://127.0.0.1:8000"
