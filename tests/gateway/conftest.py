"""The gateway kit and the fixtures of commands, for every test here."""

from tests.command_kit import folder, shipped, typed
from tests.gateway_kit import kit

__all__ = ["folder", "kit", "shipped", "typed"]
