"""`ludus config`."""

from tests.cli_kit import (
    Ludus,
)


def test_settings_are_listed(ludus: Ludus):
    assert "| `env.group_size` |" in ludus("config").out
