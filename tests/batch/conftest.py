"""Fixtures for tests of commands. Every test is in a folder of its own."""

from pathlib import Path

import pytest
from tests.command_kit import folder, shipped, typed

__all__ = ["folder", "shipped", "typed"]


@pytest.fixture(autouse=True)
def _in_folder(folder: Path) -> None: ...
