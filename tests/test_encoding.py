"""Nouns as JSON: whatever users and models put into them is written, and equal values have equal hashes."""

import json
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Struct, UnsetType

from ludus.encoding import canonical, replace_surrogates, to_json
from ludus.types import Message, Task


class Ratio(float):
    """A number of some library."""


class Words(str):
    """Its texts."""


ANY_TEXT = st.text(st.characters(categories=None) | st.sampled_from("\ud800\udbff\udc00\udfff"))


def test_texts_numbers_and_arrays_of_libraries_are_written_as_what_they_are():
    class Array:
        def tolist(self) -> list[int]:
            return [1, 2]

    task = Task(id=Words("a"), prompt=Words("b"), answer=[Ratio(0.5), type("Count", (int,), {})(3), Array()])
    assert json.loads(to_json(task)) == {"id": "a", "prompt": "b", "files": {}, "answer": [0.5, 3, [1, 2]]}


@given(st.recursive(ANY_TEXT | st.integers(-9, 9), lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner)))
def test_any_text_becomes_json(value: object):
    data = to_json(value)
    assert to_json(msgspec.json.decode(data)) == data
    data.decode()


def test_half_a_surrogate_pair_becomes_one_mark_and_a_whole_one_its_character():
    message = Message("tool", "a \ud800 \ud83d\ude00 \udfff")
    raw = {"raw": msgspec.Raw(b'{"b":1}'), "message": message, "map": MappingProxyType({"\ud800": (1,)})}
    assert msgspec.json.decode(to_json(raw)) == {
        "raw": {"b": 1},
        "message": {"role": "tool", "content": "a \ufffd \U0001f600 \ufffd"},
        "map": {"\ufffd": [1]},
    }


def test_surrogates_are_replaced_at_any_depth_and_the_rest_stays():
    assert replace_surrogates({"\ud800": ["a\udfff", 3, None]}) == {"\ufffd": ["a\ufffd", 3, None]}


@pytest.mark.parametrize("value", [object(), {"a": {1, object()}}, lambda: 0])
def test_what_is_no_json_is_an_error(value: Any):
    for write in (to_json, canonical):
        with pytest.raises(TypeError):
            write(value)


class Noun(Struct, frozen=True, omit_defaults=True, rename={"kind": "stored"}):
    kind: str = "a"
    sizes: tuple[int, ...] = ()
    later: int | UnsetType = UNSET


def test_equal_values_have_equal_bytes_however_they_were_made():
    assert canonical(Noun()) == canonical(Noun("".join(["a"]), ())) == b'{"sizes":[],"stored":"a"}'
    assert canonical({"b": (1,), "a": 2}) == canonical(MappingProxyType(OrderedDict(a=2, b=[1])))
    assert canonical([Noun(later=1)]) == b'[{"later":1,"sizes":[],"stored":"a"}]'


def test_different_values_have_different_bytes():
    values = [Noun(), Noun("b"), Noun(sizes=(1,)), Noun(later=0), None, {}, [], 1, 1.5, "1", True]
    assert len({canonical(value) for value in values}) == len(values)
