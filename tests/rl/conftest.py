"""Fixtures for the tests of `ludus.rl`."""

from tests.command_kit import folder, shipped, typed

__all__ = ["folder", "shipped", "typed"]
