"""What is kept of a stream."""

from hypothesis import given
from hypothesis import strategies as st

from ludus.sandbox.shell import Kept


@given(st.lists(st.binary(max_size=30), max_size=30), st.integers(2, 100))
def test_kept_is_everything_or_both_ends(chunks, limit):
    kept = Kept(limit)
    for chunk in chunks:
        kept.add(chunk)
    whole = b"".join(chunks)
    assert kept.size == len(whole)
    if len(whole) <= limit:
        assert (kept.result(), kept.truncated) == (whole, False)
    else:
        marker = b"\n[... %d bytes left out ...]\n" % (len(whole) - limit)
        head, tail = limit - limit // 2, limit // 2
        assert kept.result() == whole[:head] + marker + whole[len(whole) - tail :]
        assert kept.truncated
