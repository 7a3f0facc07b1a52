"""Server-sent events in pieces of any size."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ludus.models.event_stream import EventReader

TEXT = (
    b': a comment\r\nevent: ping\r\ndata: {"a":1}\r\n\r\n'
    b'data:{"b": "\xc3\xa9"}\n\nid: 3\ndata: [DONE]\n\nerror: {"e":1}\n'
)
VALUES = [b'{"a":1}', b'{"b": "\xc3\xa9"}', b"[DONE]", b'{"e":1}']


@given(st.lists(st.integers(0, len(TEXT))))
def test_values_do_not_depend_on_where_the_bytes_are_cut(cuts: list[int]):
    reader = EventReader()
    places = [0, *sorted(cuts), len(TEXT)]
    found = [value for a, b in pairwise(places) for value in reader.feed(TEXT[a:b])]
    assert found + reader.finish() == VALUES


def test_a_last_line_without_an_end_is_read_at_the_end():
    reader = EventReader()
    assert reader.feed(b"data: 1\ndata: 2") == [b"1"]
    assert reader.finish() == [b"2"] and reader.finish() == []
