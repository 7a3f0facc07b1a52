"""The gateway kit, for every test here."""

from tests.gateway_kit import kit

__all__ = ["kit"]
