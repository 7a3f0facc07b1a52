"""The `gateway` section."""

import subprocess
import sys

import pytest

from ludus.config import load
from ludus.errors import ConfigError
from ludus.models.ledger import Budget


def test_a_session_has_a_budget_of_its_own():
    found = load([], [("gateway.session.calls", "5"), ("gateway.port", "0")]).gateway
    assert (found.session, found.port) == (Budget(calls=5), 0)
    with pytest.raises(ConfigError, match=r"gateway\.port: expected a whole number from 0 to 65535, got 70000"):
        load([], [("gateway.port", "70000")])


def test_reading_settings_imports_no_heavy_package():
    heavy = ("mcp", "xllamacpp", "tokenizers", "jinja2", "modal", "rich")
    code = f"import sys, ludus.config, ludus.config.build_agent; print([m for m in {heavy!r} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
