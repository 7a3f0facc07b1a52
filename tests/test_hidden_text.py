"""Characters that a reader does not see."""

import pytest

from ludus.command.terminal import make_printable
from ludus.hidden_text import find_hidden


@pytest.mark.parametrize(
    "text", ["a\x1b[2Jb", "a\u202eb", "a\u200bb", "a\u2028b", "a\U000e0101b", "a\ufeffb", "a\x85b"]
)
def test_hidden_characters_are_found_and_shown_as_signs(text: str):
    (hidden,) = find_hidden(text)
    shown = make_printable(text)
    assert hidden not in shown and len(shown) == len(text) and not find_hidden(shown)


@pytest.mark.parametrize("text", ["Tab\tand\r\nlines\n", "می‌خواهم", "👩‍💻 ❤️ 1️⃣", "naïve — “quoted” …", "日本語"])
def test_what_belongs_to_writing_is_not_hidden(text: str):
    assert find_hidden(text) == set() and make_printable(text) == text.replace("\r\n", "\n")


@pytest.mark.parametrize("text", ["plain\u200dtext", "so \ufe0f what", "❤\ufe0f\ufe0f", "می\u200c\u200cخواهم"])
def test_joiners_are_hidden_where_they_join_nothing(text: str):
    assert find_hidden(text)
