"""The `api` section."""

import pytest

from ludus.config import load
from ludus.errors import ConfigError
from ludus.rl.server_settings import ApiSettings


def test_the_defaults_listen_on_loopback_only():
    settings = ApiSettings()
    assert (settings.host, settings.port, settings.token_var) == ("127.0.0.1", 8000, "")


def test_flags_reach_the_section():
    assert load([], [("api.max_staleness", "0"), ("api.sync", "disk")]).api == ApiSettings(max_staleness=0, sync="disk")


@pytest.mark.parametrize(
    ("name", "value"), [("max_staleness", "-1"), ("sync", "never"), ("port", "70000"), ("body_mb", "0")]
)
def test_values_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        load([], [(f"api.{name}", value)])
