"""The base of settings: unknown names are refused, and later additions do not change records."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import field

from ludus.settings import Settings, get_recorded


class Example(Settings, frozen=True, kw_only=True):
    size: int = 1
    later: str = ""
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    added_later: ClassVar[tuple[str, ...]] = ("later", "options")


def test_unknown_names_are_refused():
    with pytest.raises(msgspec.ValidationError, match="unknown field `siz`"):
        msgspec.convert({"siz": 2}, Example)


def test_fields_that_were_added_later_are_recorded_once_they_are_set():
    assert get_recorded(Example(size=3)) == {"size": 3}
    assert get_recorded(Example(later="x", options={"a": 1})) == {"size": 1, "later": "x", "options": {"a": 1}}


def test_a_default_that_older_runs_did_not_have_is_recorded():
    class Newer(Settings, frozen=True, kw_only=True):
        draw: str = "random"
        added_later: ClassVar[tuple[str, ...]] = ("draw",)
        assumed_before: ClassVar[Mapping[str, Any]] = {"draw": "first"}

    assert get_recorded(Newer()) == {"draw": "random"}
    assert get_recorded(Newer(draw="first")) == {}


def test_all_fields_of_other_structs_are_recorded():
    class Plain(msgspec.Struct):
        a: int = 0

    assert get_recorded(Plain()) == {"a": 0}
