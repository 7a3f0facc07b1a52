"""Pages of a query: which column is sorted by, and where the next page begins.

A cursor names the last row of a page by its value and its id, and the query that it belongs to. So a page begins where
the last one ended, also while rows are added, and no row is read twice or passed over.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ludus.encoding import to_json
from ludus.errors import ConfigError, suggest

DEFAULT, MOST = 50, 500
"""Rows of a page."""
_HIGHEST = "1e308"


class Parameters:
    """The parameters of a request: texts by name, each any number of times."""

    def __init__(self, values: Mapping[str, Sequence[str]] | None = None) -> None:
        self._values = dict(values or {})

    def get(self, name: str, default: str = "") -> str:
        found = self._values.get(name)
        return found[0] if found else default

    def get_all(self, name: str) -> tuple[str, ...]:
        return tuple(self._values.get(name, ()))

    def get_whole(self, name: str, default: int, low: int = 0, high: int = 2**62) -> int:
        text = self.get(name)
        if not text:
            return default
        if not text.isdecimal() or len(text) > 18:
            raise ConfigError(f"{name}: a whole number, not {text[:40]!r}")
        return max(low, min(high, int(text)))

    def is_set(self, name: str) -> bool:
        return self.get(name) in ("1", "true", "yes")


def get_section(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A section of recorded settings; empty if there is none."""
    found: dict[str, Any] = settings.get(name) or {}
    return found


class Order(NamedTuple):
    """How the rows of a list are sorted."""

    name: str
    expression: str
    """SQL. It is never NULL."""
    descending: bool

    @property
    def clause(self) -> str:
        way = "DESC" if self.descending else "ASC"
        return f"ORDER BY {self.expression} {way}, id {way}"

    def place_after(self) -> str:
        """The condition for rows after a place: takes its value and its id."""
        return f"({self.expression}, id) {'<' if self.descending else '>'} (?, ?)"

    def place_before(self) -> str:
        return f"({self.expression}, id) {'>' if self.descending else '<'} (?, ?)"

    def reverse(self) -> "Order":
        return self._replace(descending=not self.descending)


def choose_order(given: str, columns: Mapping[str, str], default: str) -> Order:
    """The order that a request names. Rows without a value come last, in both directions."""
    wanted = given or default
    name, descending = wanted.removeprefix("-"), wanted.startswith("-")
    if name not in columns:
        raise ConfigError(f"sort: there is no column '{name[:40]}'; {suggest(name, list(columns))}")
    column = columns[name]
    expression = column if column.startswith("text:") else f"ifnull({column}, {'-' if descending else ''}{_HIGHEST})"
    return Order(name, expression.removeprefix("text:"), descending)


def write_cursor(query: object, value: object, id: object) -> str:
    return base64.urlsafe_b64encode(to_json([_hash(query), value, id])).decode().rstrip("=")


def read_cursor(text: str, query: object) -> tuple[Any, Any] | None:
    """The value and the id of a cursor; None for the first page. One of another query is a `ConfigError`."""
    if not text:
        return None
    try:
        padded = text + "=" * (-len(text) % 4)
        owner, value, id = msgspec.json.decode(base64.urlsafe_b64decode(padded), type=tuple[str, Any, Any])
    except ValueError:  # msgspec's errors are ValueErrors
        raise ConfigError("cursor: pass `next` of the page before, unchanged") from None
    if owner != _hash(query):
        raise ConfigError("cursor: it belongs to another sort or filter: begin without a cursor")
    if not isinstance(value, str | int | float) or not isinstance(id, str | int):
        raise ConfigError("cursor: pass `next` of the page before, unchanged")
    return value, id


def _hash(query: object) -> str:
    return hashlib.sha256(to_json(query)).hexdigest()[:12]
