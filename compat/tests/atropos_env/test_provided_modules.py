"""Modules that exist for a while."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ludus.compat.atropos_env.provided_modules import provide_modules


def test_modules_are_there_inside_the_block_alone(tmp_path: Path):
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "own.py").write_text("from environments.agent_loop import X\nY = X + 1\n")
    real = ModuleType("environments")
    sys.modules["environments"] = real
    try:
        with provide_modules({"environments.agent_loop": {"X": 1}, "a.b.c": {"Z": 2}}, [tmp_path]):
            assert importlib.import_module("environments.own").Y == 2
            assert importlib.import_module("a.b.c").Z == 2
            wandb = importlib.import_module("wandb")
            assert wandb.run is None or wandb.Table is not None
        assert sys.modules["environments"] is real and "environments.own" not in sys.modules
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("a.b.c")
    finally:
        del sys.modules["environments"]


def test_they_are_removed_after_an_error():
    with pytest.raises(RuntimeError), provide_modules({"provided_here.inner": {}}):
        raise RuntimeError
    assert "provided_here" not in sys.modules
