"""The import of PyTorch where it is not installed, as in CI."""

import importlib.util

import pytest

from ludus.errors import ConfigError


def test_without_pytorch_the_error_names_the_extra():
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed")
    with pytest.raises(ConfigError, match=r"ludus-train\[rl\]"):
        importlib.import_module("ludus.rl.torch_import")
