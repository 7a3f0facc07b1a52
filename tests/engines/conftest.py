"""Fixtures for tests of engines. Every test is in a folder of its own."""

from tests.command_kit import folder
from tests.ray_kit import cluster

__all__ = ["cluster", "folder"]
