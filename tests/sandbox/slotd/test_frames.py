"""Frames between driver and slotd."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.sandbox.slotd.frames import MAX_BYTES, Frame, FrameError, Unpacker, pack, unpack

HEADS = st.dictionaries(st.text(max_size=5), st.one_of(st.integers(), st.text(), st.booleans(), st.none()), max_size=4)
FRAMES = st.builds(Frame, HEADS, st.binary(max_size=40))


@given(st.lists(FRAMES, max_size=5), st.integers(1, 20))
def test_a_stream_in_pieces_of_any_size_gives_the_same_frames(frames, size):
    stream = b"".join(map(pack, frames))
    unpacker = Unpacker()
    found = [frame for start in range(0, len(stream), size) for frame in unpacker.feed(stream[start : start + size])]
    assert found == frames


def test_unpack_takes_exactly_one_frame():
    one = pack(Frame({"id": 1}, b"body"))
    assert unpack(one) == Frame({"id": 1}, b"body")
    for data, count in ((one + one, 2), (one[:-1], 0), (b"", 0)):
        with pytest.raises(FrameError, match=f"hold {count} frames"):
            unpack(data)


@pytest.mark.parametrize("head", [b"{", b"[]", b"1", b"\xff"])
def test_a_head_that_is_no_object_is_refused(head):
    with pytest.raises(FrameError):
        unpack(len(head).to_bytes(4, "big") + bytes(4) + head)


def test_noise_is_refused_with_its_text():
    with pytest.raises(FrameError, match="Last login"):
        list(Unpacker().feed(b"Last login: yesterday"))
    assert int.from_bytes(b"Last", "big") > MAX_BYTES
