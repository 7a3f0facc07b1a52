"""Think blocks that come in pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ludus.models.openai import split_think
from ludus.models.reply_pieces import Piece, PieceStream, ThinkSplitter, count_overlap

PARTS = ["<think>", "</think>", "\n", " ", "a", "Wort", "<", "</th", "<thinking>"]


def split(text: str, cuts: list[int], *, thinking: bool = False) -> tuple[str, str]:
    """The thought and the text that the splitter shows."""
    splitter = ThinkSplitter(thinking=thinking)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [piece for a, b in pairwise(places) for piece in splitter.feed(text[a:b])]
    return "".join(piece.thought for piece in pieces), "".join(piece.text for piece in pieces)


@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join), st.lists(st.integers(0, 60)))
def test_what_is_shown_is_the_beginning_of_what_a_whole_text_gives(text: str, cuts: list[int]):
    reasoning, content = split_think(text)
    thought, shown = split(text, cuts)
    if reasoning is not None and not text.lstrip().startswith("<think>"):
        assert shown == text, "an opening tag that the prompt has is not known here"
        return
    assert content.startswith(shown)
    assert thought == "" if reasoning is None else reasoning.text.startswith(thought)


@given(st.lists(st.integers(0, 60)))
def test_a_whole_block_is_shown_whole(cuts: list[int]):
    assert split("<think>\nHm.\n\nYes. \n</think>\n\nThe end. ", cuts) == ("Hm.\n\nYes.", "The end. ")
    assert split("Hm.\n</think> The end.", cuts, thinking=True) == ("Hm.", "The end.")
    assert split("<think>Hm.</think>The end.", cuts, thinking=True) == ("Hm.", "The end.")
    assert split(" <th is no tag", cuts) == ("", " <th is no tag")


@pytest.mark.parametrize(("text", "word", "size"), [("ab<", "</x>", 1), ("ab</x", "</x>", 3), ("ab", "</x>", 0)])
def test_the_beginning_of_a_word_at_the_end_of_a_text(text: str, word: str, size: int):
    assert count_overlap(text, word) == size


def test_a_drawing_that_nobody_reads_has_not_begun():
    reply_stream, seen = PieceStream(), []
    reply_stream.emit([Piece("a")])
    assert not reply_stream.begun
    reply_stream = PieceStream(seen.extend)
    reply_stream.emit([])
    assert not reply_stream.begun
    reply_stream.emit([Piece("a")])
    assert reply_stream.begun and seen == [Piece("a")]
