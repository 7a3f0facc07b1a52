"""The skill document: the instructions of an agent, as a noun."""

import hashlib

from msgspec import Struct


class Skill(Struct, frozen=True):
    """A document in words that an agent follows. Its hash is its identity on every record."""

    text: str

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]
